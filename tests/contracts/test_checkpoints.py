"""A checkpoint is believed by the pipeline and the store whose offsets it has, and by nobody else (decision 0065)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_source.options import parse_reader_options
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.source import CuesqueueSource
from shard_store.errors import LostProgress, StoreConfigurationError
from support.coordinator_world import EMPTY, World
from support.driver_loop import a_moment, until

Offset = dict[str, Any]


@contextmanager
def reading(world: World, **more: str) -> Iterator[CuesqueueStreamReader]:
    given = {
        "queueUrl": world.queue_url,
        "store": world.store_url,
        "content": "message",
        "waitTime": "50ms",
        "visibilityTimeout": "10s",
        "commitTimeout": "4s",
        "source": "s",
        "pipeline": "a",
        **more,
    }
    reader = CuesqueueStreamReader(parse_reader_options(given), CuesqueueSource(given).schema())
    try:
        yield reader
    finally:
        reader.stop()


def next_offset(reader: CuesqueueStreamReader, start: Offset) -> Offset:
    """Of the next batch; as Spark 4.2 asks for it."""
    found = [start]
    until(lambda: found[-1] != start, lambda: found.append(reader.latestOffset(start)))
    return found[-1]


def logged(offset: Offset) -> Offset:
    """As a checkpoint gives it back."""
    read: Offset = json.loads(json.dumps(offset))
    return read


def batch(reader: CuesqueueStreamReader, start: Offset) -> Offset:
    """One batch, planned."""
    end = next_offset(reader, start)
    assert reader.partitions(start, end)
    return logged(end)


def delivered(world: World, **more: str) -> Offset:
    """The offset at which a pipeline is when it has delivered one message."""
    world.publish("first")
    with reading(world, **more) as reader:
        done = batch(reader, reader.initialOffset())
        reader.commit(done)
        return done


ASKED: dict[str, Callable[[CuesqueueStreamReader, Offset], object]] = {
    "latestOffset": lambda reader, offset: reader.latestOffset(offset),
    "partitions from": lambda reader, offset: reader.partitions(offset, {**offset, "seq": offset["seq"] + 1}),
    "partitions to": lambda reader, offset: reader.partitions(reader.initialOffset(), offset),
    "partitions of nothing": lambda reader, offset: reader.partitions(offset, offset),
    "commit": lambda reader, offset: reader.commit(offset),
}
"""Every call in which Spark hands us an offset."""


@pytest.mark.parametrize("call", ASKED)
def test_a_checkpoint_of_another_pipeline_is_refused_with_its_name(tmp_path: Path, call: str) -> None:
    world = World(tmp_path)
    offset = delivered(world)
    world.publish("second")
    for lossy in ("true", "false"):
        with reading(world, pipeline="b", failOnDataLoss=lossy) as reader:
            next_offset(reader, reader.initialOffset())  # its snapshot 1 is written, and nothing of it is delivered
            with pytest.raises(StoreConfigurationError, match="this checkpoint is of pipeline 'a'") as caught:
                ASKED[call](reader, offset)
            assert "failOnDataLoss" not in str(caught.value)
    assert world.depth().total == 1


@pytest.mark.parametrize("call", ASKED)
@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_checkpoint_of_another_store_is_refused_where_this_one_has_come_as_far(
    tmp_path: Path, call: str, lossy: str
) -> None:
    (here, there) = (World(tmp_path / name) for name in ("here", "there"))
    for world in (here, there):
        world.folder.mkdir()
    offset = delivered(there)
    here.publish("second")
    with reading(here, failOnDataLoss=lossy) as reader:
        next_offset(reader, reader.initialOffset())
        with pytest.raises(LostProgress, match=f"offset 1 of another store, with the id {offset['store']}"):
            ASKED[call](reader, offset)
    assert here.depth().total == 1


def test_a_checkpoint_of_another_source_is_refused(tmp_path: Path) -> None:
    with reading(World(tmp_path)) as reader:
        for other in ({"seqNum": 5, "sourceVersion": 1}, 7):
            with pytest.raises(StoreConfigurationError, match="this checkpoint is of another source"):
                reader.latestOffset(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ASKED)
def test_a_checkpoint_of_before_0_3_is_refused(tmp_path: Path, call: str) -> None:
    world = World(tmp_path)
    offset = delivered(world)
    del offset["store"]
    world.publish("second")
    with (
        reading(world) as reader,
        pytest.raises(StoreConfigurationError, match=r"before 0\.3 made this checkpoint"),
    ):
        ASKED[call](reader, offset)
    assert world.depth().total == 1


def test_the_offsets_of_a_lost_store_are_read_on_once_that_was_accepted(tmp_path: Path) -> None:
    world = World(tmp_path)
    offset = delivered(world)
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    with reading(world) as reader, pytest.raises(LostProgress, match="'failOnDataLoss' to false"):
        reader.latestOffset(offset)
    with reading(world, failOnDataLoss="false") as reader:
        assert reader.latestOffset(offset) == offset
    world.publish("second")
    with reading(world) as reader:  # and it is nothing new for Spark
        end = batch(reader, offset)
        assert (end["seq"], end["store"] == offset["store"]) == (2, False)
        reader.commit(end)
    until(lambda: world.depth() == EMPTY, a_moment)


def test_an_idle_query_says_again_what_the_checkpoint_says_in_the_same_text(tmp_path: Path) -> None:
    """Spark compares texts: another one would be a batch without anything in it."""
    world = World(tmp_path)
    offset = delivered(world)
    with reading(world) as reader:
        assert json.dumps(reader.latestOffset(offset)) == json.dumps(offset)
    with reading(world) as reader:  # Spark before 4.2
        assert reader.partitions(offset, offset) == []
        assert json.dumps(reader.latestOffset()) == json.dumps(offset)
