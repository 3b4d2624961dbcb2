"""Spark Connect: the package is installed where the server and its executors run, and the client needs Spark alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.engine.cluster import HOST, Cluster
from support.engine.cluster import environment as programs_environment
from support.engine.cluster import settings as cluster_settings
from support.engine.cluster_fixtures import cluster, installed_code, shared_world, shipped_code, started_cluster
from support.engine.code import Code
from support.engine.harness import HOME
from support.engine.queries import SETTINGS as SESSION
from support.engine.queries import described
from support.engine.world import World, eventually
from support.servers.fixtures import postgres_url
from support.servers.postgres import new_database
from support.servers.programs import end, free_port

__all__ = [  # the fixtures
    "cluster",
    "installed_code",
    "postgres_url",
    "shared_world",
    "shipped_code",
    "started_cluster",
]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@contextmanager
def connect_server(folder: Path, master: str, code: Code) -> Iterator[str]:
    """A Spark Connect server whose Python processes, and those of its executors, find the package installed."""
    port = free_port()
    binding = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": HOST}
    settings = {**SESSION, **cluster_settings(), **binding}
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-submit"), "--class", server, "--master", master, *given],
            cwd=folder,
            # Spark gives this server the memory of its daemons
            env={**programs_environment(), "SPARK_DAEMON_MEMORY": "1g", "PYSPARK_PYTHON": str(code.python)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually("the server's port", lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, "the server ended at once"
        yield f"sc://{HOST}:{port}"
    finally:
        end(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        sys.stderr.write((folder / "server.log").read_text("utf-8", "replace")[-6000:])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_a_client_of_spark_connect_gets_each_row_once_with_a_sink_with_foreach_batch_and_by_reference(
    tmp_path: Path, cluster: Cluster, installed_code: Code, shipped_code: Code, shared_world: World, postgres_url: str
) -> None:
    files = shared_world
    batches, objects = (World(tmp_path / name, store=new_database(postgres_url)) for name in ("batches", "objects"))
    rows = {world.root: world.feed(0, 4) for world in (files, batches, objects)}
    corrupt = files.root / "in" / "corrupt.json"
    corrupt.write_text("{")
    files.publish([corrupt.as_uri()])
    by_reference = described(objects, fileFormat=None, content="reference")
    queries = [described(files, mode="FAILFAST"), described(batches), by_reference]
    (tmp_path / "queries.json").write_text(json.dumps(queries))
    for world in (batches, objects):
        with connected(world) as connection:
            connection.execute(sa.text("CREATE TABLE taken (id BIGINT, name TEXT)"))
    with connect_server(tmp_path, cluster.url, installed_code) as url:
        script = Path(__file__).parents[1] / "tests" / "support" / "engine" / "connect_client.py"
        client = subprocess.run(
            [str(shipped_code.python), str(script), url, str(tmp_path)],  # it knows no more than Spark
            env=programs_environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert client.returncode == 0, client.stderr[-6000:]
    views = json.loads((tmp_path / "views.json").read_text("utf-8"))
    assert [tuple(row) for row in views["rows"]] == sorted(rows[files.root])
    assert views["causes"] == ["corrupt-object"]
    for world in (batches, objects):
        with connected(world) as connection:
            taken = connection.execute(sa.text("SELECT id, name FROM taken ORDER BY id, name")).all()
        assert [tuple(row) for row in taken] == sorted(rows[world.root])
    for world in (files, batches, objects):
        assert world.settled()


CLIENT_WITH_RELATIVE_PATHS = """
import json, sys
from pyspark.sql import SparkSession

url, (query,) = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.remote(url).getOrCreate()
said = []
for store in ({}, {"storeUrl": query["source"]["store"]}):
    try:
        spark.read.format("cuesqueue").options(**store, view="shards").load().collect()
    except Exception as error:
        said.append(str(error))
rows = spark.readStream.format("cuesqueue").options(**query["source"]).schema("id BIGINT, name STRING").load()
sink = rows.writeStream.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).format("cuesqueue")
try:
    sink.options(**query["sink_options"]).start("published").awaitTermination()
except Exception as error:
    said.append(str(error))
sink.options(**query["sink_options"]).start(sys.argv[3]).awaitTermination()
print(json.dumps(said))
"""


def test_relative_paths_are_refused_and_what_was_announced_is_published_with_absolute_ones(
    tmp_path: Path, installed_code: Code, shipped_code: Code
) -> None:
    world = World(tmp_path / "world")
    rows = world.feed(0, 2)
    query = described(world)
    del query["sink_options"]["path"]
    with connect_server(tmp_path, "local[2]", installed_code) as url:
        arguments = [url, json.dumps([query]), str(tmp_path / "published")]
        client = subprocess.run(
            [str(shipped_code.python), "-c", CLIENT_WITH_RELATIVE_PATHS, *arguments],
            env=programs_environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert client.returncode == 0, client.stderr[-6000:]
    default, no_store_yet, path = json.loads(client.stdout)
    assert "option 'storeUrl': 'sqlite:///cuesqueue.db' is relative" in default
    assert "there is no such file" in no_store_yet
    assert "option 'path': 'published' is relative" in path
    assert world.published() == sorted(rows)
    assert {Path(split["path"]).parent for split in world.view("splits")} == {tmp_path / "published"}


LOADED = """
import json, sys
import cuesqueue
from pyspark.sql import SparkSession

query = json.loads(sys.argv[1])
spark = SparkSession.builder.remote("local[2]").getOrCreate()
source, store = query["source"], query["source"]["store"]
arguments = (source["queueUrl"], sys.argv[2])
options = {"format": "json", "prefixes": source["allowedPrefixes"], "store": store, "spark": spark}
said, numbers = "", []
try:
    cuesqueue.load(*arguments, **options)
except cuesqueue.OptionError as error:
    said = str(error)
listener = cuesqueue.ProgressListener(export=numbers.append)
spark.streams.addListener(listener)
cuesqueue.load(*arguments, **options, checkpointLocation=query["checkpoint"]).awaitTermination()
view = spark.read.format("cuesqueue").option("storeUrl", store).load()
rows = [list(row) for row in view.select("id", "name").collect()]
spark.streams.removeListener(listener)
print(json.dumps([said, sorted(rows), sum(one["numInputRows"] for one in numbers)]))
"""


def test_load_with_a_session_of_connect_is_told_its_folders_and_a_listener_has_its_numbers(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    rows = world.feed(0, 2)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(described(world)), str(tmp_path / "out")],
        cwd=tmp_path,
        env=programs_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    said, loaded, objects = json.loads(done.stdout.splitlines()[-1])
    assert said.startswith("option 'checkpointLocation': is needed with Spark Connect")
    assert [tuple(row) for row in loaded] == sorted(rows)
    assert objects == 2


@contextmanager
def connected(world: World) -> Iterator[sa.Connection]:
    engine = sa.create_engine(world.store_url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()
