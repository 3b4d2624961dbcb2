"""One query that makes messages of one queue messages of another: Spark's loop without Spark, with our own sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from queue_source.options import parse_sink_options
from queue_source.read.fixed_rows import MESSAGE_SCHEMA
from queue_source.read.partitions import whole_pieces
from queue_source.read.task import Work, read_work
from queue_source.sinks.base import Batch, open_sink
from shard_store.failpoints import reach
from shard_store.model import Plan
from shard_store.store import open_store
from support.driver_loop import DriverLoop, reader_options
from support.reading import plan_store

TIMES = {"commitTimeout": "1s", "visibilityTimeout": "2s", "waitTime": "50ms"}
TASKS = 2


class Hop(DriverLoop):
    """As Spark would run it with two tasks. Its checkpoint is in `folder`, its pipeline is `name`."""

    def __init__(
        self, folder: Path, name: str, store: str, source: str, target: str, work: Callable[[], object] = lambda: None
    ) -> None:
        """`work` is what takes time in a task, and before the commit."""
        self._sink = parse_sink_options({"store": store, "pipeline": name, "queueUrl": target})
        given = {"content": "message", "fileFormat": "", "allowedPrefixes": "", "source": name, "pipeline": name}
        options = reader_options(source, store, maxFilesPerTrigger="20", **given, **TIMES)
        super().__init__(options, folder / name, folder / "unused", work=work)

    def _deliver(self, plan: Plan, number: int) -> None:
        reach("plan-made")
        sink, batch = open_sink(self._sink), Batch((plan.identity,))
        ranges = () if plan.published else plan.ranges
        written = []
        for task in range(TASKS):
            pieces = whole_pieces(ranges[task::TASKS])
            work = Work(plan.identity, pieces, self.options.content, plan_store(self.options))
            rows = read_work(work, MESSAGE_SCHEMA, repeated=True)
            written.append(sink.write(rows, MESSAGE_SCHEMA, replace(batch, task=f"{number}.{task}")))
            self.work()
        reach("before-publish")
        with open_store(self.options.store.reveal()) as store:
            sink.commit(store, batch, written, row_schema="", batch_id=number)
        reach("published")
