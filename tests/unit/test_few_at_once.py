"""Of more processes than places, no more than these run at once, and the place of one that is killed is free."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from support.engine.few_at_once import place, spread

TESTS = str(Path(__file__).parents[1])
HOLD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.engine.few_at_once import place
with place([Path(file) for file in sys.argv[1:]]):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_the_third_waits_until_one_of_two_dies(tmp_path: Path) -> None:
    files = [tmp_path / "0", tmp_path / "1"]

    def holder() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD.format(tests=TESTS), *map(str, files)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def enter() -> str:
        with place(files):
            return "in"

    with holder() as first, holder() as second, ThreadPoolExecutor(1) as thread:
        assert first.stdout is not None
        assert second.stdout is not None
        assert (first.stdout.readline(), second.stdout.readline()) == ("in\n", "in\n")
        third = thread.submit(enter)
        try:
            assert wait([third], timeout=1).done == set()
            first.kill()
            assert third.result(timeout=60) == "in"
        finally:
            first.kill()
            second.kill()


def test_some_files_stand_at_even_distances_among_the_others_and_all_keep_their_order() -> None:
    files = [Path(name) for name in "abcdefghi"]
    found = "".join(map(str, spread(files, set(files[:3]))))
    assert found == "daefbghci"
    assert spread(files, set()) == spread(files, set(files)) == files
