"""`cuesqueue demo`: the parts of it fast, and the whole of it with a few days."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cuesqueue_demo import data as demo_data
from cuesqueue_demo import proof as demo_proof
from cuesqueue_demo import report as demo_report
from cuesqueue_demo import run as demo_run
from queue_source.queues import open_queue
from support.snippets import ROOT

PROGRAM = [sys.executable, "-m", "queue_source.commands.main"]
PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("src", "examples"))
FEW = 12


@pytest.fixture(scope="module")
def flights() -> bytes:
    return demo_data.read_flights()


@pytest.fixture(scope="module")
def few(flights: bytes) -> pa.Table:
    return demo_proof.only_days(demo_data.as_table(flights), demo_data.choose_days(FEW))


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """Temporary files of the demo come into a folder of the test, so that one sees what it leaves."""
    return {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": PATHS, "COLUMNS": "200"}


def test_a_whole_year_is_chosen_day_by_day() -> None:
    days = demo_data.choose_days(365)
    assert len(set(days)) == 365
    assert days[0] == (1, 1)
    assert days[58:60] == [(2, 28), (3, 1)]
    assert days[-1] == (12, 31)


@pytest.mark.parametrize("count", [12, 13, 40, 364])
def test_fewer_days_leave_some_for_every_format(count: int) -> None:
    days = demo_data.choose_days(count)
    assert len(set(days)) == count
    for months in demo_data.MONTHS.values():
        assert sum(day[0] in months for day in days) >= 2


def test_the_year_has_336776_flights(flights: bytes) -> None:
    assert demo_data.as_table(flights).num_rows == 336_776


def test_what_is_announced_is_what_the_queues_hold(flights: bytes, tmp_path: Path) -> None:
    layout = demo_data.Layout(tmp_path)
    announced = demo_data.lay_out(layout, flights, demo_data.choose_days(FEW))
    for pipeline, told in announced.items():
        with open_queue(layout.queue(pipeline)) as queue:
            assert queue.depth().ready == told.messages
        assert told.announcements > told.distinct >= told.objects - len(told.lost)
    causes = [cause for told in announced.values() for cause in told.bad]
    assert sorted(causes) == ["corrupt-object", "malformed-message", "missing-object"]


def test_of_every_ten_objects_one_is_announced_by_nobody(flights: bytes, tmp_path: Path) -> None:
    layout = demo_data.Layout(tmp_path)
    announced = demo_data.lay_out(layout, flights, demo_data.choose_days(365))
    assert {name: len(told.lost) for name, told in announced.items()} == {
        name: -(-(told.objects - 1) // 10) for name, told in announced.items()
    }
    for pipeline, told in announced.items():
        with open_queue(layout.queue(pipeline)) as queue:
            bodies = b"\n".join(message.body for message in queue.receive(1000, 60, 0))
        assert all(Path(uri.removeprefix("file://")).is_file() for uri in told.lost)
        assert not [uri for uri in told.lost if uri.encode() in bodies]


def test_equal_rows_in_another_order_differ_on_no_day(few: pa.Table) -> None:
    assert demo_proof.days_that_differ(few, few.take(list(range(few.num_rows))[::-1])) == []


@pytest.mark.parametrize("change", ["lost", "twice", "other value", "null"])
def test_a_single_wrong_row_is_found_with_its_day(few: pa.Table, change: str) -> None:
    day = demo_data.day_numbers(few).to_pylist()[100]
    row = few.slice(100, 1)
    if change in ("other value", "null"):
        value = None if change == "null" else "ZZ"
        row = row.set_column(few.schema.get_field_index("carrier"), "carrier", pa.array([value], pa.string()))
    rest = [few.slice(0, 100), few.slice(101)]
    published = {"lost": rest, "twice": [few, row]}.get(change, [*rest, row])
    assert demo_proof.days_that_differ(few, pa.concat_tables(published)) == [day]


def test_the_proof_fails_on_anything_that_is_not_as_it_has_to_be() -> None:
    announced = {
        "csv": demo_data.Announced(
            objects=2, messages=3, announcements=4, distinct=3, lost=["lost"], bad=["missing-object"]
        )
    }
    good = demo_report.Tour(
        announced,
        demo_report.Moment(),
        demo_report.Moment(Counter(csv=2), rows=Counter(csv=10), errors=(("csv", "missing-object", "gone"),)),
        days=1,
        expected_rows=10,
        wrong_days=[],
        certificates={"csv": demo_report.Certificate(1, {"published": 2, "missing": 0}, "all of them")},
    )
    assert good.problems == []
    for wrong in (
        replace(good, wrong_days=[101]),
        replace(good, after=replace(good.after, rows=Counter(csv=11))),
        replace(good, after=replace(good.after, published=Counter(csv=1))),
        replace(good, after=replace(good.after, left=Counter(csv=1))),
        replace(good, after=replace(good.after, errors=())),
        replace(good, certificates={}),
        replace(good, certificates={"csv": demo_report.Certificate(1, {"published": 1, "missing": 1}, "")}),
        replace(good, certificates={"csv": demo_report.Certificate(1, {"published": 2, "missing": 1}, "")}),
    ):
        assert len(wrong.problems) == 1


def test_a_session_is_killed_with_those_who_left_its_process_group() -> None:
    child = "import os, sys; os.setpgid(0, 0); print(os.getpid(), flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert os.getpgid(pid) != process.pid
        assert demo_run.kill_session(process, lambda: False) == 0
        states = subprocess.run(
            ["ps", "-o", "stat=", str(pid), str(process.pid)], capture_output=True, text=True, check=True
        )
        assert "T" not in states.stdout, "both go on"
        assert demo_run.kill_session(process) == 2
        assert demo_run._session(process.pid) == set()


@pytest.mark.engine
def test_the_demo_survives_its_kill_proves_every_row_and_its_commands_work_when_they_are_pasted(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*PROGRAM, "demo", "--days", str(FEW), "--keep", "--json"],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert told["days_equal"] == told["days"] == FEW
    assert told["interrupted"]
    lost = told["objects that no message announces"]
    assert all(count >= 1 for count in lost.values())
    assert told["of these found by listing and published"] == lost
    assert [one["certificate"] for one in told["certificates"]] == [1, 2, 3]
    assert [one["says"].count("1 quarantined") for one in told["certificates"]] == [0, 0, 1]
    assert not any("missing" in one["says"] for one in told["certificates"])
    assert all(count >= 1 for count in told["micro-batches before the kill"].values())
    assert sorted(bad["cause"] for bad in told["quarantined"]) == [
        "corrupt-object",
        "malformed-message",
        "missing-object",
    ]
    pasted = "\n".join(told["commands"])
    ran = subprocess.run(["bash", "-ec", pasted], env=surroundings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("attempt-output") >= 3
    assert "malformed-message" in ran.stdout
    assert "the same objects and numbers as in certificate 1" in ran.stdout + ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_all_it_started_and_leaves_nothing(
    surroundings: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "--days", str(FEW)],
        env=surroundings,
        stderr=subprocess.PIPE,
        text=True,
        # whoever starts the tests in the background lets them ignore Ctrl-C, and their children too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as demo:
        with _killed_at_the_end(demo):
            _wait_for_a_session_of(demo.pid)
            demo.send_signal(number)
            _, told = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert re.search("everything that was started is ended", told)
    assert _children_of(demo.pid) == []
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def _killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


def _wait_for_a_session_of(pid: int) -> None:
    deadline = time.monotonic() + 60
    while not _children_of(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in (line.split() for line in listed.splitlines()) if int(parent) == pid]
