"""The streaming reader, as Spark calls it.

| method | process |
|---|---|
| `initialOffset`, `latestOffset`, `partitions`, `commit`, `reportLatestOffset`, `stop` | one reader process per query |
| `read` | executor workers, any number of times |

An offset is `{"pipeline": name, "seq": number, "store": id}`: the snapshots up to `seq` (`coordinator/progress.py`).
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from queue_source.common.logs import Origin, one_line_errors, set_up, tell_left_out, whole_errors, work_on
from queue_source.common.times import machine_time_zone
from queue_source.formats.base import check_schema, may_be_cut
from queue_source.options import (
    ReaderOptions,
    check_zone,
    connection_options,
    in_zone,
)
from queue_source.read.fixed_rows import fixed_rows, names_parts
from queue_source.read.partitions import PlanStore, from_tuples, partition, to_tuples
from queue_source.read.task import Alone, Beside, Trace, Work, read_work
from queue_source.spark.process import (
    AvailableNow,
    advice,
    arrow_schema,
    default_read_limit,
    driver_identity,
    end_without_trace,
    given_limits,
    is_repeated,
    keep_loaded,
    presence_folder,
    reading,
    runtime,
    session_time_zone,
    stop_on_sigterm,
    task_name,
)
from queue_source.spark.writer import NotedPlan
from queue_source.storage.files import ObjectStat, answers_with_facts, stat_objects
from shard_store.model import Semantics

if TYPE_CHECKING:
    from queue_source.coordinator import Coordinator
    from queue_source.coordinator.session import Presence
    from queue_source.options.types import SecretUrl
    from queue_source.queues.base import Queue
    from queue_source.storage.buckets import Bucket


logger = logging.getLogger("cuesqueue")


@dataclass
class WorkPartition(InputPartition):
    """One task's work, pickled to an executor: as plain tuples and by `pickle` itself, in a seventh of the time."""

    work: Work

    def __getstate__(self) -> bytes:
        return pickle.dumps((to_tuples(self.work.pieces), replace(self.work, pieces=())), pickle.HIGHEST_PROTOCOL)

    def __setstate__(self, state: bytes) -> None:
        pieces, work = pickle.loads(state)
        self.work = replace(work, pieces=from_tuples(pieces))


