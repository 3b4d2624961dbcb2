"""Bad options end before anything runs and say what to do; bad messages and objects harm only themselves."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import sum as sum_of
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.queues import Depth
from queue_source.read.partitions import MIN_PIECE
from support.engine.queries import Query, described, run, run_until_settled
from support.engine.world import World, eventually
from support.poison import DDL, good
from support.poison import corpus as poison_corpus

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queueUrI": "x", "queueUrl": None}, "did you mean 'queueUrl'"),
        ({"visibilityTimeout": "5 parsecs"}, "visibilityTimeout"),
        ({"visibilityTimeout": "1s"}, "the times must rise"),
        ({"queueUrl": None}, "queueUrl"),
        ({"fileFormat": "jsonn"}, "did you mean 'json'"),
        ({"fileFormat": None}, "fileFormat"),
    ],
)
def test_wrong_options_are_refused_when_the_query_starts(
    spark: SparkSession, world: World, options: dict[str, object], says: str
) -> None:
    query = described(world, "noop", **options)
    with pytest.raises(PySparkException) as caught:
        run(spark, query)
    assert says in str(caught.value)


def test_a_stream_without_a_schema_is_refused_by_load(spark: SparkSession, world: World) -> None:
    with pytest.raises(AnalysisException, match="a stream needs the columns of its objects"):
        spark.readStream.format("cuesqueue").options(**world.source()).load()


def test_a_sink_without_its_pipeline_is_refused(spark: SparkSession, world: World) -> None:
    query = described(world)
    del query["sink_options"]["pipeline"]
    with pytest.raises(PySparkException, match="option 'pipeline'"):
        run(spark, query)


def test_a_sink_with_another_pipeline_name_than_its_source_is_refused(spark: SparkSession, world: World) -> None:
    world.feed(0, 1)
    query = described(world)
    query["sink_options"]["pipeline"] = "filles"
    with pytest.raises(StreamingQueryException, match="no cuesqueue source named 'filles'"):
        run(spark, query)


@pytest.mark.parametrize("what", ["store", "queue"])
def test_a_store_or_queue_that_cannot_be_opened_fails_the_query_and_is_named(
    spark: SparkSession, world: World, what: str
) -> None:
    missing = world.root / "missing" / f"{what}.db"
    option = {"store": f"sqlite:///{missing}"} if what == "store" else {"queueUrl": f"sql+sqlite:///{missing}?queue=q"}
    query = described(world, "noop", **option)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, query)
    assert str(missing) in str(caught.value)


def longest_uri(folder: Path, name: str) -> Path:
    """A file whose path is as long as an object's key may be: 1,024 bytes, in parts of what a file system takes."""
    parts = [folder]
    while 1024 - len(bytes(parts[-1])) - 1 > 255:
        parts.append(parts[-1] / ("d" * min(200, 1024 - len(bytes(parts[-1])) - 1 - len(name) - 2)))
    left = 1024 - len(bytes(parts[-1])) - 1
    return parts[-1] / (name + "x" * (left - len(name)))


def test_bad_objects_and_messages_go_to_the_errors_and_all_else_is_published(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 2)
    folder = world.root / "in"
    names = ["with space", "plus+", "per%cent", "per%20cent", "ha#sh", "ques?tion", "ümlaut-ß-漢字-🦆", "q'uo\"te"]
    names = [f"{name}.json" for name in (*names, "back\\slash", "&amp;", "n" * 250)]
    files = [*(folder / name for name in names), longest_uri(folder, "long-")]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        row = (9000 + number, f"in {number}")
        file.write_text(json.dumps({"id": row[0], "name": row[1]}) + "\n", "utf-8")
        rows.append(row)
    (folder / "empty.json").touch()
    (folder / "broken.json").write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na', "utf-8")
    gone = f"file://{folder}/gone.json"
    elsewhere = "s3://forbidden/elsewhere.json"
    bodies = ["no notification at all", b"\xff\xfe\x00", json.dumps({"Records": [{"eventSource": "aws:s3"}]})]
    # a path may stand in a URI as it is, but for what a percent sign would mean there
    plain = [
        f"file://{file}" if number % 2 and "%" not in file.name else file.as_uri() for number, file in enumerate(files)
    ]
    world.publish([*plain, f"file://{folder}/empty.json"])
    world.publish([f"file://{folder}/broken.json", gone, elsewhere, *bodies])
    run_until_settled(spark, [(world, described(world, allowedPrefixes=f"file://{folder}/", mode="FAILFAST"))])
    assert world.published() == sorted(rows)
    errors = world.view("errors")
    assert all(error["final"] for error in errors)
    found = sorted((error["scope"], error["cause"]) for error in errors)
    assert found == [
        *[("message", "malformed-message")] * 3,
        ("message", "outside-prefixes"),
        ("object", "corrupt-object"),
        ("object", "missing-object"),
    ]
    assert {e["subject"] for e in errors if e["cause"] == "missing-object"} == {gone}
    assert any("starts with none of the allowed prefixes" in e["detail"] for e in errors)
    assert {bytes(e["input"]) for e in errors if e["scope"] == "message"} >= {b"\xff\xfe\x00"}
    states = [shard["state"] for shard in world.view("shards")]
    assert sorted(states) == ["done"] * (len(files) + 3) + ["quarantined"] * 2


