"""The start of a reader in Spark's process: when it cannot go on, what it opened is closed, and messages go back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from queue_source.coordinator.session import Threads
from queue_source.errors import QueueConfigurationError
from queue_source.queues import Depth
from queue_source.spark import reader
from shard_store.errors import StoreConfigurationError, StoreUnavailable
from shard_store.store import ShardStore
from support.coordinator_world import EMPTY, World, assert_published_once, patiently, uris
from support.driver_loop import reader_options, until


def test_a_queue_that_cannot_be_opened_leaves_none_of_those_before_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Opened:
        def __init__(self, url: str) -> None:
            self.name = url

        def close(self) -> None:
            closed.append(self.name)

    def open_queue(url: str, **options: object) -> Opened:
        if url == "sim://second":
            raise QueueConfigurationError("second", "cannot be opened")
        return Opened(url)

    monkeypatch.setattr("queue_source.queues.open_queue", open_queue)
    with pytest.raises(QueueConfigurationError):
        reader._prepare(reader_options("sim://first,sim://second", f"sqlite:///{tmp_path}/store.db", source="s"))
    assert closed == ["sim://first"]


# --- messages of a start that fails ---


def started_reader(world: World, **options: str) -> reader.CuesqueueStreamReader:
    """As Spark builds it; nothing is opened before its first call."""
    given = reader_options(world.queue_url, world.store_url, visibilityTimeout="5m", commitTimeout="60s", **options)
    return reader.CuesqueueStreamReader(given, StructType([StructField("id", LongType())]))


def test_a_signal_while_a_reader_starts_gives_back_what_it_has_received_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.publish(*uris(20))

    begin = Threads.begin

    def interrupted(threads: Threads) -> None:
        begin(threads)
        until(lambda: world.depth() == Depth(0, 20), lambda: time.sleep(0.01))
        raise SystemExit(0)

    monkeypatch.setattr(Threads, "begin", interrupted)
    monkeypatch.setattr(reader, "stat_objects", lambda uris, storage: [None for _ in uris])  # not from AWS
    starting = started_reader(world)
    with pytest.raises(SystemExit):
        starting.initialOffset()
    starting.stop()  # which PySpark's process calls in any case
    assert world.depth() == Depth(20, 0)


def test_a_start_that_the_store_refuses_has_received_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.store() as store:
        store.start("another source", "files")
    world.publish(*uris(20))
    starting = started_reader(world, pipeline="files")
    with pytest.raises(StoreConfigurationError, match="already reads source"):
        starting.initialOffset()
    starting.stop()
    assert world.depth() == Depth(20, 0)


@pytest.mark.parametrize("tells_start", [True, False], ids=["Spark 4.2", "Spark 4.0"])
def test_the_messages_of_a_first_batch_that_never_ends_go_back_at_once_and_are_read_once(
    tmp_path: Path, tells_start: bool
) -> None:
    world = World(tmp_path)
    world.publish(*uris(20))
    options: dict[str, Any] = {"visibilityTimeout": "5m", "commitTimeout": "60s", "maxFilesPerTrigger": "10"}
    for _ in range(2):  # the second one repeats the batch
        with world.loop(tells_start=tells_start, **options) as loop:
            held = loop.in_flight.counts
            until(lambda: held().in_flight == 20, lambda: time.sleep(0.01))  # noqa: B023 - called at once
            loop.coordinator.plan(0, loop.coordinator.latest(0 if tells_start else None))
        assert world.depth() == Depth(20, 0)
    with world.loop(tells_start=tells_start, **options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, uris(20))


def test_messages_do_not_wait_for_a_store_that_is_away_when_their_reader_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.publish(*uris(20))
    patience: list[float] = []

    def away(store: ShardStore, *_: object) -> None:
        patience.append(store.database.patience)
        raise StoreUnavailable("it is away")

    with world.loop(visibilityTimeout="5m", maxFilesPerTrigger="10") as loop:
        until(lambda: loop.in_flight.counts().in_flight == 20, lambda: time.sleep(0.01))
        loop.coordinator.plan(0, loop.coordinator.latest(0))
        for name in ("is_published", "release"):
            monkeypatch.setattr(ShardStore, name, away)
    assert world.depth() == Depth(20, 0)
    assert max(patience) <= 5.0


def test_a_reader_that_ends_in_a_later_batch_leaves_its_messages_the_time_of_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(*uris(1))
    with world.loop(visibilityTimeout="5m", commitTimeout="60s") as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        world.publish(*uris(1, first=1))
        done = loop.coordinator.latest(1)
        until(lambda: loop.coordinator.latest(done) > done, lambda: time.sleep(0.01))
        loop.coordinator.plan(done, loop.coordinator.latest(done))
    assert world.depth() == Depth(0, 1)


# --- the end of its process ---

_ENDED = """
import os, signal, socket, sys
from pyspark.sql.types import StructType
from queue_source.options import parse_reader_options
from queue_source.spark.process import stop_on_sigterm
from queue_source.spark.reader import CuesqueueStreamReader

options = parse_reader_options({"queueUrl": "sim://q", "fileFormat": "json", "allowedPrefixes": "s3://b/"})
reader = CuesqueueStreamReader(options, StructType([]))
ours, sparks = socket.socketpair()
answers = ours.makefile("wb")
stop_on_sigterm()
try:
    try:
        sparks.close()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        reader.stop()
except BaseException:
    answers.write(b"what was raised")
    answers.flush()
    sys.exit(-1)
"""


def test_a_reader_process_that_spark_ends_prints_no_trace() -> None:
    """It does what PySpark's does: it answers how it ended, when Spark has closed the socket."""
    done = subprocess.run([sys.executable, "-c", _ENDED], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode != 0) == ("", True)
