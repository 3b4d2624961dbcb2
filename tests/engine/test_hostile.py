"""Objects that are made to hurt, among good ones: a stream publishes the good ones at once, and ends by itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import groupby
from pathlib import Path

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from support.engine.queries import described, run
from support.engine.world import World
from support.hostile import Hostile

pytestmark = pytest.mark.engine

MEMORY = (512 + 512) << 20
"""Bytes of a worker, at most: its own, and what typed objects may take (`maxDecodeMemory`); those of text take less."""
MODULES = [name for name in ("typed", "text") if importlib.util.find_spec(f"support.hostile.{name}")]
WRITERS = {"avro": "org.apache.spark.sql.avro.AvroFileFormat"}


def groups(folder: Path, module: str) -> list[list[Hostile]]:
    """Objects that end as bad objects; those of one query together."""

    def key(one: Hostile) -> tuple[str, str]:
        return one.file_format, str(sorted(one.options.items()))

    found = import_module(f"support.hostile.{module}").objects(folder)
    bad = [one for one in found if one.cause in ("corrupt-object", "too-large-for-memory", "wrong-columns")]
    return [list(some) for _, some in groupby(sorted(bad, key=key), key)]


def largest(found: Sequence[list[Hostile]]) -> list[list[Hostile]]:
    """Of each format the group that has most objects, so that this test stays quick.

    integration/test_hostile_spark.py has the others; unit/formats/ reads every object, without Spark.
    """
    of_format = groupby(found, lambda some: some[0].file_format)
    return [max(those, key=len) for _, those in of_format]


def value(kind: DataType) -> str:
    """An expression of SQL for a value of a type."""
    if isinstance(kind, StructType):
        return "named_struct(" + ", ".join(f"'{field.name}', {value(field.dataType)}" for field in kind) + ")"
    if isinstance(kind, ArrayType):
        return f"array({value(kind.elementType)})"
    if isinstance(kind, MapType):
        return f"map({value(kind.keyType)}, {value(kind.valueType)})"
    return "'1'" if isinstance(kind, StringType) else f"CAST(1 AS {kind.simpleString()})"


def write_good(spark: SparkSession, folder: Path, one: Hostile, count: int) -> list[str]:
    """Good objects of the same format and schema, of one row each."""
    schema = StructType.fromDDL(one.options["schema"])
    assert isinstance(schema, StructType)
    columns = ", ".join(f"{value(field.dataType)} AS {field.name}" for field in schema)
    frame = spark.sql(f"SELECT {columns}")
    own = {name: text for name, text in one.options.items() if name != "schema"}
    uris = []
    for number in range(count):
        place = folder / f"good-{number}"
        writer = frame.coalesce(1).write.format(WRITERS.get(one.file_format, one.file_format))
        writer.options(**own).save(place.as_uri())
        uris += [path.as_uri() for path in place.glob("part-*")]
    return uris


def workers() -> dict[int, int]:
    """The workers of Spark that run now, and the most memory that each has taken."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            if "pyspark.daemon" in " ".join(process.cmdline()):
                status = Path(f"/proc/{process.pid}/status").read_text("ascii")
                peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
                found[process.pid] = int(peak.split()[1]) << 10
    return found


def publish_among_good(spark: SparkSession, world: World, some: Sequence[Hostile], *, loads: bool) -> None:
    folder = world.root / "in"
    folder.mkdir()
    good = write_good(spark, folder, some[0], 2)
    bad = {}
    for one in some:
        path = folder / one.name
        path.write_bytes(one.data)
        bad[path.as_uri()] = one.cause
    world.publish([good[0], *bad, good[1]])
    patient = {"visibilityTimeout": "5m", "commitTimeout": "60s"}
    options = {name: text for name, text in some[0].options.items() if name != "schema"}
    if loads:
        query = {**described(world, fileFormat=None, content="reference", **patient), "schema": ""}
        query["sink_options"] = world.sink(load=some[0].file_format, **some[0].options)
        run(spark, query)  # type: ignore[arg-type]
    else:
        by_rows = described(world, fileFormat=some[0].file_format, **patient, **options)
        run(spark, {**by_rows, "schema": some[0].options["schema"]})
    rows = spark.read.format("cuesqueue").option("store", world.store_url).load().count()
    assert rows == 2, some
    errors = {error["subject"]: error["cause"] for error in world.view("errors") if error["scope"] == "object"}
    assert errors == bad
    # in the first run: nothing was tried again, and no worker died of it
    assert {attempt["kind"] for attempt in world.view("attempts")} == {"attempt-output"}


def publish_each(spark: SparkSession, folder: Path, found: Sequence[list[Hostile]], *, loads: bool = False) -> None:
    """`loads`: by the sink's tasks, else as rows."""
    peaks: dict[int, int] = {}
    for number, some in enumerate(found):
        publish_among_good(spark, World(folder / f"world-{number}"), some, loads=loads)
        peaks.update(workers())
    assert peaks
    assert max(peaks.values()) < MEMORY, peaks


@pytest.mark.parametrize("module", MODULES)
def test_hostile_objects_harm_neither_their_neighbours_nor_the_workers(
    spark: SparkSession, tmp_path: Path, module: str
) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    publish_each(spark, tmp_path, largest(groups(tmp_path, module)))


def test_an_orc_file_that_ends_its_reader_s_process_is_found_among_its_neighbours(
    spark: SparkSession, tmp_path: Path
) -> None:
    """ORC's library takes memory for a dictionary without looking whether it got any."""
    from support.hostile import typed

    [deadly] = [one for one in typed.objects(tmp_path) if one.cause == "kills-its-reader"]
    world = World(tmp_path / "world")
    folder = world.root / "in"
    folder.mkdir()
    good = write_good(spark, folder, deadly, 8)
    bad = folder / deadly.name
    bad.write_bytes(deadly.data)
    world.publish([*good[:4], bad.as_uri(), *good[4:]])
    options = {name: text for name, text in deadly.options.items() if name != "schema"}
    query = described(world, fileFormat="orc", maxAttempts=1, **options)
    for _ in range(8):
        with suppress(StreamingQueryException):
            run(spark, {**query, "schema": deadly.options["schema"]})
            break
    assert spark.read.format("cuesqueue").option("store", world.store_url).load().count() == len(good)
    assert [(error["cause"], error["subject"]) for error in world.view("errors")] == [(deadly.cause, bad.as_uri())]
