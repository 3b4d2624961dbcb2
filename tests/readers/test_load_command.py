"""`cuesqueue load` beside a reader without Spark: what it says when its query has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from typer.testing import CliRunner, Result

from queue_source.commands.main import app
from queue_source.errors import ObjectRefused
from queue_source.queues.sql import SqlQueue
from shard_store.shards.activity import Report
from shard_store.store import open_store
from support.coordinator_world import World, uris
from support.store_backends import STALE, Pipeline

PREFIX = "s3://bucket/"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, with a function that does what the query does until it ends."""

    def run(world: World, prefix: str, query: Callable[[], object], *more: str) -> Result:
        def started(*_: object, **__: object) -> SimpleNamespace:
            return SimpleNamespace(awaitTermination=lambda timeout: query() or True)

        monkeypatch.setattr("queue_source.spark.load.quiet_session", lambda master: SimpleNamespace(stop=lambda: None))
        monkeypatch.setattr("queue_source.spark.load.LoadQuery.start", started)
        arguments = ["load", world.queue_url, "--prefix", prefix, "--format", "json", "--path", f"{tmp_path}/out"]
        return CliRunner().invoke(app, [*arguments, "--store", world.store_url, "--option", "source=files", *more])

    return run


@pytest.mark.parametrize(("prefix", "code"), [("s3://buckte/", 1), (PREFIX, 0)])
def test_a_load_of_which_all_is_refused_fails_and_says_why(
    tmp_path: Path, load: Callable[..., Result], prefix: str, code: int
) -> None:
    world = World(tmp_path)
    world.publish(*uris(3), "no notification")

    def query() -> None:
        with world.loop(allowedPrefixes=prefix) as loop:
            loop.drain()

    done = load(world, prefix, query)
    says = "0 objects loaded, 4 refused: malformed-message, outside-prefixes" in done.stdout
    assert (done.exit_code, says) == (code, code == 1), done.output
    again = load(world, prefix, lambda: None)
    assert again.exit_code == 0, "nothing came to this run"
    assert "the queue announced nothing new" in again.stderr


def test_a_load_from_an_absent_table_of_messages_fails_and_makes_none(
    tmp_path: Path, load: Callable[..., Result]
) -> None:
    world = World(tmp_path)
    done = load(world, PREFIX, lambda: pytest.fail("Spark started"))
    assert done.exit_code == 2, done.output
    assert "it does not exist; send to it, or correct its URL" in done.stderr
    with SqlQueue(world.queue_url) as queue:
        assert not queue.exists()


