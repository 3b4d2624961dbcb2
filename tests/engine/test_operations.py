"""A real query fills what `cuesqueue status` shows."""

from __future__ import annotations

import json

import pyspark
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import cuesqueue
from queue_source.commands.main import app
from support.engine.queries import described, settled, start
from support.engine.world import World

pytestmark = pytest.mark.engine


def status(world: World) -> cuesqueue.PipelineStatus:
    with cuesqueue.open_store(world.store_url) as store:
        [found] = cuesqueue.status(store)
        return found


def test_a_query_says_where_it_runs_what_it_holds_and_what_it_has_published(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    query = start(spark, described(world, trigger={"processingTime": "0 seconds"}))
    try:
        settled(world, query)
        running = status(world)
    finally:
        query.stop()
    assert running.state == "running"
    assert (running.spark_version, running.cuesqueue_version) == (pyspark.__version__, cuesqueue.__version__)
    assert running.host
    assert (running.total.objects, running.total.rows, running.files_outstanding) == (3, len(rows), 0)
    assert running.last_batch is not None
    assert running.last_batch.batch_id is not None
    assert running.last_hour.lag_p50 is not None
    assert running.last_hour.lag_p99 is not None
    assert 0 < running.last_hour.lag_p50 <= running.last_hour.lag_p99 < 300
    probe = CliRunner().invoke(app, ["status", "--store", world.store_url, "--json"])
    assert (probe.exit_code, json.loads(probe.stdout)["healthy"]) == (0, True), probe.output
