"""Queues of a user's own under a real Spark: a class that the program registers brings them to every process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

import cuesqueue
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine


def test_a_registered_class_reads_and_writes_queues_of_its_own(spark: SparkSession, world: World) -> None:
    """The factory is known to this process and to none of Spark's: it travels with the class."""
    folder = str(world.root)

    def shop_queue(url: str, **options: Any) -> object:
        return cuesqueue.open_queue(f"sql+sqlite:///{folder}/shop.db?queue={url.rpartition('/')[2]}", **options)

    class ShopSource(cuesqueue.CuesqueueSource):
        queues: ClassVar[Mapping[str, Callable[..., object]]] = {"shop": shop_queue}

        @classmethod
        def name(cls) -> str:
            return "shop"

    spark.dataSource.register(ShopSource)
    with cuesqueue.open_queue(f"sql+sqlite:///{folder}/shop.db?queue=orders") as queue:
        queue.send(["one", "two"])
    source = {"queueUrl": "shop://here/orders", "content": "message", "store": world.store_url, "waitTime": "1s"}
    orders = spark.readStream.format("shop").options(**source).load().select("value")
    sink = orders.writeStream.format("shop").options(queueUrl="shop://here/copies", pipeline="orders")
    sink = sink.options(store=world.store_url, checkpointLocation=str(world.root / "checkpoint"))
    with cuesqueue.open_queue(f"sql+sqlite:///{folder}/shop.db?queue=copies") as copies:

        def read_and_copied() -> bool:
            sink.trigger(availableNow=True).start().awaitTermination()
            return copies.depth().ready == 2

        eventually("both copies", read_and_copied)
        assert sorted(one.body for one in copies.receive(10, 60, 0)) == [b"one", b"two"]
