"""Loading in tasks whose processes end: for an object that is read, or for a target that flushes what it has."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_source.sinks.splits import SplitSink
from shard_store import failpoints
from shard_store.model import ReadMark
from support.iceberg_tables import Lake
from support.registering import Loading
from support.store_backends import StoreBackend


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    backend = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}")
    yield Lake(backend.open(), {"store": backend.url, "path": str(tmp_path / "out")}, {})
    backend.close()


def objects(folder: Path, *ids: int) -> list[Path]:
    for id in ids:
        (folder / f"{id}.json").write_text(f'{{"id": {id}, "name": "n{id}"}}')
    return [folder / f"{id}.json" for id in ids]


def dies(work: Callable[[], object]) -> bool:
    """Tell whether the work ends its process, which is a child of this one."""
    if (child := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("count", [1, 3], ids=["an object", "objects"])
@pytest.mark.parametrize("flushed", [1, 2, None], ids=["first batch", "second batch", "last batch"])
def test_a_target_whose_flush_ends_the_process_makes_no_object_bad(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, flushed: int | None
) -> None:
    """What it flushes are rows of several objects, or of those that were read before. Executors are lost beside it."""
    paths = objects(tmp_path, *range(count))
    query = Loading(lake, options={"maxAttempts": "1"})
    query.announce(*paths)
    write = SplitSink.write

    def dying(sink: SplitSink, batches: Iterator[Any], *more: Any) -> None:
        write(sink, itertools.islice(batches, flushed), *more)
        os.kill(os.getpid(), 9)

    with monkeypatch.context() as patch:
        patch.setattr(SplitSink, "write", dying)
        for _ in range(7):
            assert dies(lambda: query.written(query.references(paths)))
            query.restart()
            identity = query.pipeline.plan().identity
            lake.store.begin_read(identity, ReadMark(0, count, task=0))
            query.restart()
    query.attempt(query.references(paths))
    query.end()
    assert (query.ids(), query.causes()) == ([*range(count)], {})
    assert lake.store.read_marks(identity) == []


@pytest.mark.parametrize("count", [1, 4], ids=["alone", "among others"])
def test_an_object_whose_reading_ends_the_process_is_found_by_real_deaths(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    paths = objects(tmp_path, *range(count))
    query = Loading(lake, options={"maxAttempts": "2"})
    query.announce(*paths)
    monkeypatch.setattr(failpoints, "_armed", failpoints._parse("object-read~/0.json=exit"))
    deaths = 0
    while dies(lambda: query.written(query.references(paths))):
        query.restart()
        deaths += 1
    query.restart()
    query.attempt(query.references(paths))
    query.end()
    assert (query.ids(), query.causes()) == ([*range(1, count)], {"0.json": "kills-its-reader"})
    assert deaths <= 6