class CuesqueueStreamReader(AvailableNow, DataSourceStreamReader):
    """One running pipeline. The coordinator is started by the first call, in the process that gets it."""

    def __init__(self, options: ReaderOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._coordinator: Coordinator | None = None
        self._presence: Presence | None = None
        self._noted: NotedPlan | None = None
        self._store: PlanStore | None = None  # since the start
        self._origin = Origin(options.pipeline)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coordinator": None, "_presence": None, "_noted": None}

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which every checkpoint begins, new or lost: final shards are left out of the plans.

        It is constant, since Spark does not log it and asks again when it repeats its first batch.
        """
        coordinator = self._started()
        coordinator.check()
        return coordinator.offsets.write(0)

    @one_line_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """Return the offset up to which there is work; Spark 4.2 and later pass `start` and `limit`.

        Before, and for bytes always, our own options set the limits.
        """
        coordinator, self._origin.plan = self._started(), None  # the batch before has ended
        done = coordinator.logged_end if start is None else coordinator.offsets.read(start)
        limits = given_limits(limit, self._options.batches.limits)
        self._origin.seq = seq = coordinator.latest(None if start is None else done, limits)
        self._note_plan("", seq if seq > done else 0)
        return coordinator.offsets.write(seq)

    @one_line_errors()
    def getDefaultReadLimit(self) -> Any:
        """Return the read limit; Spark 4.2 and later ask before any batch, also where the first has no new data."""
        self._started().check()
        return default_read_limit(self._options.batches.max_files_per_trigger)

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._started().drain()

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        coordinator = self._started()
        first, last = coordinator.offsets.read(start), coordinator.offsets.read(end)
        if first == last:
            coordinator.logged(last)  # Spark before 4.2, after a restart
            return []
        self._origin.plan = f"{first}-{last}"
        plan = coordinator.plan(first, last)
        self._note_plan(plan.identity.delivery_hash)
        assert self._store is not None
        batches = self._options.batches
        content = self._options.content
        usual = coordinator.ownership.sizes.usual_of(entry.content for entry in plan.ranges)
        takes_parts = content.kind.is_read or names_parts(arrow_schema(self._schema))
        tasks = partition(
            plan,
            batches.min_partitions,
            batches.max_partition_bytes,
            lambda entry: takes_parts and may_be_cut(entry.content.uri, content),
            usual,
        )
        # a plan without content still needs a task: its commit message tells the sink which plan is published
        tasks = tasks or [[]]
        attempts, died = self._options.delivery.max_attempts, plan.suspected or plan.attempt > 1
        # without shards nothing is opened again; and messages are read in one way, except after deaths
        semantics = Semantics(self._options.delivery.delivery_semantics)
        meets = semantics.final_at_delivery and content.kind.is_announced
        is_traced = semantics.keeps_shards and (content.kind.is_announced or died)
        in_this_zone = in_zone(content, machine_time_zone())
        partitions: list[InputPartition] = []
        for task, pieces in enumerate(tasks):
            isolation: Beside | Alone | None = None
            if died:
                isolation = Alone(attempts) if plan.suspected else Beside(task)
            trace = Trace(task == 0 and not plan.direct, len(tasks), plan.replaced) if is_traced else None
            work = Work(plan.identity, pieces, in_this_zone, self._store, isolation, attempts, trace, meets, usual)
            partitions.append(WorkPartition(work))
        return partitions

    def _note_plan(self, delivery_hash: str, new_seq: int = 0) -> None:
        if self._noted is not None:
            self._noted.note(delivery_hash, new_seq)

    @one_line_errors()
    def commit(self, end: dict[str, Any]) -> None:
        coordinator = self._started()
        coordinator.confirm(coordinator.offsets.read(end))

    @one_line_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._coordinator is None else dict(self._coordinator.report())

    @whole_errors()  # Spark calls it also after an error, which would be hidden by one of its own
    def stop(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if self._presence is not None:
            # Spark ends this process when the query's thread has ended: the next reader need not wait
            self._presence.leave()
        if self._noted is not None:
            self._noted.close()
            self._noted = None
        try:
            if coordinator is not None:
                coordinator.stop()
        finally:
            if coordinator is not None:
                tell_left_out(end=True)
                work_on(None)
            end_without_trace()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line_errors():  # not as a decorator: the body of a generator runs after the call
            assert isinstance(partition, WorkPartition)
            work, logs = partition.work, self._options.logs
            identity = work.identity
            set_up(logs.level, logs.form)
            plan = f"{identity.start_seq}-{identity.end_seq}"
            work_on(Origin(identity.token.pipeline, identity.end_seq, plan, task_name() or None))
            if (zone := session_time_zone()) is not None:
                check_zone(self._options.notifications, zone)
                work = replace(work, content=in_zone(self._options.content, zone))
            yield from read_work(work, arrow_schema(self._schema), repeated=is_repeated(), reading=reading())
            keep_loaded()

    def _started(self) -> Coordinator:
        if self._coordinator is None:
            schema, content = arrow_schema(self._schema), self._options.content
            if (fixed := fixed_rows(content)) is not None:
                fixed.check(schema)
            elif content.format is not None:
                check_schema(schema, content.format)
            set_up(self._options.logs.level, self._options.logs.form)
            work_on(self._origin)
            stop_on_sigterm()
            self._coordinator, self._store, self._presence = _prepare(self._options)
            if (folder := presence_folder()) is not None:
                token = self._coordinator.token
                with suppress(OSError):  # where the folder takes no file, `Presence` has logged it
                    self._noted = NotedPlan(folder, self._store.store_id, token.pipeline, token.incarnation)
            self._coordinator.begin()  # only now: from here on `stop` gives back the received messages, whatever fails
            keep_loaded()
            for text in advice():
                logger.info("pipeline %s can be faster: %s", self._options.pipeline, text)
        return self._coordinator


def _prepare(options: ReaderOptions) -> tuple[Coordinator, PlanStore, Presence | None]:
    """Open the store and the queues, and let the coordinator recover; nothing stays open when that fails."""
    # here: every executor worker imports this module to unpickle the reader, and would mostly load these
    from queue_source.coordinator import prepare
    from queue_source.coordinator.session import Presence
    from queue_source.options.checks import check_error_queue, check_not_read, check_suitability
    from queue_source.queues import open_queue
    from queue_source.sinks.takeover import looking
    from queue_source.storage.buckets import open_bucket
    from shard_store.store import QUERY_PATIENCE, open_store

    storage = options.content.storage

    def bucket(prefix: str) -> Bucket:
        return open_bucket(prefix, storage)

    def stat(uris: Sequence[str]) -> list[ObjectStat | None]:
        return stat_objects(uris, storage)

    # a lock or a failover is waited for until others may take over: the heartbeats end longer ones
    patience = max(QUERY_PATIENCE, options.leases.stale_after.total_seconds())
    with ExitStack() as undone:
        store = undone.enter_context(open_store(options.store.reveal(), patience=patience))
        plan_store = PlanStore.of(options.store, store)
        folder, presence = presence_folder(), None
        if folder is not None:
            presence = Presence(folder, store.store_id(), options.pipeline)
            undone.callback(presence.leave)

        def opened(url: SecretUrl) -> Queue:
            queue = open_queue(url.reveal(), **connection_options(url, options.queue))
            undone.callback(queue.close)
            return queue

        error_url = options.delivery.error_queue_url
        errors = None if error_url is None else opened(error_url)
        queues = [opened(url) for url in options.queue.urls]
        if errors is not None:
            check_error_queue(errors)
            check_not_read(errors, queues)
        check_suitability(queues, options)
        by_name = {queue.name: queue for queue in queues}
        coordinator = prepare(
            options,
            store,
            by_name,
            stat,
            driver=driver_identity(),
            presence=presence,
            runtime=runtime(),
            error_queue=errors,
            open_bucket=bucket,
            look=looking(plan_store.store_id, storage),
            answers_with_facts=answers_with_facts,
        )
        undone.pop_all()
    return coordinator, plan_store, presence
