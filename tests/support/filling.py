"""A query that goes on publishing, as a process: `python -m support.filling FOLDER`, until its input ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.coordinator_world import World, uris

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def filling(world: World) -> Iterator[None]:
    """While the block lasts, five objects a turn are announced to the pipeline `files` and published."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "."))
    program = [sys.executable, "-m", "support.filling", str(world.folder)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}) as query:
        yield
        assert query.poll() is None
        query.communicate(timeout=60)
    assert query.returncode == 0


def _fill(world: World) -> None:
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    first = 0
    with world.loop() as loop:
        while not stop.wait(0.1):
            world.publish(*uris(5, first=first))
            first += 5
            loop.batch()


if __name__ == "__main__":
    _fill(World(Path(sys.argv[1])))