def test_s3_notifications_name_objects_as_forms_do(spark: SparkSession, world: World) -> None:
    """Only that the way through Spark keeps what the parser found; its corpus is in tests/unit."""
    uris, _ = world.write(0, 1)
    bucket, key = "landing", "a b+c/ä.json"
    record = {"eventName": "ObjectCreated:Put", "eventSource": "aws:s3",
              "s3": {"bucket": {"name": bucket}, "object": {"key": quote(key), "size": 1}}}  # fmt: skip
    world.publish([json.dumps({"Records": [record]}), *uris])
    run_until_settled(spark, [(world, described(world))])
    (error,) = world.view("errors")
    assert f"s3://{bucket}/{key}" in error["detail"]


def test_truncated_parquet_and_other_columns_are_quarantined_with_their_cause(
    spark: SparkSession, world: World
) -> None:
    folder = world.root / "in"
    folder.mkdir()
    good = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    pq.write_table(good, folder / "good.parquet")
    pq.write_table(good.slice(0, 0), folder / "empty.parquet")
    pq.write_table(pa.table({"id": ["no", "numbers"], "name": ["a", "b"]}), folder / "columns.parquet")
    whole = (folder / "good.parquet").read_bytes()
    (folder / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "nothing.parquet").touch()
    world.publish([file.as_uri() for file in sorted(folder.iterdir())])
    run_until_settled(spark, [(world, described(world, fileFormat="parquet"))])
    assert world.published() == [(1, "a"), (2, "b")]
    causes = {Path(e["subject"]).name: (e["cause"], e["final"]) for e in world.view("errors")}
    assert causes == {
        "columns.parquet": ("corrupt-object", True),
        "truncated.parquet": ("corrupt-object", True),
    }, "nothing.parquet has no bytes: no rows and no error, as in Spark"


@pytest.mark.parametrize("loads", [False, True], ids=["rows", "load"])
def test_archives_within_archives_and_other_columns_are_refused_and_names_in_another_case_are_read(
    spark: SparkSession, world: World, loads: bool
) -> None:
    """Into a table whose columns are written in another case; `load` has no other schema."""
    folder, table = world.root / "in", world.root / "table"
    folder.mkdir()
    write_deltalake(str(table), pa.schema([("Id", pa.int64()), ("name", pa.string())]).empty_table())
    for number in range(3):
        (folder / f"{number}.json").write_text(f'[{{"id":{number},"NAME":"a"}},\n{{"ID":{10 + number},"name":"b"}}]')
    (folder / "trail.json").write_text('{"Records":[{"Id":7,"name":"c"}]}')
    with zipfile.ZipFile(folder / "zipped.json", "w") as archive:
        archive.write(folder / "0.json", "0.json")
    with zipfile.ZipFile(folder / "nested.json", "w") as archive:
        archive.write(folder / "0.json", "0.json")
        archive.write(folder / "zipped.json", "zipped.json")
    for name in ("tar.json", "tar.json.gz"):
        with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as tar:
            tar.add(folder / "0.json", "0.json")
    world.publish([file.as_uri() for file in folder.iterdir()])
    options = {"fileFormat": None, "content": "reference"} if loads else {"multiLine": True}
    query: Query = {**described(world, **options), "schema": "" if loads else "Id BIGINT, name STRING"}
    loading = {"load": "json", "multiLine": "true"} if loads else {}
    query["sink_options"] = world.sink(path=None, delta=table, **loading)
    run_until_settled(spark, [(world, query)])
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    expected = [(n, "a") for n in range(3)] + [(10 + n, "b") for n in range(3)]
    expected += 3 * [(0, "a"), (10, "b")]
    assert sorted((row["Id"], row["name"]) for row in rows) == sorted(expected)
    errors = {Path(e["subject"]).name: (e["cause"], "['Records']" in e["detail"]) for e in world.view("errors")}
    assert errors == {"trail.json": ("wrong-columns", True), "nested.json": ("archive", False)}
    assert [shard["state"] for shard in world.view("shards")].count("quarantined") == 2


def test_a_missing_object_fails_the_query_when_told_so_and_is_named(spark: SparkSession, world: World) -> None:
    gone = f"file://{world.root}/gone.json"
    rows = world.feed(0, 1)
    world.publish([gone])
    query: Query = described(world, onMissingObject="fail")
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, query)
    assert "missing-object" in str(caught.value)
    assert gone in str(caught.value)
    assert world.published() == []
    query["source"]["onMissingObject"] = "skip"
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)


