"""A query lives through what takes time: a short selection, with faults of a second or two.

All cases, as long as users know them: `integration/test_time_sweep.py`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.time_faults import FAULTS, QUICK, Case, NoDisk, setting
from support.time_sweep import OBJECTS, Query, options_of, prepare, wrong

CASES = [
    Case("slow store", "path", "sqlite", "sql"),
    Case("slow store", "Iceberg", "postgresql", "sqs"),
    Case("lock held", "path", "sqlite", "sql"),
    Case("lock held", "foreign", "postgresql", "sqs"),
    Case("database down", "path", "postgresql", "sql"),
    Case("database down", "Iceberg", "postgresql", "sqs"),
    Case("database frozen", "foreign", "postgresql", "sql"),
    Case("slow trigger", "foreign", "sqlite", "sqs"),
    Case("slow batch", "path", "sqlite", "sql"),
    Case("backlog", "path", "sqlite", "sql"),
    Case("clock off", "Iceberg", "sqlite", "sql"),
    Case("disk full, store", "path", "sqlite", "sql"),
    Case("disk full, sink", "path", "sqlite", "sql"),
    Case("disk full, sink", "path, loading", "sqlite", "sql"),
    Case("disk full, sink", "Delta, loading", "sqlite", "sql"),
    Case("database down", "Delta, loading", "postgresql", "sqs"),
    Case("queue errors", "path", "sqlite", "sqs"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_query_lives_through_it_and_has_each_row_and_each_message_once(
    case: Case, tmp_path: Path, iceberg_threads: None
) -> None:
    running, over = threading.Event(), threading.Event()
    try:
        with setting(case, tmp_path) as there:
            expected = prepare(case, there, QUICK)

            def disturb() -> None:
                running.wait()
                with FAULTS[case.fault](there, QUICK) as seconds:
                    ended.wait(seconds)
                over.set()

            ended = threading.Event()
            disturbing = threading.Thread(target=disturb)
            disturbing.start()
            messages = expected.total() if case.fault == "backlog" else OBJECTS
            options = options_of(case, there, QUICK)
            outcome = Query(case, there.cell, options, QUICK, running.set, over.is_set).run(messages)
            running.set()
            disturbing.join()
            assert wrong(case, there, expected, outcome) == []
    except NoDisk as reason:
        pytest.skip(str(reason))
