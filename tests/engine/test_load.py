"""Objects are loaded without rows in a real query: into files and tables, whole, in parts, and in one call."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import cuesqueue
from engine.test_announced_again import write
from queue_source.commands.main import app
from shard_store.store import open_store
from support.engine.queries import described, run_until_settled, start
from support.engine.world import PATIENCE, SCHEMA, World, eventually
from support.iceberg_tables import Lake
from support.store_backends import rows

pytestmark = pytest.mark.engine


def published_rows(world: World) -> list[tuple[int, str]]:
    """What the store knows, read by pyarrow."""
    with open_store(world.store_url) as store:
        paths = [split["path"] for split in rows(store, "splits")]
    read = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted((row["id"], row["name"]) for row in read)


def test_one_call_loads_what_is_announced_and_a_bad_object_harms_only_itself(spark: SparkSession, world: World) -> None:
    written = world.feed(0, 5)
    spoiled = world.root / "in" / "spoiled.json"
    spoiled.write_text('{"id": 7, "name": "seven"}\n{"id": \n', "utf-8")
    world.publish([spoiled.as_uri(), f"file://{world.root}/in/missing.json", f"file://{world.root}/in/0.json"])
    query = cuesqueue.load(
        world.queue_url,
        str(world.root / "out"),
        format="json",
        prefixes=f"file://{world.root}/",
        schema=spark.createDataFrame([], SCHEMA).schema,
        store=world.store_url,
        spark=spark,
        mode="DROPMALFORMED",
        waitTime="1s",
        checkpointLocation=str(world.root / "checkpoint"),
    )
    query.awaitTermination()
    assert published_rows(world) == sorted([*written, (7, "seven")])
    view = spark.read.format("cuesqueue").option("storeUrl", world.store_url).load()
    assert sorted((row.id, row.name) for row in view.collect()) == published_rows(world)
    assert sorted(error["cause"] for error in world.view("errors")) == ["bad-record", "missing-object"]
    assert world.open_shards() == []


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_object_is_loaded_in_parts_by_tasks_and_by_batches(
    spark: SparkSession, world: World, iceberg_threads: None, declared: bool
) -> None:
    """Declared columns without the fields of a part: then each range is one piece."""
    folder = world.root / "in"
    folder.mkdir()
    lines = [f"{number},name of {number}" for number in range(400_000)]
    (folder / "large.csv").write_text("\n".join(["id,name", *lines]), "utf-8")
    (folder / "small.csv").write_text("id,name\n-1,small", "utf-8")
    world.publish([(folder / "large.csv").as_uri(), (folder / "small.csv").as_uri()])
    options = {"content": "reference", "fileFormat": "csv", "maxBytesPerTrigger": "6m", "maxPartitionBytes": "1m"}
    query = {**described(world, header="true", **options), "schema": "uri STRING, size LONG, etag STRING" * declared}
    where = "file_block_start BIGINT"
    query["sink_options"] = world.sink(
        path=None,
        table="db.events",
        warehouse=world.root / "lake",
        load="csv",
        header="true",
        schema=f"{SCHEMA}, _metadata STRUCT<{where}>",
    )
    run_until_settled(spark, [(world, query)])  # type: ignore[list-item]
    with open_store(world.store_url) as store:
        table = Lake(store, {}, {"type": "sql", "uri": world.store_url}).table().scan().to_arrow()
        assert len(rows(store, "attempts")) > 1
    assert sorted(table["id"].to_pylist()) == list(range(-1, 400_000))
    starts = {row["file_block_start"] for row in table["_metadata"].to_pylist()}
    assert (len(starts) >= 6) is (not declared)
    assert world.view("errors") == []


@pytest.mark.parametrize(("condition", "published"), [("NOT endswith(uri, '1.json')", 3), ("false", 0)])
def test_what_a_query_filters_before_it_is_loaded_is_left_out_of_what_is_published(
    spark: SparkSession, world: World, condition: str, published: int
) -> None:
    """Of a filter that is never true Spark asks for no plan at all."""
    world.publish([write(world.root / "in" / f"{number}.json", (number, "x")) for number in range(4)])
    stream = spark.readStream.format("cuesqueue").options(**world.source(content="reference", fileFormat=None))
    query = (
        stream.load()
        .where(condition)
        .writeStream.format("cuesqueue")
        .options(**world.sink(load="json", schema=SCHEMA))
        .option("checkpointLocation", str(world.root / "checkpoint"))
    )
    for _ in range(2):  # a batch without a plan is finished by the next start
        query.trigger(availableNow=True).start().awaitTermination()
    assert len(published_rows(world)) == published
    report = CliRunner().invoke(
        app, ["reconcile", f"file://{world.root}/in/", "--store", world.store_url, "--grace", "0s", "--json"]
    )
    (found,) = json.loads(report.stdout)["prefixes"]
    assert (found["published"], found["left_out"], found["objects"]) == (published, 4 - published, published)


def test_a_query_that_repeats_rows_in_other_tasks_is_refused_and_publishes_nothing(
    spark: SparkSession, world: World
) -> None:
    world.feed(0, 4)
    stream = (
        spark.readStream.format("cuesqueue")
        .options(**world.source(content="reference", fileFormat=None))
        .load()
        .selectExpr("*", "explode(sequence(1, 8)) AS copy")
        .repartition(4, "copy")
    )
    query = (
        stream.writeStream.format("cuesqueue")
        .options(**world.sink(load="json", schema=SCHEMA))
        .option("checkpointLocation", str(world.root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="by two tasks of a batch"):
        query.awaitTermination()
    assert published_rows(world) == []


def test_a_wrong_option_of_the_sink_is_refused_with_its_name(spark: SparkSession, world: World) -> None:
    world.feed(0, 1)
    query = {**described(world, fileFormat=None, content="reference"), "schema": ""}
    query["sink_options"] = world.sink(load="json")
    running = start(spark, query)  # type: ignore[arg-type]
    with pytest.raises(StreamingQueryException, match=r"option 'schema': is needed to load objects into a folder"):
        running.awaitTermination()


def test_the_command_loads_what_it_finds_and_tells_what_it_did(world: World) -> None:
    written = world.write(0, 3)[1]
    (world.root / "in" / "bad.json").write_text('{"id": ', "utf-8")
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load"]
    command += ["--prefix", f"file://{world.root}/in/", "--path", f"{world.root}/out", "--format", "json", "--json"]
    command += ["--store", world.store_url, "--option", "source=files", "--option", "mode=DROPMALFORMED"]

    unset = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
    elsewhere = {**unset, "PATH": os.defpath}  # where `python3` has no cuesqueue

    def run(*more: str) -> tuple[int, dict[str, object], str]:
        done = subprocess.run(
            [*command, *more], cwd=world.root, env=elsewhere, capture_output=True, text=True, check=False, timeout=300
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    code, seen, _ = run("--dry-run")
    assert code == 0
    assert (seen["columns"], len(seen["next_objects"])) == ("`id` BIGINT, `name` STRING", 4)  # type: ignore[arg-type]
    assert not (world.root / "store.db").exists()
    code, told, errors = run("--max-errors", "0")
    assert code == 3, errors
    assert (told["objects"], told["rows"], told["errors"]) == (4, len(written), {"bad-record": 1})
    assert published_rows(world) == sorted(written)
    code, told, errors = run("--option", "checkpointLocation=" + str(Path(world.root, "other")))
    assert (code, told["objects"], told["rows"], told["errors"]) == (0, 0, 0, {}), errors
    code, _, errors = run("--option", "frobnicate=1")
    assert code == 2
    assert errors.splitlines()[-1] == (
        "error: option 'frobnicate': is unknown to load; see docs/reference/options.md for all options"
    )


@pytest.mark.parametrize(("place", "kills"), [("path", False), ("table", True), ("delta", True)])
def test_the_command_goes_on_when_objects_have_new_columns(
    world: World, iceberg_threads: None, place: str, kills: bool
) -> None:
    """As often as needed. After a kill the batch that failed is read again, by its plan."""
    days = [{"id": day, f"a{day}": day, f"b{day}": {"x": "y"}} for day in range(4)]
    (world.root / "in").mkdir()
    for day, row in enumerate(days):
        (world.root / "in" / f"{day}.json").write_text(json.dumps(row), "utf-8")
    into = {"path": f"{world.root}/out", "table": "db.events", "delta": f"{world.root}/out"}[place]
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load", f"--{place}", into]
    command += ["--prefix", f"file://{world.root}/in/", "--format", "json", "--json", "--store", world.store_url]
    options = {"source": "files", "maxFilesPerTrigger": 1, "schemaLocation": (world.root / "schemas").as_uri()}
    options |= {"warehouse": world.root / "lake"} if place == "table" else {}
    command += [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    lines, hashes = list[str](), set[str]()

    def begin() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=world.root, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    if kills:
        with begin() as running:
            assert running.stderr is not None
            lines.append(next(line for line in running.stderr if "going on" in line))
            os.killpg(running.pid, signal.SIGKILL)
        with open_store(world.store_url) as store:
            hashes = {status.plan.delivery_hash for status in store.status() if status.plan}
    with begin() as running:
        printed, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    lines += [line for line in errors.splitlines() if "going on" in line]
    of_days = {f"2 columns added: a{day} BIGINT, b{day} STRUCT<`x`: STRING>; going on" for day in range(4)}
    assert len(lines) == len(of_days & {line.rstrip() for line in lines}) == 3  # those of the first were inferred
    result = json.loads(printed)
    assert (result["objects"], result["rows"], result["errors"]) == (4 - kills, 4 - kills, {})
    with open_store(world.store_url) as store:
        if place == "path":
            tables = [pq.read_table(split["path"]) for split in rows(store, "splits")]
            table = pa.concat_tables(tables, promote_options="default")
        elif place == "table":
            table = Lake(store, {}, {"type": "sql", "uri": world.store_url}).table().scan().to_arrow()
        else:
            table = DeltaTable(into).to_pyarrow_table()
    loaded = table.sort_by("id").to_pylist()
    assert [{name: value for name, value in row.items() if value is not None} for row in loaded] == days
    assert hashes <= {attempt["delivery_hash"] for attempt in world.view("attempts")}
    assert (len(hashes), world.view("errors")) == (kills, [])


def test_many_new_columns_in_one_object_take_few_starts(world: World) -> None:
    (world.root / "in").mkdir()
    records = [{"id": number, f"column_{number}": number} for number in range(12)]
    (world.root / "in" / "a.json").write_text("\n".join(map(json.dumps, records)), "utf-8")
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load", "--format", "json"]
    command += ["--prefix", f"file://{world.root}/in/", "--path", f"{world.root}/out", "--store", world.store_url]
    options = {"source": "files", "schemaSampleBytes": "1k", "schemaLocation": (world.root / "schemas").as_uri()}
    command += [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    done = subprocess.run(command, cwd=world.root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("going on") < 5
    with open_store(world.store_url) as store:
        (split,) = rows(store, "splits")
    assert len(pq.read_schema(split["path"]).names) == 14


def text_of(terminal: int) -> Iterator[str]:
    """What is written to its other end, until that is closed."""
    try:
        while data := os.read(terminal, 4096):
            yield data.decode(errors="replace")
    except OSError:  # how Linux says so
        pass
    finally:
        os.close(terminal)


def test_the_command_shows_on_a_terminal_how_far_it_is(world: World) -> None:
    """What it leaves behind are the numbers, and where errors are found."""
    written = world.write(0, 3)[1]
    (world.root / "in" / "bad.json").write_text('{"id": ', "utf-8")
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load"]
    command += ["--prefix", f"file://{world.root}/in/", "--path", f"{world.root}/out", "--format", "json"]
    command += ["--store", world.store_url, "--option", "source=files", "--schema", SCHEMA]
    command += ["--option", "mode=DROPMALFORMED"]
    ours, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(
        command, cwd=world.root, stdout=subprocess.PIPE, stderr=terminal, text=True, env=environment
    ) as running:
        os.close(terminal)
        screen = "".join(text_of(ours))
        printed = running.communicate(timeout=PATIENCE)[0]
    assert running.returncode == 0, screen
    assert "4/4" in screen
    assert f"{len(written)} rows, 0.0 MB, 1 errors" in screen
    assert "'cuesqueue errors list' with this store" in screen
    assert "4/4" not in printed


def test_the_command_that_watches_ends_in_order_when_it_is_terminated(world: World) -> None:
    """As a service's manager does it: Java gets the same signal. New columns have not ended it."""
    written = [*world.write(0, 3)[1], (4, "x"), (5, "y")]
    for number, name in written[-2:]:
        record = {"id": number, "name": name, f"new{number}": True}
        (world.root / "in" / f"{number}.json").write_text(json.dumps(record), "utf-8")
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load", "--watch"]
    command += ["--prefix", f"file://{world.root}/in/", "--path", f"{world.root}/out", "--format", "json", "--json"]
    command += ["--store", world.store_url, "--option", "source=files", "--option", "maxFilesPerTrigger=1"]
    with subprocess.Popen(
        command, cwd=world.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        eventually("published", lambda: (world.root / "store.db").exists() and len(world.view("attempts")) == 5)
        os.killpg(running.pid, signal.SIGTERM)
        printed, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, errors
    assert "py4j" not in errors
    assert "KeyboardInterrupt" not in errors
    assert "Traceback" not in errors
    assert "1 column added: new" in errors
    assert json.loads(printed)["rows"] == len(written)
    assert published_rows(world) == sorted(written)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_load_that_a_signal_ends_says_so_and_what_is_unread_and_the_next_one_goes_on(
    world: World, number: signal.Signals
) -> None:
    """As `timeout`, systemd and Airflow end it: with all processes of its group."""
    written = world.write(0, 60)[1]
    command = [sys.executable, "-c", "from queue_source.commands.main import run; run()", "load"]
    command += ["--prefix", f"file://{world.root}/in/", "--path", f"{world.root}/out", "--format", "json", "--json"]
    command += ["--store", world.store_url, "--schema", SCHEMA]
    command += ["--option", "source=files", "--option", "maxFilesPerTrigger=5"]
    with subprocess.Popen(
        command,
        cwd=world.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # tests that `nohup` runs ignore SIGHUP
    ) as running:
        eventually("published", lambda: (world.root / "store.db").exists() and world.view("attempts"))
        os.killpg(running.pid, number)
        printed, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + number, errors
    last = errors.splitlines()[-1]
    unread = 60 - json.loads(printed)["objects"]
    assert 0 < unread < 60
    assert last == f"error: stopped by {number.name}, {unread} objects unread; the next run goes on"
    assert "Traceback" not in errors
    again = subprocess.run(command, cwd=world.root, capture_output=True, text=True, check=True)
    assert "Traceback" not in again.stderr
    assert json.loads(again.stdout)["objects"] == unread
    assert published_rows(world) == sorted(written)


def test_a_load_whose_java_is_killed_says_so(world: World) -> None:
    """As the system does it when memory runs out."""
    world.write(0, 60)
    command = [sys.executable, "-m", "cuesqueue", "load", "--prefix", f"file://{world.root}/in/", "--format", "json"]
    command += ["--path", f"{world.root}/out", "--store", world.store_url, "--schema", SCHEMA]
    command += ["--option", "source=files", "--option", "maxFilesPerTrigger=5"]
    with subprocess.Popen(
        command, cwd=world.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        eventually("published", lambda: (world.root / "store.db").exists() and world.view("attempts"))
        (java,) = [child for child in psutil.Process(running.pid).children() if "java" in child.name()]
        java.kill()
        printed, errors = running.communicate(timeout=PATIENCE)
    assert (running.returncode, "not all is loaded" in printed) == (1, True)
    assert errors.splitlines()[-1].startswith("error: Spark's Java process has ended")
    assert "Traceback" not in errors
