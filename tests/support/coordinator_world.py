"""One SQL queue and one store in a folder of their own, and driver loops over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from queue_source.queues import Depth, open_queue
from shard_store.store import ShardStore, open_store
from support.buckets import MemoryStore
from support.driver_loop import DriverLoop, published, reader_options, states

EMPTY = Depth(ready=0, in_flight=0)


@dataclass
class World:
    """One queue and one store in a folder of their own, and an object store in memory."""

    folder: Path
    bucket: MemoryStore = field(default_factory=MemoryStore)

    @property
    def queue_url(self) -> str:
        return f"sql+sqlite:///{self.folder}/queue.db?queue=files"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def publish(self, *uris: str, group: str | None = None, tag: str = "") -> None:
        with open_queue(self.queue_url) as queue:
            queue.publish(list(uris), group=group, tag=tag)

    def depth(self) -> Depth:
        with open_queue(self.queue_url) as queue:
            return queue.depth()

    @contextmanager
    def loop(
        self,
        *,
        checkpoint: str = "checkpoint",
        publishes: bool = True,
        idempotent: bool = True,
        tells_start: bool = True,
        driver: str = "",
        skewed: bool = False,
        skew: float = 0.0,
        **options: str,
    ) -> Iterator[DriverLoop]:
        loop = DriverLoop(
            reader_options(self.queue_url, self.store_url, **options),
            self.folder / checkpoint,
            self.folder / "output",
            publishes=publishes,
            idempotent=idempotent,
            tells_start=tells_start,
            driver=driver,
            skewed=skewed,
            skew=skew,
            open_bucket=self.bucket.open,
        )
        try:
            yield loop
        finally:
            loop.stop()

    @contextmanager
    def store(self) -> Iterator[ShardStore]:
        with open_store(self.store_url) as store:
            yield store


@dataclass
class MovingWorld(World):
    """A world whose store may be somewhere else."""

    at: str = ""

    @property
    def store_url(self) -> str:
        return self.at or super().store_url


def uris(count: int, first: int = 0) -> list[str]:
    return [f"s3://bucket/{number}" for number in range(first, first + count)]


def patiently(loop: DriverLoop) -> Callable[[], None]:
    """A trigger, and a moment in which leases may end."""

    def step() -> None:
        loop.batch()
        time.sleep(0.05)

    return step


def assert_published_once(world: World, expected: list[str]) -> None:
    with world.store() as store:
        found = published(store)
        assert found == dict.fromkeys(expected, 1)
        assert states(store) == {"done": len(expected)}
