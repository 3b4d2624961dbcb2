"""Publishing while another process prunes a big table, against the same without it: pruning must stay in the noise.

The noise is measured in the same run: batches without pruning against batches without pruning.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from benchmarks.store import Batches, databases, fill, table_size
from shard_store.store import ShardStore, open_store
from shard_store.upkeep.pruning import RetentionPolicy


@dataclass
class Scene:
    """One store with `size` old shards, and a pipeline that runs `times` batches of 1,000 beside them."""

    url: str
    store: ShardStore
    size: int
    times: int
    removed: list[float] = field(default_factory=list)  # shards a second, of each run

    def __post_init__(self) -> None:
        self._batches = Batches(self.store)

    def alone(self) -> float:
        fill(self.store, self.size)
        return self._run()

    def pruned(self) -> float:
        fill(self.store, self.size)
        with _pruner(self.url):
            before, _ = table_size(self.store)
            seconds = self._run()
            left, _ = table_size(self.store)
        self.removed.append((before + self.times * 1000 - left) / seconds)
        return seconds

    def _run(self) -> float:
        began = time.perf_counter()
        for _ in range(self.times):
            self._batches.run(1000)
        return time.perf_counter() - began


@benchmark("store-pruning")
def store_pruning(settings: Settings) -> Iterator[Measurement]:
    """Batches of 1,000 while another process prunes a big table, against the same without pruning."""
    size, times = (20_000, 5) if settings.quick else (200_000, 15)
    for name, url in databases(settings.folder):
        with url as address, open_store(address) as store:
            scene = Scene(address, store, size, times)
            reference, again, pruned = alternate([scene.alone, scene.alone, scene.pruned], settings.repetitions)
            amount = times * 1000
            alone = amount, "messages", "not pruned", reference
            once_more = f"{name}, not pruned, once more"
            yield Measurement(once_more, again, *alone, role=Role.BASELINE, reference_role=Role.BASELINE)
            case = f"{name}, while {statistics.median(scene.removed):,.0f} shards/s are pruned"
            yield Measurement(case, pruned, *alone, reference_role=Role.BASELINE)


@contextmanager
def _pruner(url: str) -> Iterator[None]:
    """Another process that prunes all the time: in a pipeline it would for a minute at most, and then pause."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.pruning", url], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, "the pruner failed"
    finally:
        process.kill()
        process.communicate()


def _prune_for_ever(url: str) -> None:
    with open_store(url) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            if not store.prune(RetentionPolicy(timedelta(days=30))).total:
                time.sleep(0.1)


if __name__ == "__main__":
    _prune_for_ever(sys.argv[1])
