"""A consumer of a SQLite queue notices a message at once, not at its next poll."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queue_source.queues import open_queue
from queue_source.queues import sql as sql_queue
from queue_source.queues.base import Queue
from queue_source.queues.sql import waking_early


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sql+sqlite:///{tmp_path / 'queue.db'}?queue=files"


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with open_queue(url) as opened:
        opened.depth()
        yield opened


def test_a_message_ends_the_wait_for_the_next_poll(url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_queue, "_POLL", (3600.0, 3600.0))
    with ThreadPoolExecutor(1) as thread, open_queue(url) as sender:
        receiving = thread.submit(queue.receive, 10, 60, 3600.0)
        sender.publish(["a", "b"])
        assert [message.body for message in receiving.result(timeout=30)] == [b"a", b"b"]


def test_what_changes_before_the_rows_are_looked_at_ends_the_next_wait(tmp_path: Path, url: str, queue: Queue) -> None:
    never = threading.Event()
    with waking_early(tmp_path / "queue.db", never.wait) as wait:
        queue.publish(["a"])  # as between a look at the rows and the wait after it
        waiting = threading.Thread(target=wait, args=[3600.0], daemon=True)
        waiting.start()
        waiting.join(30)
        assert not waiting.is_alive()


def test_a_closed_queue_ends_the_wait(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_queue, "_POLL", (3600.0, 3600.0))
    with ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(queue.receive, 10, 60, 3600.0)
        queue.close()
        assert receiving.exception(timeout=30) is not None or receiving.result() == []


def test_a_file_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    waits: list[float] = []
    with waking_early(tmp_path / "absent", waits.append) as sleep:
        sleep(3600.0)
    assert waits == [3600.0]
