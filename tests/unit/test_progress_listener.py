"""`ProgressListener`: the numbers of each micro-batch of ours, from what its reader reported or else from the store."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cuesqueue
from shard_store.store import open_store
from support.coordinator_world import World, uris
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline

OURS = {"pipeline": "p", "seq": 4, "store": "9f0c"}


def event(*sources: dict[str, Any]) -> Any:
    progress = {"name": "q", "runId": "r", "batchId": 7, "timestamp": "2026-11-22T18:00:00Z", "sources": sources}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))


def source(latest: object = None, end: object = OURS) -> dict[str, Any]:
    return {
        "endOffset": json.dumps(end) if end is not None else None,
        "latestOffset": json.dumps(latest),
        "numInputRows": 10,
        "inputRowsPerSecond": 2.0,
        "processedRowsPerSecond": 4.0,
    }


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        Pipeline.start(store).open("a", "b", "c")
    return url


def test_before_4_2_the_numbers_are_those_of_the_store(store_url: str) -> None:
    given: list[Any] = []
    listener = cuesqueue.ProgressListener(store_url, export=given.append)
    listener.onQueryProgress(event(source()))
    listener.onQueryTerminated(SimpleNamespace())  # type: ignore[arg-type]
    assert given == [
        {
            "query": "q", "runId": "r", "batchId": 7, "timestamp": "2026-11-22T18:00:00Z", "numInputRows": 10,
            "inputRowsPerSecond": 2.0, "processedRowsPerSecond": 4.0, "pipeline": "p", "seq": 4,
            "numFilesOutstanding": 3, "numBytesOutstanding": 30,
        }
    ]  # fmt: skip


def test_what_the_reader_reports_is_taken_where_spark_shows_it(tmp_path: Path) -> None:
    """The report of a real coordinator; there is no store at that place, and none is asked for."""
    world = World(tmp_path)
    world.publish(*uris(3))
    with world.loop() as loop:
        assert loop.latest(0) == 1
        reported = loop.coordinator.report()
    given: list[Any] = []
    cuesqueue.ProgressListener("sqlite:///nowhere.db", export=given.append).onQueryProgress(event(source(reported)))
    (numbers,) = given
    assert (numbers["numFilesOutstanding"], numbers["pipeline"], numbers["seq"]) == (3, "files", 1)
    assert numbers["approximateQueueSize"] == numbers["depth"]
    assert {"numBytesOutstanding", "received", "errors", "batchId"} <= set(numbers)


def test_sources_of_other_formats_are_left_out(store_url: str) -> None:
    given: list[Any] = []
    listener = cuesqueue.ProgressListener(store_url, export=given.append)
    others = [{"logOffset": 3}, {"topic": {"0": 5}}, None, 7]
    listener.onQueryProgress(event(*(source(end=other) for other in others), {"endOffset": "not JSON"}))
    assert given == []


def test_without_a_function_they_are_a_line_of_the_log(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = cuesqueue.ProgressListener(store_url)
    with caplog.at_level(logging.INFO, "cuesqueue"):
        listener.onQueryProgress(event(source()))
    listener.close()
    (line,) = [one.getMessage() for one in caplog.records if one.name == "cuesqueue"]
    assert json.loads(line.removeprefix("cuesqueue progress: "))["numFilesOutstanding"] == 3


def test_what_fails_is_logged_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def export(numbers: object) -> None:
        if broken:
            raise OSError("the collector is away")

    broken, listener = True, cuesqueue.ProgressListener(export=export)
    for _ in range(3):
        listener.onQueryProgress(event(source()))
    text = "the numbers of pipeline p cannot be given: the collector is away"
    assert [one.getMessage() for one in caplog.records] == [text]
    broken = False
    listener.onQueryProgress(event(source()))
    broken = True
    listener.onQueryProgress(event(source()))
    assert [one.getMessage() for one in caplog.records] == [text, text]
    missing = cuesqueue.ProgressListener(f"sqlite:///{tmp_path}/not_there.db", export=lambda numbers: None)
    missing.onQueryProgress(event(source()))
    assert "not_there.db" in caplog.records[-1].getMessage()


def test_a_listener_that_has_a_connection_is_pickled_without_it(store_url: str) -> None:
    """Spark Connect sends listeners to its server."""
    listener = cuesqueue.ProgressListener(store_url)
    listener.onQueryProgress(event(source()))
    copy = pickle.loads(pickle.dumps(listener))
    assert copy._store is None
    listener.close()


def test_the_function_of_the_page_takes_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "how-to" / "operate.md"
    (snippet,) = [block.text for block in blocks(page) if "def send" in block.text]
    added: list[Any] = []
    spark = SimpleNamespace(streams=SimpleNamespace(addListener=added.append))
    exec(snippet, {"spark": spark, "cuesqueue": cuesqueue})
    added[0].onQueryProgress(event(source({"pipeline": "p", "numFilesOutstanding": 3})))
    assert capsys.readouterr().out == "cuesqueue.files_outstanding:3|g|#pipeline:p\n"
