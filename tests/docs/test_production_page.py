"""docs/how-to/production.md: its policies are what the sinks ask for, and its steps erase a person and merge by key."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import cuesqueue
from docs.test_pages import Reader
from queue_source.commands.vacuum import vacuum
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import open_object
from shard_store.model import ErrorRecord
from shard_store.shards.activity import Report
from shard_store.store import open_store
from support.delta_tables import DeltaLake
from support.iceberg_tables import Query, table_of
from support.servers.iceberg_rest import rest_catalog_server
from support.servers.ministack import REGION, client, new_name
from support.servers.proxy import TcpProxy
from support.snippets import ROOT, Block, blocks
from support.store_backends import rows

PAGE = ROOT / "docs" / "how-to" / "production.md"
BLOCKS = blocks(PAGE)
KEYS = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test", "s3.region": REGION}
IN_A_MOMENT = timedelta(minutes=-1)


def block(language: str, word: str) -> Block:
    (found,) = [one for one in BLOCKS if one.language == language and word in one.text]
    return found


def allowed(word: str) -> set[str]:
    """The actions of the page's policy that contains the word."""
    actions: set[str] = set()
    for statement in json.loads(block("json", word).text)["Statement"]:
        named = statement["Action"]
        actions |= {named} if isinstance(named, str) else {*named}
    return actions


class Recorder(TcpProxy):
    """Remembers the method and the path of each HTTP request."""

    def __init__(self, target: str) -> None:
        self.requests: set[tuple[str, str]] = set()
        super().__init__(urlsplit(target).port or 80)

    def _cuts_at(self, data: bytes, client: object, server: object) -> bool:
        found = re.findall(rb"(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/1\.1\r\n", data)
        self.requests |= {(method.decode(), path.decode()) for method, path in found}
        return False


@contextmanager
def recorder(url: str) -> Iterator[Recorder]:
    with closing(Recorder(url)) as proxy:
        yield proxy


def as_s3_actions(requests: set[tuple[str, str]]) -> set[str]:
    """The names that policies have for requests of S3, whose paths are `/BUCKET/KEY?QUERY`."""
    actions = set()
    for method, path in requests:
        of_bucket = "/" not in path.partition("?")[0].strip("/")
        if of_bucket and method in ("GET", "HEAD"):
            actions.add("s3:ListBucket")
        elif method == "DELETE" or path.endswith("?delete"):
            actions.add("s3:AbortMultipartUpload" if "uploadId=" in path else "s3:DeleteObject")
        else:
            actions.add("s3:GetObject" if method in ("GET", "HEAD") else "s3:PutObject")
    return actions


@pytest.mark.parametrize("kind", ["delta", "table", "path"])
def test_a_sink_asks_for_what_the_policy_of_the_lake_allows_and_no_more(
    kind: str, ministack_url: str, tmp_path: Path, iceberg_threads: None
) -> None:
    bucket, store_url = new_name("lake"), f"sqlite:///{tmp_path}/store.db"
    with closing(client(ministack_url, "s3")) as s3:
        s3.create_bucket(Bucket=bucket)
    with recorder(ministack_url) as proxy, open_store(store_url) as store:
        url, place = f"http://127.0.0.1:{proxy.port}", f"s3://{bucket}/orders"
        options = {"storeUrl": store_url, "s3.endpointUrl": url, **KEYS}
        options |= {"table": "db.orders", "warehouse": place} if kind == "table" else {kind: place}
        query = Query(DeltaLake(store, options))
        query.batch(table_of([1]))
        query.batch(table_of([2]))
        asked = as_s3_actions(proxy.requests)
        if kind == "delta":
            service = {"aws_endpoint_url": url, "aws_region": REGION, "aws_allow_http": "true"}
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            table = DeltaTable(place, storage_options=service | keys)
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        if kind == "table":
            service = {"s3.endpoint": url, "s3.access-key-id": "test", "s3.secret-access-key": "test"}
            made = load_catalog("cuesqueue", type="sql", uri=store_url, **service).load_table("db.orders")
            limited = made.transaction().set_properties({"write.metadata.previous-versions-max": "1"})  # else 100
            limited.commit_transaction()
            query.batch(table_of([3]))
            query.batch(table_of([4]))
        if kind == "path":
            with closing(client(ministack_url, "s3")) as s3:
                s3.put_object(Bucket=bucket, Key=f"orders/split-{0:012x}-{0:032x}.parquet", Body=b"rows")
            storage = StorageOptions(url, REGION, "test", "test")
            assert vacuum(store, place, older_than=IN_A_MOMENT, storage=storage).removed
            with open_object(next(cuesqueue.published(store_url).paths()), storage) as file:
                assert pq.read_table(file).num_rows == 1
        maintained = as_s3_actions(proxy.requests)
        proxy.cut_all()
    wanted = allowed("arn:aws:s3:::lake") - {"s3:AbortMultipartUpload"}  # only when an upload fails
    assert asked <= wanted - {"s3:DeleteObject"}
    assert maintained == wanted


