"""Tasks use the store of their plan or fail: none makes a store, and none writes where nobody reads."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from queue_source.errors import OptionError, SinkFailed
from queue_source.options import SecretUrl, parse_reader_options, parse_sink_options, parse_view_options
from queue_source.queues import open_queue
from queue_source.read.isolation import Marks
from queue_source.read.partitions import PlanStore, whole_pieces
from queue_source.read.task import Work, read_work
from queue_source.sinks.base import Batch, check_visible, open_sink
from queue_source.spark.views import CuesqueueViewReader, ViewPartition, view_schema
from queue_source.spark.writer import CuesqueueStreamWriter
from shard_store.errors import StoreConfigurationError
from shard_store.model import BEGINNING, Content, PlanIdentity, PublishToken, Range, ReadMark, end_at, shard_key
from shard_store.sql.shared_file import SharedFile
from shard_store.store import ShardStore, open_store
from support.reading import plan_store
from support.servers.postgres import new_database
from support.servers.s3 import Refusal, s3_server
from support.store_backends import Pipeline, rows

IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)
SCHEMA = pa.schema([("id", pa.int64())])
LEAST = {
    "queueUrl": "sim://files",
    "source": "files",
    "fileFormat": "json",
    "mode": "FAILFAST",
    "allowedPrefixes": "file:///",
}


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return plan_store(parse_reader_options({**LEAST, "storeUrl": f"sqlite:///{tmp_path}/store.db"}))


@pytest.fixture
def postgres_database(postgres_url: str) -> str:
    """Empty."""
    return new_database(postgres_url)


def work(store: PlanStore, *objects: Path) -> Work:
    ranges = [
        Range(shard_key("files", str(path)), Content(str(path), str(path)), BEGINNING, end_at(1)) for path in objects
    ]
    return Work(IDENTITY, whole_pieces(ranges), parse_reader_options(LEAST).content, store)


def read(store: PlanStore, *objects: Path) -> Sequence[pa.RecordBatch]:
    return list(read_work(work(store, *objects), SCHEMA, repeated=False))


def test_a_task_counts_its_requests_that_were_sent_again_for_its_pipeline(store: PlanStore) -> None:
    with s3_server() as s3, store.open() as opened:
        Pipeline.start(opened)
        s3.objects |= {f"b/{place}": b'{"id": 1}' for place in range(3)}
        s3.refusals["b/1"] = Refusal(503, "SlowDown", times=2)
        uris = [f"s3://b/{place}" for place in range(3)]
        ranges = [Range(shard_key("files", uri), Content(uri, uri, 9), BEGINNING, end_at(9)) for uri in uris]
        content = parse_reader_options({**LEAST, "allowedPrefixes": "s3://", **s3.options}).content
        task = Work(IDENTITY, whole_pieces(ranges), content, store)
        for expected in (2, 2):
            assert sum(batch.num_rows for batch in read_work(task, SCHEMA, repeated=False)) == 3
            assert [status.object_retries for status in opened.status()] == [expected]


@pytest.mark.parametrize(
    ("options", "most"), [({"maxConcurrentRequests": "3"}, 3), ({"readAheadBytes": "1"}, 1), ({}, 9)]
)
def test_a_task_keeps_to_the_options_for_requests_and_bytes(
    store: PlanStore, options: dict[str, str], most: int
) -> None:
    together: list[int] = []
    under_way = threading.Semaphore(0)

    def answer(*_: object) -> None:
        under_way.release()
        together.append(under_way._value)
        time.sleep(0.1)
        under_way.acquire()

    with s3_server() as s3:
        s3.objects |= {f"b/{place}": b'{"id": 1}' for place in range(10)}
        s3.changes["b/"] = answer
        uris = [f"s3://b/{place}" for place in range(10)]
        ranges = [Range(shard_key("files", uri), Content(uri, uri, 9), BEGINNING, end_at(9)) for uri in uris]
        content = parse_reader_options({**LEAST, "allowedPrefixes": "s3://", **s3.options, **options}).content
        task = Work(IDENTITY, whole_pieces(ranges), content, store)
        assert sum(batch.num_rows for batch in read_work(task, SCHEMA, repeated=False)) == 10
    assert max(together) <= most
    assert most < 9 or max(together) > 3


def test_a_task_with_a_bad_object_reports_it_in_the_store_of_its_plan(store: PlanStore, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    assert read(pickle.loads(pickle.dumps(store)), tmp_path / "bad.json") == []
    with open_store(store.url.reveal()) as found:
        assert [row["cause"] for row in rows(found, "errors")] == ["corrupt-object"]


def test_a_task_in_another_folder_writes_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    for folder in (driver, executor):
        folder.mkdir()
    (tmp_path / "bad.json").write_text("{")
    monkeypatch.chdir(driver)
    store = plan_store(parse_reader_options(LEAST))  # the default: a relative path
    monkeypatch.chdir(executor)
    assert read(store, tmp_path / "bad.json") == []
    assert list(executor.iterdir()) == []
    with open_store(f"sqlite:///{driver}/cuesqueue.db", create=False) as found:
        assert len(rows(found, "errors")) == 1


def test_reader_sink_and_views_make_a_relative_sqlite_path_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"storeUrl": "sqlite:///a/b c.db?timeout=5"}
    target = "sql+sqlite:///jobs.db?queue=out"
    sink = parse_sink_options({**given, "pipeline": "p", "queueUrl": target})
    reader, view = parse_reader_options({**LEAST, **given}), parse_view_options(given)
    for options in (reader, sink, view):
        with open_store_in_new_folder(options.store, tmp_path / "a") as store:
            assert store.database.file() == tmp_path / "a" / "b c.db"
    assert sink.queue is not None
    assert sink.queue.url == SecretUrl(f"sql+sqlite:///{tmp_path}/jobs.db?queue=out")
    assert parse_view_options({}).store == SecretUrl(f"sqlite:///{tmp_path}/cuesqueue.db")
    for other in ("postgresql+psycopg://u@h/relative", "sqlite:////absolute.db", "sqlite:///file:/x.db?uri=true"):
        assert parse_view_options({"storeUrl": other}).store == SecretUrl(other)


def open_store_in_new_folder(url: SecretUrl, folder: Path) -> ShardStore:
    folder.mkdir(exist_ok=True)
    return open_store(url.reveal())


def elsewhere(store: PlanStore) -> PlanStore:
    """As the driver of another machine would have made it."""
    assert store.file is not None
    return replace(store, file=replace(store.file, machine="another boot", host="driver.example"))


def test_a_task_on_another_machine_than_the_driver_refuses_sqlite_before_it_reads(
    store: PlanStore, tmp_path: Path
) -> None:
    good = tmp_path / "good.json"
    good.write_text('{"id": 1}\n')
    assert [batch.to_pylist() for batch in read(store, good)] == [[{"id": 1}]]
    for task in (work(elsewhere(store), good), work(elsewhere(store))):  # a plan without objects too
        with pytest.raises(StoreConfigurationError) as refused:
            next(read_work(task, SCHEMA, repeated=False))
        for part in ("option 'storeUrl'", "driver.example", "another machine", "use PostgreSQL or MariaDB/MySQL"):
            assert part in str(refused.value)


def test_a_path_that_is_another_file_or_none_for_the_task_is_refused(store: PlanStore) -> None:
    assert store.file is not None
    file = Path(store.file.path)
    file.rename(file.with_suffix(".moved"))
    with pytest.raises(StoreConfigurationError, match=r"option 'storeUrl': .*cannot be reached \(No such file"):
        store.check()
    file.touch()
    with pytest.raises(StoreConfigurationError, match="where that path is another file"):
        store.check()


def test_the_drivers_file_by_another_path_to_its_folder_is_the_same_file(store: PlanStore, tmp_path: Path) -> None:
    """As a container sees a folder of the host under its own name."""
    assert store.file is not None
    (tmp_path / "mounted").symlink_to(tmp_path)
    (tmp_path / "link.db").symlink_to(store.file.path)
    for path in (tmp_path / "mounted" / "store.db", tmp_path / "link.db"):
        replace(store, file=replace(store.file, path=str(path))).check()


def test_the_drivers_file_without_its_folder_is_refused_since_its_write_ahead_log_is_not_there(
    store: PlanStore, tmp_path: Path
) -> None:
    """As a container sees a single file of the host that is mounted, and as a hard link is seen."""
    assert store.file is not None
    (tmp_path / "mounted").mkdir()
    for path in (tmp_path / "mounted" / "store.db", tmp_path / "other.db"):
        os.link(store.file.path, path)
        with pytest.raises(StoreConfigurationError, match=r"a hard link, or mounted without its folder"):
            replace(store, file=replace(store.file, path=str(path))).check()


@pytest.mark.parametrize("state", ["absent", "empty"])
def test_a_task_never_makes_a_store(postgres_database: str, tmp_path: Path, state: str) -> None:
    url = f"sqlite:///{tmp_path}/none.db" if state == "absent" else postgres_database
    store = PlanStore(SecretUrl(url), "f" * 32)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(StoreConfigurationError, match=r"option 'storeUrl': a task on .* there is no (such file|store)"):
        read(store, tmp_path / "bad.json")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StoreConfigurationError, match="there is no"):
        open_store(url, create=False)


def test_a_task_that_finds_another_store_fails_and_writes_nothing(
    postgres_database: str, store: PlanStore, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("{")
    with open_store(postgres_database) as other:
        wrong = replace(store, url=SecretUrl(postgres_database), file=None)
        with pytest.raises(StoreConfigurationError) as refused:
            read(wrong, tmp_path / "bad.json")
        assert rows(other, "errors") == []
    for part in ("option 'storeUrl'", "another store", store.store_id):
        assert part in str(refused.value)
    with (
        pytest.raises(StoreConfigurationError, match="another store"),
        Marks(IDENTITY, wrong).during(ReadMark(0, 1, 0)),
    ):
        raise AssertionError("read without a mark")


def test_a_queue_in_a_sqlite_file_is_refused_by_tasks_on_other_machines(tmp_path: Path) -> None:
    url = f"sql+sqlite:///{tmp_path}/jobs.db?queue=out"
    sink = open_sink(parse_sink_options({"pipeline": "p", "queueUrl": url, "storeUrl": f"sqlite:///{tmp_path}/s.db"}))
    schema = pa.schema([("value", pa.string())])
    batch, message = Batch((IDENTITY,), "0.0"), pa.record_batch([["hello"]], schema)
    with open_store(f"sqlite:///{tmp_path}/s.db") as opened:
        sink.prepare(opened, schema, batch.plans)
    there = pickle.loads(pickle.dumps(sink))
    there.write(iter([message]), schema, batch)
    file: SharedFile = there._file
    there._file = replace(file, machine="another boot")
    with pytest.raises(OptionError, match=r"option 'queueUrl': .* which is another machine\. SQLite is for"):
        there.write(iter([message]), schema, batch)
    with open_queue(url) as queue:
        queue.send(["after"])
        assert queue.depth().ready == 2


def test_files_that_tasks_have_written_to_disks_of_their_own_are_not_published(tmp_path: Path) -> None:
    there = tmp_path / "there.parquet"
    there.touch()
    check_visible([str(there), f"file://{there}", "s3://bucket/key"])
    with pytest.raises(OptionError, match=r"option 'path': of 2 local files .* 1 are not on the driver's machine"):
        check_visible([str(there), str(tmp_path / "gone.parquet"), "s3://bucket/key"])


def test_the_sink_publishes_nothing_when_its_files_are_on_other_disks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    options = parse_sink_options({"pipeline": "p", "path": str(tmp_path / "out"), "storeUrl": url})
    with open_store(url) as opened:
        pipeline = Pipeline.start(opened)
        batch = Batch((pipeline.planned("a").identity,))
        written = open_sink(options).write(iter([pa.record_batch([[1]], SCHEMA)]), SCHEMA, batch)
        Path(written[0].path).unlink()
        with pytest.raises(OptionError, match="option 'path'"):
            open_sink(options).commit(opened, batch, [written], row_schema="", batch_id=0)
        assert rows(opened, "attempts") == []


def test_sinks_and_views_make_no_store(tmp_path: Path) -> None:
    url = {"storeUrl": f"sqlite:///{tmp_path}/none.db"}
    sink = parse_sink_options({**url, "pipeline": "p", "path": str(tmp_path / "out")})
    with pytest.raises(SinkFailed, match="there is no such file"):
        pickle.dumps(CuesqueueStreamWriter(sink, StructType()))
    with pytest.raises(StoreConfigurationError, match="there is no such file"):
        view_schema(parse_view_options(url))
    for view in ("data", "errors"):
        with pytest.raises(StoreConfigurationError, match="there is no such file"):
            CuesqueueViewReader(parse_view_options({**url, "view": view}), StructType()).partitions()
    assert list(tmp_path.iterdir()) == []


def test_a_view_is_read_from_the_store_that_was_planned(tmp_path: Path) -> None:
    given = parse_view_options({"storeUrl": f"sqlite:///{tmp_path}/store.db", "view": "shards"})
    with open_store(given.store.reveal()) as opened:
        Pipeline.start(opened).open("a")
    reader = CuesqueueViewReader(given, view_schema(given))
    (partition,) = reader.partitions()
    assert isinstance(partition, ViewPartition)
    assert partition.store is not None
    assert sum(batch.num_rows for batch in reader.read(partition)) == 1
    with pytest.raises(StoreConfigurationError, match="another machine"):
        list(reader.read(replace(partition, store=elsewhere(partition.store))))