def test_a_sql_queue_that_does_not_answer_is_left_to_the_query(
    tmp_path: Path, load: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query waits for it, for `queueRetryTimeout`."""
    monkeypatch.setattr(World, "queue_url", "sql+postgresql+psycopg://cues@127.0.0.1:1/cues?queue=files")
    started = list[int]()
    done = load(World(tmp_path), PREFIX, lambda: started.append(1))
    assert (done.exit_code, started) == (0, [1]), done.output


def test_the_bar_of_a_load_that_has_ended_is_full_whatever_its_reader_said_last(
    tmp_path: Path, load: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader counts what waits with each heartbeat, and Spark ends its process a moment after the query."""
    world, bar = World(tmp_path), list[tuple[int, int]]()

    class Bar:
        def __enter__(self) -> Callable[..., None]:
            return lambda done, total=None, description="": bar.append((done, total))

        def __exit__(self, *_: object) -> None:
            pass

    def query() -> None:
        with open_store(world.store_url) as store:
            us = Pipeline.start(store, "files")
            store.heartbeat(us.token, STALE, Report(depth=30))

    monkeypatch.setattr("queue_source.commands.load.progress", lambda *_: Bar())
    monkeypatch.setattr("queue_source.commands.load.sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    with SqlQueue(world.queue_url) as queue:
        queue.create()
    assert load(world, PREFIX, query).exit_code == 0
    assert bar[-1] == (0, 0)


@pytest.mark.parametrize(("fails", "code"), [(True, 1), (False, 0)])
def test_a_load_whose_listing_fails_does_not_say_that_all_is_loaded(
    tmp_path: Path, load: Callable[..., Result], fails: bool, code: int
) -> None:
    """The query ends well by then: what was announced is read, and the listing is tried again by the next one."""
    world = World(tmp_path)
    world.publish(*uris(1))
    world.bucket.failing = [ObjectRefused("access denied", own=False)] * fails

    def query() -> None:
        with world.loop(backfillPrefixes=PREFIX, allowedPrefixes=PREFIX) as loop:
            loop.drain()

    done = load(world, PREFIX, query, "--option", f"backfillPrefixes={PREFIX}")
    said = " ".join(done.output.split())
    assert (done.exit_code, "not all is loaded" in said) == (code, fails), done.output
    assert ("could not all be listed" in said) is fails


def test_a_load_counts_what_it_has_loaded_itself_beside_another_one(
    tmp_path: Path, load: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes the pipeline over, and gives it back: both end well, and the table is right."""
    world = World(tmp_path)
    monkeypatch.setattr("queue_source.spark.process.driver_identity", lambda: "ours" * 16)

    world.publish("no notification")

    def query() -> None:
        for number, driver in enumerate(("ours", "theirs", "theirs", "ours")):
            world.publish(*uris(number + 1, first=10 * number))
            with world.loop(driver=driver * 16, allowedPrefixes=PREFIX) as loop:
                loop.drain()

    done = load(world, PREFIX, query, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["objects"], result["rows"], result["errors"]) == (1 + 4, 5, {"malformed-message": 1})


@pytest.mark.parametrize(
    "raised",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("is empty"),
        PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."),
    ],
)
def test_java_that_is_killed_while_its_session_starts_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def session(master: str) -> None:
        raise raised

    monkeypatch.setattr("queue_source.spark.load.quiet_session", session)
    world = World(tmp_path)
    world.publish(*uris(1))
    arguments = ["load", world.queue_url, "--prefix", PREFIX, "--format", "json", "--path", f"{tmp_path}/out"]
    done = CliRunner().invoke(app, [*arguments, "--store", world.store_url])
    assert done.exit_code == 1, done.output
    assert "error: Spark's Java process has ended; the next run goes on." in done.stderr


@pytest.mark.parametrize(
    "why", ["exception: Broken pipe", "exception: Stream closed", "Python worker exited unexpectedly"]
)
def test_a_python_process_that_is_killed_is_said(tmp_path: Path, load: Callable[..., Result], why: str) -> None:
    def query() -> None:
        raise RuntimeError(f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with {why} SQLSTATE: XXKST")

    world = World(tmp_path)
    world.publish(*uris(1))
    done = load(world, PREFIX, query)
    assert done.exit_code == 1, done.output
    assert "error: a Python process of Spark has ended" in done.stderr


def test_java_that_has_ended_under_a_session_is_said_whatever_pyspark_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that a class is a package: nothing answers, so PySpark takes it for one."""

    def session(master: str) -> None:
        raise TypeError("'JavaPackage' object is not callable")

    ended = SimpleNamespace(has_ended=True, connected=nullcontext)
    monkeypatch.setattr("queue_source.spark.load.quiet_session", session)
    monkeypatch.setattr("queue_source.commands.load.own_java", lambda master: nullcontext(ended))
    world = World(tmp_path)
    world.publish(*uris(1))
    arguments = ["load", world.queue_url, "--prefix", PREFIX, "--format", "json", "--path", f"{tmp_path}/out"]
    done = CliRunner().invoke(app, [*arguments, "--store", world.store_url])
    assert "error: Spark's Java process has ended" in done.stderr, done.output
    ended.has_ended = False
    assert isinstance(CliRunner().invoke(app, [*arguments, "--store", world.store_url]).exception, TypeError)
