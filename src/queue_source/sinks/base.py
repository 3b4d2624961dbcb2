"""The interface of sinks: the tasks of a micro-batch write, and one commit makes all visible with the plan's progress.

`open_sink` picks a sink by the option that says where the rows go. A new target is another module here and one line
there.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.options import SinkOptions
from queue_source.storage.open_files import is_local
from shard_store.model import PlanIdentity, Reading, by_pipeline, hash_of_batch

if TYPE_CHECKING:
    from shard_store.store import ShardStore  # executors write without SQL


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch for its sink: the plans whose rows it brings, one for each pipeline of the query.

    They are in the order of their pipelines' names. The plan of a pipeline that is idle in this batch is the one that
    it delivered last. In an executor only: `task`, the task's name in the query, the same at every attempt; `reading`,
    this attempt by Spark's numbers; and `zone`, that of the session. `winners`, at the commit only: Spark's numbers of
    the task attempts whose rows it brings.
    """

    plans: tuple[PlanIdentity, ...]
    task: str = ""
    reading: Reading | None = None
    zone: str | None = None
    winners: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", by_pipeline(self.plans))

    @property
    def digest(self) -> str:
        """By which tasks name what they write: it is made of all plans, also of those that are idle in this batch."""
        return hash_of_batch(self.plans)


class Sink(Protocol):
    """Where rows go. Pickled to the executors; a sink that is new in the commit process knows only its options."""

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        """Refuse rows that can never be written, and find out what all tasks need to know, once for each batch.

        Runs at planning; `plans` are those of the batch. Attributes that it sets in the sink travel to the executors.
        """

    def check_place(self) -> None:
        """Refuse a place that is known not to exist, before the tasks of a first batch fail on it one by one.

        Runs at planning, once for each checkpoint.
        """
        return

    def check_target(self, store: ShardStore) -> None:
        """Refuse a target that surely cannot be written. Makes nothing; runs before a session of Spark is started."""
        self.check_place()

    def own_columns(self, store: ShardStore) -> pa.Schema | None:
        """Return the columns of the table that the rows go to; None where there is none yet, or it has no columns.

        Runs at planning, before `prepare`.
        """
        return None

    def removed_columns(self, store: ShardStore) -> frozenset[str]:
        """Return the names, in small letters, of columns that the table has had. Runs behind `own_columns`."""
        return frozenset()

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise OptionError where the table of `own_columns` cannot get these columns."""
        return

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> Any:
        """Write one task's rows, not visible to readers yet. Runs in an executor, once for each task attempt.

        Returns a value for `commit`, which can be pickled.
        """

    def published_columns(self, written: Sequence[Any]) -> pa.Schema | None:
        """Return the columns of what is published; None: those of the rows that the tasks were given."""
        return None

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[Any], *, row_schema: str, batch_id: int
    ) -> None:
        """Publish what the tasks have written, once for each plan (invariant 4). Runs in the commit process.

        `row_schema` is the schema as Spark's JSON. Raises what `ShardStore.publish` raises.
        """


def check_visible(paths: Iterable[str]) -> None:
    """Check that the local files of tasks exist here too: otherwise published rows could never be read.

    Raises OptionError when executors on other machines have written to disks of their own.
    """
    local = [path for path in paths if is_local(path)]
    absent = [path for path in local if not Path(path.removeprefix("file://")).exists()]
    if absent:
        raise OptionError(
            "path",
            f"of {len(local)} local files that tasks have written, {len(absent)} are not on the driver's machine "
            f"{platform.node()!r}, among them {absent[0]!r}: executors on other machines wrote to disks of their own. "
            "Nothing of this batch is published; name a folder that all machines share, or one in an object store",
        )


_SINKS = {
    "path": ("queue_source.sinks.splits", "SplitSink"),
    "table": ("queue_source.sinks.iceberg", "IcebergSink"),
    "register": ("queue_source.sinks.iceberg", "RegisteringSink"),
    "delta": ("queue_source.sinks.delta", "DeltaSink"),
    "queue": ("queue_source.sinks.queue", "QueueSink"),
    "load": ("queue_source.sinks.loading", "LoadingSink"),
}
"""What names the target -> module and class; loaded only when used, since each may need an extra."""


def open_sink(options: SinkOptions) -> Sink:
    """Build the sink that the options ask for. Opens nothing."""
    return _built("load" if options.load else _target(options), options)


def open_target(options: SinkOptions) -> Sink:
    """Build the sink that writes the rows, also where `load` reads them. Opens nothing."""
    return _built(_target(options), options)


def _target(options: SinkOptions) -> str:
    if options.table is None:
        return "delta" if options.delta else "queue" if options.queue else "path"
    return "register" if options.table.register else "table"


def _built(name: str, options: SinkOptions) -> Sink:
    module, attribute = _SINKS[name]
    sink: Sink = getattr(importlib.import_module(module), attribute)(options)
    return sink


def check_object_columns(schema: pa.Schema, option: str, column: str) -> None:
    """Check that the rows name their objects in `column`, with size and ETag. Raises OptionError of `option`."""
    for name, is_right, kind in (
        (column, pt.is_string, "STRING"),
        ("size", pt.is_int64, "BIGINT"),
        ("etag", pt.is_string, "STRING"),
    ):
        actual = schema.field(name).type if name in schema.names else None
        if actual is None or not (is_right(actual) or (kind == "STRING" and pt.is_large_string(actual))):
            raise OptionError(
                option,
                f"needs a column {name!r} of type {kind}, and the rows have {'none' if actual is None else actual}; "
                "read the stream with content reference, and leave its columns size and etag in: by them it is noticed "
                "that an object was replaced",
            )