def test_bad_records_are_told_and_final_and_large_objects_are_read_in_pieces(spark: SparkSession, world: World) -> None:
    folder = world.root / "in"
    folder.mkdir()
    count = 3 * MIN_PIECE // 16
    lines = [f"{i:07},name{i % 1000:03}" for i in range(count)]
    lines[count // 2] = "x" + lines[count // 2][1:]
    (folder / "large.csv").write_text("".join(f"{line}\n" for line in lines))
    schema = "id BIGINT, name STRING, _metadata STRUCT<file_block_start: BIGINT, file_block_length: BIGINT>"
    query = {**described(world, fileFormat="csv", mode="DROPMALFORMED", minPartitions="3"), "schema": schema}
    world.publish([(folder / "large.csv").as_uri()])
    run_until_settled(spark, [(world, query)])  # type: ignore[list-item]
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    by_piece = data.groupBy("_metadata").agg(*(count_of("*"), sum_of("id"))).collect()
    assert len(by_piece) == 3
    assert sum(row["_metadata"]["file_block_length"] for row in by_piece) == 16 * count
    assert sum(row[1] for row in by_piece) == count - 1
    assert sum(row[2] for row in by_piece) == count * (count - 1) // 2 - count // 2
    (error,) = world.view("errors")
    assert (error["scope"], error["cause"], error["final"]) == ("record", "bad-record", True)
    assert int(error["position"]) == 16 * (count // 2)
    assert [shard["state"] for shard in world.view("shards")] == ["done"]


def test_a_large_object_without_the_columns_is_bad_in_all_of_its_parts(spark: SparkSession, world: World) -> None:
    folder = world.root / "in"
    folder.mkdir()
    (folder / "large.json").write_text('{"other":"0123456789abcdef"}\n' * (3 * MIN_PIECE // 29))
    world.publish([(folder / "large.json").as_uri()])
    run_until_settled(spark, [(world, described(world, minPartitions="3"))])
    assert world.published() == []
    assert {(error["scope"], error["cause"]) for error in world.view("errors")} == {("part", "wrong-columns")}
    assert [shard["state"] for shard in world.view("shards")] == ["quarantined"]


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_no_poison_of_the_corpus_stops_a_stream(spark: SparkSession, world: World, file_format: str) -> None:
    folder = world.root / "in"
    folder.mkdir()
    poisons = [poison for poison in poison_corpus() if poison.file_format == file_format and "bomb" not in poison.name]
    for number, poison in enumerate(poisons):
        (folder / f"{number:03} {poison.name}").write_bytes(poison.data)
    (folder / "good").write_bytes(good(file_format))
    world.publish([f"file://{file}" for file in sorted(folder.iterdir())])
    modes = {} if file_format == "parquet" else {"mode": "DROPMALFORMED"}
    query = {**described(world, fileFormat=file_format, **modes), "schema": DDL}
    run_until_settled(spark, [(world, query)])  # type: ignore[list-item]
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    assert data.where("id = 7 AND name = 'good'").count() == 1
    verdicts: dict[str, set[str]] = {}
    for error in world.view("errors"):
        assert error["final"]
        verdicts.setdefault(Path(error["subject"]).name[4:], set()).add(error["scope"])
    expected = {"fine": None, "records": {"record"}, "no records": {"record"}, "object": {"object"}}
    for poison in poisons:
        assert verdicts.get(poison.name) == expected[poison.verdict], poison.name
    states = {Path(shard["shard_id"]).name[4:]: shard["state"] for shard in world.view("shards")}
    assert all((states[p.name] == "quarantined") == (p.verdict == "object") for p in poisons)


def test_what_a_wrong_prefix_refused_is_published_once_after_the_option_is_corrected_and_a_requeue(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 3)

    def cuesqueue(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments, "--store", world.store_url])
        assert done.exit_code == code, done.output
        return str(done.output)

    run(spark, described(world, allowedPrefixes=f"file://{world.root}/inn/"))
    assert (world.published(), world.depth()) == ([], Depth(0, 0))
    assert [error["cause"] for error in world.view("errors")] == ["outside-prefixes"] * 3
    eventually(
        "the last report of the reader",
        lambda: CliRunner().invoke(app, ["status", "--store", world.store_url]).exit_code == 3,
    )
    assert "nothing is read" in cuesqueue("status", code=3)
    cuesqueue("errors", "requeue", "--cause", "outside-prefixes")
    run(spark, described(world, allowedPrefixes=f"file://{world.root}/in/"))
    assert world.published() == sorted(rows)
    assert "unhealthy" not in cuesqueue("status")


@pytest.mark.parametrize("wrong", [{"pipeline": "filles"}, {"path": "/proc/nowhere"}], ids=["pipeline", "path"])
def test_the_messages_of_a_query_whose_sink_fails_at_its_start_go_back_at_once(
    spark: SparkSession, world: World, wrong: dict[str, str]
) -> None:
    rows = world.feed(0, 20)
    query = described(world, visibilityTimeout="5m", commitTimeout="60s")
    with pytest.raises(StreamingQueryException):
        run(spark, {**query, "sink_options": {**query["sink_options"], **wrong}})
    eventually("all messages can be received again", lambda: world.depth() == Depth(20, 0), patience=10.0)
    run(spark, query)
    assert (world.published(), world.depth()) == (sorted(rows), Depth(0, 0))
