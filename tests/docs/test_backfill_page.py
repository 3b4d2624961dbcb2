"""The page for those who leave Spark's file stream: a listing, then SQS, and each object once."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.servers.ministack import REGION, client, ministack_server
from support.snippets import ROOT, blocks

TEXT = [block.text for block in blocks(ROOT / "docs" / "how-to" / "backfill.md") if block.language == "python"]
_HEAD = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""
_TAIL = """
query = stream.writeStream.format("cuesqueue").option("pipeline", "orders").option("checkpointLocation", "checkpoint")
query.trigger(availableNow=True).start("published").awaitTermination()
rows = spark.read.format("cuesqueue").load()
print("rows:", sorted(row.id for row in rows.collect()))
"""


@pytest.mark.engine
def test_a_reader_that_lists_goes_over_to_sqs_and_reads_each_object_once(tmp_path: Path) -> None:
    lists, announced = (re.sub(r"(?m)^# before\n.*$", "", text) for text in TEXT)
    reader = Reader(tmp_path)
    with ministack_server() as url, closing(client(url, "s3")) as s3:
        reader.environment |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        s3.create_bucket(Bucket="landing")

        def put(number: int) -> None:
            s3.put_object(Bucket="landing", Key=f"orders/{number}.json", Body=b'{"id": %d, "name": "x"}' % number)

        def run(stream: str) -> str:
            (tmp_path / "query.py").write_text(_HEAD + stream + _TAIL, "utf-8")
            return reader.run("python query.py 2>>errors.log").strip()

        put(0)
        assert run(lists) == "rows: [0]"
        reader.run("cuesqueue setup aws s3://landing/orders/")
        put(1)
        reader.run("cuesqueue send sqs://cuesqueue-landing-orders s3://landing/orders/0.json")  # known by the listing
        assert run(announced) == "rows: [0, 1]"
