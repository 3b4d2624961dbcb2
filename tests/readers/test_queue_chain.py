"""Two queries, queue -> queue -> queue, with a failure at each named step: Spark's loop without Spark, our own sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_source.messages import Received
from queue_source.queues import open_queue
from queue_source.sinks.queue import HASH_HEADER, INDEX_HEADER
from shard_store import failpoints
from shard_store.failpoints import FailpointReached
from support.driver_loop import until
from support.queue_chain import Hop

BODIES = [b"1", b"2", b"2", b"", b"\xff\x00", *(f"number {n}".encode() for n in range(20))]
STEPS = ("rows-staged", "rows-staged@2", "before-publish", "rows-shown", "published")


def url(root: Path, queue: str) -> str:
    """Names with a dot are queues of the simulator, the others are in the store's database."""
    return f"sim://{queue}?dir={root}" if "." in queue else f"sql+sqlite:///{root}/store.db?queue={queue}"


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_armed", failpoints._parse(f"{step}=raise"))
        patch.setattr(failpoints, "_reached", {})
        yield


def drive(root: Path, source: str, target: str) -> None:
    """Until the source is empty; what a failure leaves leased has to come back first."""
    hop = Hop(root, source, f"sqlite:///{root}/store.db", url(root, source), url(root, target))
    try:
        for _ in range(200):
            hop.drain()
            with open_queue(url(root, source)) as queue:
                if queue.depth().total == 0:
                    return
    finally:
        hop.stop()
    raise AssertionError(f"{source} was never empty")


def drive_until_it_fails(root: Path, source: str, target: str) -> None:
    hop = Hop(root, source, f"sqlite:///{root}/store.db", url(root, source), url(root, target))
    try:
        with pytest.raises(FailpointReached):
            until(lambda: False, hop.drain)
    finally:
        hop.stop()


def came_out(root: Path, queue: str) -> list[Received]:
    opened: Any = open_queue(url(root, queue))
    with opened:
        found: list[Received] = opened.peek(10_000)
    return found


@pytest.mark.parametrize("step", STEPS)
def test_a_chain_of_two_queries_is_exact_wherever_each_of_them_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with open_queue(url(tmp_path, "first")) as queue:
        queue.publish(BODIES, tag="a.b", headers={"trace": "1"})
    for source, target in (("first", "second"), ("second", "third")):
        with failing(monkeypatch, step):
            drive_until_it_fails(tmp_path, source, target)
        drive(tmp_path, source, target)
    found = came_out(tmp_path, "third")
    assert Counter(message.body for message in found) == Counter(BODIES)
    assert {(message.tag, message.headers["trace"]) for message in found} == {("a.b", "1")}
    assert len({(m.headers[HASH_HEADER], m.headers[INDEX_HEADER]) for m in found}) == len(BODIES)


@pytest.mark.parametrize("step", ["rows-sent", "rows-sent@2", "before-publish", "published"])
def test_into_a_queue_elsewhere_nothing_is_lost_and_the_stamps_tell_what_is_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with open_queue(url(tmp_path, "first")) as queue:
        queue.publish(BODIES)
    with open_queue(url(tmp_path, "a.b")) as queue:
        queue.create()  # type: ignore[attr-defined]
    with failing(monkeypatch, step):
        drive_until_it_fails(tmp_path, "first", "a.b")
    sent = len(came_out(tmp_path, "a.b"))
    assert 0 < sent < len(BODIES)  # it failed on its way
    drive(tmp_path, "first", "a.b")
    found = came_out(tmp_path, "a.b")
    once = {(m.headers[HASH_HEADER], m.headers[INDEX_HEADER]): m.body for m in found}
    assert Counter(once.values()) == Counter(BODIES)
    assert (len(found) > len(BODIES)) is (step != "published")