PEOPLE = pa.table({"id": [1, 2], "person": ["Ada", "Grace"]})
SINKS = {
    "delta": {"delta": "lake/orders"},
    "table": {"table": "db.orders", "warehouse": "lake/warehouse"},
    "path": {"path": "lake/files"},
}


def test_the_steps_of_the_page_leave_no_row_of_a_person(tmp_path: Path, iceberg_threads: None) -> None:
    url = f"sqlite:///{tmp_path}/cuesqueue.db"
    queries = {}
    with open_store(url) as store:
        for name, options in SINKS.items():
            places = {key: value if key == "table" else f"{tmp_path}/{value}" for key, value in options.items()}
            queries[name] = query = Query(DeltaLake(store, {"storeUrl": url, **places}), name)
            uri = f"s3://landing/ada/{name}.json"
            query.begin(uri)
            written = query.written(PEOPLE)
            assert query.plan is not None
            bad = ErrorRecord("record", "bad-record", "", uri, query.plan.identity.delivery_hash)
            store.record_errors(query.pipeline.source, name, [bad])
            query.commit(*written)
            query.end()
            store.retire(query.pipeline.token, Report(stopped=True))
    for file in (tmp_path / "lake").rglob("*.parquet"):
        os.utime(file, (0, 0))
    reader = Reader(tmp_path)
    reader.environment["CUESQUEUE_STORE"] = "sqlite:///cuesqueue.db"
    (tmp_path / "delta.py").write_text(block("python", 'DeltaTable("lake/orders")').text)
    (tmp_path / "iceberg.py").write_text(OPENED + block("python", "expire_snapshots").text)
    reader.run("python delta.py; python iceberg.py")
    reader.run(block("bash", "cuesqueue reset").text.replace("reset orders", "reset 'source of path'"))
    with open_store(url) as store:  # all queries go on; that of the files reads what is left once more
        for query in queries.values():
            query.lake.store = store
            query.restart()
            query.batch(PEOPLE.slice(1))
    reader.run(block("bash", "cuesqueue vacuum").text)
    reader.run(block("bash", "errors drop").text)
    assert pa.table(DeltaTable(str(tmp_path / "lake" / "orders")).scan()).column("person").to_pylist() == ["Grace"] * 2
    table = load_catalog("cuesqueue", type="sql", uri=url).load_table("db.orders")
    assert table.scan().to_arrow().column("person").to_pylist() == ["Grace"] * 2
    assert len(table.snapshots()) == 2
    found = [
        file for file in (tmp_path / "lake").rglob("*.parquet") if "Ada" in pq.read_table(file)["person"].to_pylist()
    ]
    assert [file.relative_to(tmp_path / "lake").parts[0] for file in found] == ["warehouse"]  # engines delete these
    with open_store(url) as store:
        assert rows(store, "errors") == []
        assert {row["shard_id"] for row in rows(store, "shards")} == {"object 1"}


