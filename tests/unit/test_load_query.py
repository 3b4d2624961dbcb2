"""What `cuesqueue load` asks of reader and sink: where the columns are kept that nobody has declared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_source.errors import OptionError
from queue_source.spark import load
from queue_source.spark.load import LoadQuery

TARGETS = ["/lake/orders", "db.orders", "delta:s3://lake/orders"]
OURS = "cuesqueue-schemas/orders"


def query(into: str = TARGETS[0], format: str = "json", schema: str | None = None, **options: Any) -> LoadQuery:
    options = {"warehouse": "/lake", **options} if into == "db.orders" else options
    return LoadQuery.of("sqs://orders", into, format, "s3://landing/", schema, "sqlite:////store.db", options)


def location(query: LoadQuery) -> str | None:
    return query.content.schema.schema_location


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("into", TARGETS)
@pytest.mark.parametrize("format", ["json", "csv", "parquet", "orc", "avro"])
def test_inferred_columns_are_kept_for_every_target_and_new_ones_are_added(
    into: str, format: str, folder: Path
) -> None:
    found = query(into, format)
    assert location(found) == f"{folder}/{OURS}"
    assert found.content.schema.adds_columns


@pytest.mark.parametrize("into", TARGETS)
@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [
        ("/mnt/checkpoint/", "/mnt/checkpoint"),
        ("file:///mnt/checkpoint", "file:///mnt/checkpoint"),
        ("file:/mnt/checkpoint", "/mnt/checkpoint"),
        ("s3a://lake/checkpoint", "s3a://lake/checkpoint"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("hdfs://name/checkpoint", None),
        ("hdfs:/checkpoint", None),
        ("dbfs:/checkpoint", None),
    ],
)
def test_they_are_kept_with_the_checkpoint_where_it_is_named_and_can_be_reached_without_spark(
    into: str, checkpoint: str, kept: str | None, folder: Path
) -> None:
    """A container, or an executor on another machine, has no other folder that stays."""
    assert location(query(into, checkpointLocation=checkpoint)) == (kept or f"{folder}/{OURS}")


def test_a_load_that_has_kept_columns_in_its_working_folder_goes_on_there(folder: Path) -> None:
    (folder / OURS).mkdir(parents=True)
    assert location(query(checkpointLocation="/mnt/checkpoint")) == f"{folder}/{OURS}"


@pytest.mark.parametrize("into", TARGETS)
def test_nothing_is_kept_of_columns_that_are_declared_and_of_formats_that_have_their_own(into: str) -> None:
    assert location(query(into, schema="id BIGINT")) is None
    assert location(query(into, "text")) is None
    assert location(query(into, schemaLocation="/mine")) == "/mine"


@pytest.mark.parametrize("mode", ["none", "rescue", "failOnNewColumns"])
def test_a_table_keeps_its_columns_itself_where_new_ones_are_not_added(mode: str, folder: Path) -> None:
    assert [location(query(into, schemaEvolutionMode=mode)) for into in TARGETS] == [f"{folder}/{OURS}", None, None]
    assert location(query(TARGETS[1], schemaEvolutionMode="addNewColumns")) == f"{folder}/{OURS}"


class Rows:
    """The stream of a session: it takes everything, and keeps the options that its writer was given."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return self if name in ("readStream", "writeStream") else lambda *_, **__: self

    def options(self, **given: str) -> Rows:
        self.given |= given
        return self


def test_with_spark_connect_the_checkpoint_has_to_be_named_and_has_the_columns_too(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The working folder here is perhaps one of another machine: what it has kept says nothing."""
    (folder / OURS).mkdir(parents=True)
    monkeypatch.setattr(load, "is_remote", lambda spark: True)
    monkeypatch.setattr(load, "SparkSession", SimpleNamespace)
    for into in TARGETS:
        spark: Any = Rows()
        with pytest.raises(OptionError, match=r"'checkpointLocation': is needed with Spark Connect"):
            query(into).start(spark, available_now=True)
        query(into, checkpointLocation="s3a://lake/checkpoint").start(spark, available_now=True)
        assert spark.given["schemaLocation"] == "s3a://lake/checkpoint"
    with pytest.raises(OptionError, match=r"'schemaLocation': is needed with Spark Connect"):
        query(checkpointLocation="hdfs://name/x").start(spark, available_now=True)
