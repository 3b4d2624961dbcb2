"""`cuesqueue.load` without a declared schema: what objects get on a later day is loaded, into every target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import cuesqueue
from shard_store.store import open_store
from support.engine.world import World
from support.iceberg_tables import Lake
from support.store_backends import rows

pytestmark = pytest.mark.engine

DAYS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "channel": "web"}, {"id": 3, "name": "c", "more": "x"}]


def write(path: Path, row: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif path.suffix == ".csv":
        path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n", "utf-8")
    else:
        path.write_text(json.dumps(row), "utf-8")
    return path.as_uri()


def read(world: World, into: str) -> list[dict[str, Any]]:
    with open_store(world.store_url) as store:
        if into.startswith("delta:"):
            table = DeltaTable(into.removeprefix("delta:")).to_pyarrow_table()
        elif into == "db.orders":
            table = Lake(store, {}, {"type": "sql", "uri": world.store_url}, into).table().scan().to_arrow()
        else:
            files = [pq.read_table(split["path"]) for split in rows(store, "splits")]
            table = pa.concat_tables(files, promote_options="default")
    return [
        {name: value for name, value in row.items() if value not in (None, "")}
        for row in table.sort_by("id").to_pylist()
    ]


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("place", ["path", "table", "delta"])
def test_a_column_that_comes_on_the_second_day_is_loaded_without_a_word_about_schemas(
    spark: SparkSession, world: World, iceberg_threads: None, place: str, format: str
) -> None:
    """The query ends with new columns, and is started by the next run: also where more objects have come by then."""
    into = {"path": f"{world.root}/out", "table": "db.orders", "delta": f"delta:{world.root}/table"}[place]
    options: dict[str, Any] = {"warehouse": str(world.root / "lake")} if place == "table" else {}
    options |= {"header": "true", "schemaHints": "id BIGINT"} if format == "csv" else {}

    def run() -> None:
        query = cuesqueue.load(
            world.queue_url,
            into,
            format=format,
            prefixes=f"file://{world.root}/",
            store=world.store_url,
            spark=spark,
            waitTime="1s",
            checkpointLocation=str(world.root / "checkpoint"),
            **options,
        )
        query.awaitTermination()

    uris = [write(world.root / "in" / f"{number}.{format}", row) for number, row in enumerate(DAYS)]
    world.publish(uris[:1])
    run()
    world.publish(uris[1:2])
    with pytest.raises(StreamingQueryException, match="lacks: channel STRING"):
        run()
    world.publish(uris[2:])
    with pytest.raises(StreamingQueryException, match="lacks: more STRING"):
        run()
    run()
    assert read(world, into) == DAYS
    assert world.view("errors") == []