OPENED = """
from datetime import datetime, timezone

from pyiceberg.catalog import load_catalog

table = load_catalog("cuesqueue", type="sql", uri="sqlite:///cuesqueue.db").load_table("db.orders")
"""
"""What the page of Iceberg has before."""


def test_a_rest_catalog_is_asked_for_what_the_policy_of_glue_allows_and_no_more(
    tmp_path: Path, iceberg_threads: None
) -> None:
    store_url = f"sqlite:///{tmp_path}/store.db"
    with (
        rest_catalog_server(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "lake")) as server,
        recorder(server.url) as proxy,
        open_store(store_url) as store,
    ):
        options = {"catalog.type": "rest", "catalog.uri": f"http://127.0.0.1:{proxy.port}", "table": "db.orders"}
        query = Query(DeltaLake(store, {"storeUrl": store_url, **options}))
        query.batch(table_of([1]))
        query.batch(table_of([2]))
        proxy.cut_all()
    assert {GLUE[method, path.partition("?")[0]] for method, path in proxy.requests} == allowed("glue:GetCatalog")


GLUE = {
    ("GET", "/v1/config"): "glue:GetCatalog",
    ("POST", "/v1/namespaces"): "glue:CreateDatabase",
    ("GET", "/v1/namespaces/db/tables/orders"): "glue:GetTable",
    ("POST", "/v1/namespaces/db/tables"): "glue:CreateTable",
    ("POST", "/v1/namespaces/db/tables/orders"): "glue:UpdateTable",
}
"""By AWS's page of the REST API, which action each request needs."""


@pytest.mark.engine
def test_the_merge_of_the_page_keeps_the_newest_row_of_each_key_also_if_it_is_repeated(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    (tmp_path / "merging.py").write_text(BEFORE_THE_MERGE + block("python", "def merge").text + AFTER_THE_MERGE)
    assert reader.run("PYTHONWARNINGS=ignore python merging.py").splitlines() == [
        "[{'id': 1, 'name': 'Ada', 'at': 3}, {'id': 2, 'name': 'Grace', 'at': 1}]",
        "[{'id': 1, 'name': 'Ada L.', 'at': 4}, {'id': 2, 'name': 'Grace', 'at': 1}]",
    ]


BEFORE_THE_MERGE = """
import pyarrow as pa
from pyspark.sql import SparkSession

STORE, TABLE, QUEUE = "sqlite:///people.db", "people", "sql+sqlite:///jobs.db?queue=people"
"""
AFTER_THE_MERGE = """
def twice(batch, batch_id):
    merge(batch, batch_id)
    merge(batch, batch_id)


DeltaTable.create(TABLE, pa.schema({"id": pa.int64(), "name": pa.string(), "at": pa.int64()}))
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
people = spark.readStream.format("cuesqueue").option("content", "message").option("queueUrl", QUEUE)
people = people.option("storeUrl", STORE).load().selectExpr(
    "from_json(CAST(value AS STRING), 'id BIGINT, name STRING, at BIGINT') AS row"
).select("row.*")
for each, rows in (
    (merge, [(1, "Ada B.", 1), (2, "Grace", 1), (1, "Ada", 3)]),
    (twice, [(1, "Ada L.", 4), (1, "Ada K.", 2)]),
):
    with cuesqueue.open_queue(QUEUE) as queue:
        queue.send([{"id": id, "name": name, "at": at} for id, name, at in rows])
    query = people.writeStream.foreachBatch(each).option("checkpointLocation", "checkpoint").trigger(availableNow=True)
    query.start().awaitTermination()
    print(sorted(pa.table(DeltaTable(TABLE).scan()).to_pylist(), key=lambda row: row["id"]))
"""
