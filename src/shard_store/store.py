"""The shard store: one object whose methods are transactions, opened by URL and kept open by the processes of Spark.

Spark reuses the processes in which it plans a writer and commits, and ends one that was idle for a minute.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Connection

from shard_store.batches import plans, progress, publishing, readings, starting, takeover
from shard_store.batches.plans import NOTHING_NOTED, NotedPlans
from shard_store.batches.progress import Confirmed
from shard_store.batches.publishing import Looked, Published, Unpublished
from shard_store.batches.starting import Naming, Started
from shard_store.completeness import comparing, listing
from shard_store.completeness.comparing import UNMEASURED, Certificate, Clocks, Finding, ListedShard, Scope, Tally
from shard_store.completeness.listing import Claim, Compared, Found
from shard_store.error_table import handling, search
from shard_store.error_table import records as error_records
from shard_store.error_table.handling import Reopening
from shard_store.error_table.search import StoredError
from shard_store.errors import LostProgress, ShardStoreError, StoreUnavailable
from shard_store.model import (
    LISTING,
    STORE,
    Content,
    ErrorRecord,
    Met,
    Plan,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    Reading,
    ReadMark,
    Runtime,
    Semantics,
    Shard,
    ShardKey,
    Split,
)
from shard_store.operators import compacting, repair, resetting, shards, status, views
from shard_store.operators.compacting import CurrentFile
from shard_store.operators.repair import ShardsChanged
from shard_store.operators.resetting import Reset
from shard_store.operators.shards import FoundShard, ShardCriteria, ShardStory
from shard_store.operators.status import Hour, PipelineStatus
from shard_store.operators.status import Published as PublishedCounts
from shard_store.operators.views import AsOf, DataFiles, KeyRange
from shard_store.shards import activity, ownership, recording
from shard_store.shards.activity import Amounts, Report
from shard_store.shards.changes import Audit
from shard_store.shards.ownership import Backlog
from shard_store.shards.recording import Receipts, Receiver, Recorded, Waiting
from shard_store.sql import install
from shard_store.sql.database import Database, Transaction
from shard_store.sql.install import ensure
from shard_store.upkeep import cleaning, pruning, timing
from shard_store.upkeep.cleaning import DueCleanings, Ended, Planned
from shard_store.upkeep.pruning import PruneResult, RetentionPolicy

P = ParamSpec("P")
T = TypeVar("T")

QUERY_PATIENCE = 120.0
"""Seconds for which all processes of a running query wait for the store: through a lock, a restart, a failover.

Other pipelines wait as long, by default, before they take over. A command gives up sooner.
"""

_MOST_STORES = 4


class _Kept:
    """The unused stores of this process, by URL, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._stores: OrderedDict[str, tuple[ShardStore, object]] = OrderedDict()

    def take(self, url: str) -> ShardStore | None:
        """Return a store that is still the one behind the URL; it is the caller's from now on."""
        with self._lock:
            if self._process != os.getpid():  # forked: what is open belongs to the parent
                self._process, self._stores = os.getpid(), OrderedDict()
            store, file = self._stores.pop(url, (None, None))
        if store is None:
            return None
        try:
            if store.database.file_status() == file:
                ensure(store.database, create=False)
                return store
        except StoreUnavailable:  # it was waited for, for as long as a query waits
            store.close()
            raise
        except ShardStoreError:
            pass  # opening it anew says what is wrong
        store.close()
        return None

    def give(self, url: str, store: ShardStore) -> None:
        with self._lock:
            replaced, _ = self._stores.pop(url, (None, None))
            self._stores[url] = store, store.database.file_status()
            surplus = [self._stores.popitem(last=False)[1][0] for _ in range(len(self._stores) - _MOST_STORES)]
        for old in [replaced, *surplus]:
            if old is not None:
                old.close()


_kept = _Kept()


@contextmanager
def kept_store(url: str) -> Iterator[ShardStore]:
    """Yield the store behind `url`, which stays open for the next micro-batch unless the block fails.

    Its connections, and the statements that are compiled already, save most of a small publication. It is looked at
    anew each time: the schema's revision by a statement, and a file by what the path names now.
    """
    store = _kept.take(url) or open_store(url, create=False, patience=QUERY_PATIENCE)
    try:
        yield store
    except BaseException:
        store.close()
        raise
    _kept.give(url, store)


class ShardStore:
    """Shards, their owners and their progress behind a SQLAlchemy URL. Threads may share one; processes may not.

    Every method is one transaction, tried again for a while when the database is in trouble. Those named `..._inside`
    are part of the caller's own transaction: they commit nothing, and try nothing again. All are safe to call again,
    and raise `shard_store.errors`. Used in the reader process, in the sink's commit process and, for errors and Iceberg
    tables, in executors. The function that a method runs has its description.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.is_trusted = True  # until it has lacked what it had said before: then nothing is done on its word

    def __repr__(self) -> str:
        return f"ShardStore({self.database.name!r})"

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def _read(self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.read(lambda transaction: work(transaction, *args, **kwargs))

    def _write(self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self.database.write(lambda transaction: work(transaction, *args, **kwargs))
        except LostProgress:
            self.is_trusted = False
            raise

    def _join(
        self,
        connection: Connection,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return self.database.inside(connection, lambda transaction: work(transaction, *args, **kwargs))

    def store_id(self) -> str:
        return self._read(install.store_id)

    def backlog(self, pipeline: str) -> Backlog:
        return self._read(ownership.backlog, pipeline)

    def has_finished(self, source: str, pipeline: str) -> bool:
        return self._read(ownership.has_finished, source, pipeline)

    def usual_size(self, source: str, pipeline: str) -> tuple[int | None, str | None]:
        return self._read(ownership.usual_size, source, pipeline)

    # shards and their owners

    def start(
        self,
        source: str,
        pipeline: str,
        *,
        driver: str = "",
        stale_after: float = 120.0,
        semantics: Semantics = Semantics.EXACTLY_ONCE,
        remembered: float = 0.0,
        runtime: Runtime | None = None,
        naming: Naming | None = None,
        settings: Mapping[str, str] | None = None,
        check: Callable[[Started], None] = lambda started: None,
    ) -> Started:
        return self._write(
            starting.start,
            source,
            pipeline,
            driver=driver,
            stale_after=stale_after,
            semantics=semantics,
            remembered=remembered,
            runtime=runtime,
            naming=naming,
            settings=settings,
            check=check,
        )

    def heartbeat(self, token: PublishToken, stale_after: float, report: Report | None = None) -> None:
        self._write(ownership.heartbeat, token, stale_after, report)

    def retire(self, token: PublishToken, report: Report | None = None) -> None:
        self._write(ownership.retire, token, report)

    def open_shards(self, token: PublishToken, source: str, contents: Sequence[Content]) -> dict[ShardKey, Shard]:
        return self._write(ownership.open_shards, token, source, contents)

    def look(self, keys: Iterable[ShardKey]) -> dict[ShardKey, Shard]:
        return self._read(ownership.read_shards, keys)

    def renewed(self, token: PublishToken) -> dict[ShardKey, Shard]:
        return self._read(ownership.renewed, token)

    def acquire(self, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]) -> set[ShardKey]:
        return self._write(ownership.acquire, token, seen)

    def note_target(self, tokens: Sequence[PublishToken], target: str) -> None:
        self._write(takeover.note_target, tokens, target)

    def targets(self, names: Sequence[str]) -> set[str | None]:
        return self._read(takeover.targets_of, names)

    def settle(self, names: Sequence[str], look: takeover.Look, *, repeats: bool) -> dict[str, str]:
        """Settle what these pipelines may have left in targets, those of them that are stopped.

        Returns for which of them nothing tells, and why: their shards must not be taken.
        """
        stopped = self._read(takeover.may_have_left, names) if names else []
        reasons = {name: self._write(takeover.settle, name, look, repeats=repeats) for name in stopped}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def release(self, token: PublishToken, keys: Sequence[ShardKey]) -> None:
        self._write(ownership.release, token, keys)

    # what is found by listing objects

    def claim_listing(
        self, token: PublishToken, source: str, prefix: str, interval: float, *, at_once: bool = False
    ) -> Claim | None:
        """Claim the listing of a prefix, if it is due and ours."""
        return listing.claim(self.database, token, source, prefix, interval, at_once=at_once)

    def compare_listed(
        self,
        token: PublishToken,
        claim: Claim,
        page: Sequence[Found],
        *,
        objects: int,
        cursor: str | None,
        grace: float,
        clock: Callable[[], int],
        at_most: int | None = None,
    ) -> Compared | None:
        how: dict[str, Any] = {"objects": objects, "cursor": cursor, "grace": grace, "clock": clock, "at_most": at_most}
        return self._write(listing.compare, token, claim, page, **how)

    def fail_listing(self, token: PublishToken, source: str, prefix: str) -> bool:
        return self._write(listing.fail, token, source, prefix)

    def leave_existing(self, token: PublishToken, source: str) -> None:
        self._write(listing.leave_existing, token, source)

    def abandoned(self, source: str, limit: int) -> list[Shard]:
        return self._read(ownership.without_message, source, LISTING, limit)

    def let_go_of_listings(self, token: PublishToken, source: str, prefixes: Iterable[str]) -> None:
        self._write(listing.let_go, token, source, prefixes)

    def adopt(self, source: str, uris: Sequence[str], origin: str) -> int:
        return self._write(repair.adopt, source, uris, origin)

    # what a receiver records for the sources of its routes

    def start_receiver(self, receiver: str, queue: str, host: str, names: Collection[str], seen: int = 0) -> None:
        self._write(recording.start_receiver, receiver, queue, host, names, seen)

    def note_work(self, receiver: str, seen: int = 0) -> None:
        self._write(recording.note_work, receiver, seen)

    def record(
        self, receiver: str, announced: Mapping[str, Sequence[Content]], receipts: Receipts, seen: int = 0
    ) -> Recorded:
        return self._write(recording.record, receiver, announced, receipts, seen)

    def recorded(self, source: str, limit: int, until: int | None = None) -> list[Shard]:
        return self._read(ownership.without_message, source, STORE, limit, until)

    def decline(self, token: PublishToken, keys: Sequence[ShardKey]) -> None:
        self._write(recording.decline, token, keys)

    def waiting(self) -> tuple[Waiting, ...]:
        return self._read(recording.waiting)

    def count_waiting(self, source: str) -> int:
        return self._read(recording.count_waiting, source)

    def count_open(self, source: str) -> int:
        return self._read(recording.count_open, source)

    def receivers(self) -> tuple[Receiver, ...]:
        return self._read(recording.all_receivers)

    # objects that are deleted or moved after they were read

    def plan_cleanings(
        self, source: str, retention: timedelta, choose: Callable[[str, str], Planned | None], limit: int
    ) -> int:
        return self._write(cleaning.plan, source, retention, choose, limit)

    def due_cleanings(self, source: str, limit: int) -> DueCleanings:
        return self._read(cleaning.due, source, limit)

    def redirect_cleanings(self, targets: Mapping[ShardKey, str | None]) -> None:
        self._write(cleaning.redirect, targets)

    def end_cleanings(self, ended: Sequence[Ended]) -> None:
        self._write(cleaning.end, ended)

    def note_registered(self, uris: Collection[str]) -> None:
        self._write(cleaning.note_registered, uris)

    # snapshots and plans

    def advance(
        self,
        token: PublishToken,
        *,
        confirm: int | None = None,
        keys: Collection[ShardKey] = (),
        snapshot: tuple[int, Sequence[Range]] | None = None,
        fail_on_data_loss: bool = True,
    ) -> Confirmed:
        return self._write(
            progress.advance, token, confirm=confirm, keys=keys, snapshot=snapshot, fail_on_data_loss=fail_on_data_loss
        )

    def adopt_offset(self, token: PublishToken, seq: int, store_id: str | None = None) -> None:
        self._write(progress.adopt_offset, token, seq, store_id)

    def plan(self, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
        return self._write(plans.plan, token, start_seq, end_seq)

    def current_plan(self, pipeline: str, driver: str | None = None) -> PlanIdentity:
        return self._read(plans.current_plan, pipeline, driver)

    def planned_ranges(self, identity: PlanIdentity) -> list[Range]:
        return self._read(plans.planned_ranges, identity)

    def plan_to_load(self, identity: PlanIdentity) -> tuple[Plan, Mapping[str, str]]:
        return self._read(plans.plan_to_load, identity)

    def current_plan_inside(self, connection: Connection, pipeline: str, driver: str | None = None) -> PlanIdentity:
        return self._join(connection, plans.current_plan, pipeline, driver)

    def take_plan(
        self, pipeline: str, driver: str | None, sink: str, noted_plans: NotedPlans = NOTHING_NOTED
    ) -> PlanIdentity:
        """Return the plan as `current_plan` does, for the sink that delivers it, which makes itself known first.

        `noted_plans`: what the pipeline's newest reader in this driver says that it has planned.
        """
        identity, is_known = self.database.read(lambda t: plans.plan_for(t, pipeline, driver, sink, noted_plans))
        if not is_known:
            self.database.write(lambda t: progress.make_sink_known(t, identity, sink))
        return identity

    # publishing

    def publish(
        self,
        identities: Sequence[PlanIdentity],
        files: Sequence[Split] | None,
        *,
        row_schema: str | None = None,
        batch_id: int | None = None,
        elsewhere: tuple[int, int] = (0, 0),
        fenced: bool = True,
        winners: Collection[int] = (),
        look: Callable[[Unpublished], Looked] | None = None,
    ) -> Published:
        return self._write(
            publishing.publish,
            identities,
            files,
            row_schema=row_schema,
            batch_id=batch_id,
            elsewhere=elsewhere,
            fenced=fenced,
            winners=winners,
            look=look,
        )

    def publish_inside(
        self, connection: Connection, identities: Sequence[PlanIdentity], files: Sequence[Split] | None, **how: Any
    ) -> Published:
        return self._join(connection, publishing.publish, identities, files, **how)

    def delivered(self, identities: Sequence[PlanIdentity], batch_id: int) -> Published:
        return self._read(publishing.find_delivery, identities, batch_id)

    def is_published(self, identity: PlanIdentity) -> bool:
        return self._read(publishing.is_published, identity)

    def has_published(self, identities: Sequence[PlanIdentity], digest: str) -> bool:
        return self._read(publishing.has_published, identities, digest)

    def hold_inside(self, connection: Connection, identities: Sequence[PlanIdentity], batch_id: int) -> None:
        self._join(connection, publishing.hold, identities, batch_id)

    def publish_with(
        self,
        identities: Sequence[PlanIdentity],
        work: Callable[[Transaction, Published], T],
        *,
        batch_id: int,
        brought: tuple[int, int] = (0, 0),
        fenced: bool = True,
        winners: Collection[int] = (),
        look: Callable[[Unpublished], Looked] | None = None,
    ) -> T:
        """Publish where rows become visible elsewhere by `work`, in one transaction of the store.

        `work` is called in that transaction, with what was published, and is run again with it when the database is
        in trouble; its result is returned. `brought`: how many rows and bytes it makes visible. `fenced` is false where
        they may be visible before the transaction is committed; `winners` and `look` as with `publish`.
        """
        how: dict[str, Any] = {"batch_id": batch_id, "elsewhere": brought, "fenced": fenced, "winners": winners}

        def publish(transaction: Transaction) -> T:
            transaction.allow_idle()  # it may write to another place
            return work(transaction, publishing.publish(transaction, identities, (), look=look, **how))

        return self.database.write(publish)

    @contextmanager
    def held(self, identities: Sequence[PlanIdentity], batch_id: int) -> Iterator[None]:
        """Keep the micro-batch publishable, and its shards with their pipelines, while the block lasts.

        Raises as `publish` does. Keep it short: the pipeline's heartbeats wait for it.
        """
        with self.database.begin() as connection:
            self.hold_inside(connection, identities, batch_id)
            yield

    # errors

    def record_errors(self, source: str, pipeline: str, records: Sequence[ErrorRecord]) -> None:
        self._write(error_records.record, source, pipeline, records)

    def reject(self, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
        self._write(error_records.reject, identity, records)

    def reject_inside(self, connection: Connection, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
        self._join(connection, error_records.reject, identity, records)

    def report(
        self, identity: PlanIdentity, records: Sequence[ErrorRecord], reading: Reading | None, tasks: int = 0
    ) -> None:
        self._write(readings.report, identity, records, reading, tasks)

    def count_object_retries(self, pipeline: str, retries: int) -> None:
        self._write(activity.count, pipeline, Amounts(object_retries=retries))

    def begin_reading(
        self, identity: PlanIdentity, reading: Reading, *, first: bool, tasks: int, replaced: str | None = None
    ) -> set[tuple[ShardKey, Position]]:
        return self._write(readings.begin_reading, identity, reading, first=first, tasks=tasks, replaced=replaced)

    def meet(self, identity: PlanIdentity, met: Mapping[ShardKey, Met]) -> dict[ShardKey, Met]:
        return self._write(readings.meet, identity, met)

    def judge(
        self,
        identity: PlanIdentity,
        records: Sequence[ErrorRecord],
        judges: Sequence[Reading],
        *,
        first: Reading | None,
        tasks: int,
    ) -> None:
        self._write(readings.judge, identity, records, judges, first=first, tasks=tasks)

    def found_bad(self, identity: PlanIdentity) -> set[tuple[ShardKey, Position]]:
        return self._read(error_records.found_bad, identity)

    def errors_of_plans(self, hashes: Sequence[str], limit: int) -> tuple[dict[str, int], list[StoredError]]:
        return self._read(search.of_plans, hashes, limit)

    def known_objects(self, identity: PlanIdentity) -> tuple[list[str], list[str]]:
        return self._read(plans.known_objects, identity)

    def name_error_queue(self, token: PublishToken, queue: str | None) -> None:
        self._write(handling.name_queue, token, queue)

    def undelivered_errors(self, token: PublishToken, source: str, *, others: bool = True) -> list[StoredError]:
        return self._read(handling.undelivered, token, source, others=others)

    def mark_delivered(self, token: PublishToken, keys: Sequence[bytes], queue: str) -> None:
        self._write(handling.mark_delivered, token, keys, queue)

    def mark_requeued(self, keys: Collection[bytes]) -> None:
        self._write(handling.mark_requeued, keys)

    def drop_errors(self, keys: Collection[bytes]) -> int:
        return self._write(handling.drop, keys)

    def reopen(self, errors: Sequence[StoredError], *, dry_run: bool = False, audit: Audit | None = None) -> Reopening:
        """Put the quarantined shards of these object errors back to where each was found bad."""
        run = self.database.read if dry_run else self.database.write
        return run(lambda t: handling.reopen(t, errors, dry_run=dry_run, audit=audit))

    # shards as operators see them

    def remembered_shards(self, keys: Collection[ShardKey]) -> list[ShardKey]:
        return self._read(shards.remembered, keys)

    def shard_story(self, key: ShardKey) -> ShardStory:
        return self._read(shards.story, key)

    def find_shards(self, criteria: ShardCriteria, *, limit: int | None = None) -> Iterator[list[FoundShard]]:
        """Yield shards in pages of up to 1,000."""
        return shards.pages(self.database, criteria, limit=limit)

    def quarantine(self, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False) -> ShardsChanged:
        """Have up to 1,000 open shards given up by the next plan that holds them."""
        run = self.database.read if dry_run else self.database.write
        return run(lambda t: repair.quarantine(t, keys, audit, dry_run=dry_run))

    def put_back(
        self, keys: Sequence[ShardKey], audit: Audit, *, message_uri: str, dry_run: bool = False
    ) -> ShardsChanged:
        """Have up to 1,000 quarantined shards read again by their pipelines."""
        run = self.database.read if dry_run else self.database.write
        return run(lambda t: repair.reopen(t, keys, audit, message_uri=message_uri, dry_run=dry_run))

    def forget(self, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False) -> ShardsChanged:
        """Delete up to 1,000 finished shards: announced again, they are read again."""
        run = self.database.read if dry_run else self.database.write
        return run(lambda t: repair.forget(t, keys, audit, dry_run=dry_run))

    def reset(
        self,
        names: Sequence[str],
        audit: Audit,
        *,
        message_uri: str,
        only: Collection[str] = (),
        adopted: bool = False,
        lose_rows: bool = False,
        dry_run: bool = False,
    ) -> Reset:
        """Have stopped sources, or some of their pipelines, read all once more that is announced once more.

        In several transactions, which go on where they were when this is called again.
        """
        return resetting.reset(
            self.database,
            names,
            audit,
            message_uri=message_uri,
            only=only,
            adopted=adopted,
            lose_rows=lose_rows,
            dry_run=dry_run,
        )

    def status(self, *, source: str | None = None, pipeline: str | None = None) -> tuple[PipelineStatus, ...]:
        return self._read(status.status, source=source, pipeline=pipeline)

    def published_by(self, pipeline: str, driver: str) -> PublishedCounts | None:
        return self._read(status.published_by, pipeline, driver)

    def hours(self, *, since: datetime, source: str | None = None, pipeline: str | None = None) -> tuple[Hour, ...]:
        return self._read(status.hours, since=since, source=source, pipeline=pipeline)

    def recent(self, *, source: str | None = None, pipeline: str | None = None) -> tuple[Hour, ...]:
        return self._read(status.recent, source=source, pipeline=pipeline)

    # marks of reads: called by executors, for plans that have failed before

    def begin_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        self._write(readings.begin_read, identity, mark)

    def end_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        self._write(readings.end_read, identity, mark)

    def undo_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        self._write(readings.undo_read, identity, mark)

    def read_marks(self, identity: PlanIdentity) -> list[ReadMark]:
        return self._read(readings.marks_of_plan, identity)

    # what became of the objects of a listing

    def source_of(self, name: str | None) -> str:
        return self._read(comparing.source_of, name)

    def database_time(self) -> int:
        return self._read(comparing.database_time)

    def compare(self, source: str, listed: Sequence[ListedShard], clocks: Clocks = UNMEASURED) -> list[Finding]:
        return self._read(comparing.compare, source, listed, clocks)

    def certify(self, scope: Scope, evidence: str, tally: Tally, actor: str, since: int | None = None) -> int:
        return self._write(comparing.write, scope, evidence, tally, actor, since)

    def certificate(self, number: int) -> Certificate:
        return self._read(comparing.find, number)

    def newest_certificate(self, scope: Scope) -> Certificate | None:
        return self._read(comparing.newest, scope)

    def latest_certificates(self, *, limit: int) -> tuple[Certificate, ...]:
        return self._read(comparing.last_ones, limit=limit)

    # where a source is

    def moved_sources(self) -> list[str]:
        return self._read(starting.moved_sources)

    # views and pruning

    def key_ranges(self, size: int) -> list[KeyRange]:
        return self._read(views.key_ranges, size)

    def published_names(self, paths: Sequence[str], replaced_since: int = 0) -> set[str]:
        return self._read(views.published_names, paths, replaced_since)

    def announced_uris(self, uris: Sequence[str]) -> set[str]:
        return self._read(views.announced_uris, uris)

    def row_schema(self, pipeline: str | None = None, source: str | None = None) -> str | None:
        return self._read(views.row_schema, pipeline, source)

    def pages(
        self,
        view: str,
        *,
        source: str | None = None,
        pipeline: str | None = None,
        as_of: AsOf | None = None,
        keys: KeyRange | None = None,
        files: DataFiles | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a view, in pages."""
        return views.pages(
            self.database,
            view,
            source=source,
            pipeline=pipeline,
            as_of=as_of,
            keys=keys,
            files=files,
            columns=columns,
        )

    def published_files(
        self, *, source: str | None = None, pipeline: str | None = None, as_of: AsOf | None = None
    ) -> DataFiles:
        """Return the files that are published at this moment, as a few numbers."""
        return views.published_files(self.database, source=source, pipeline=pipeline, as_of=as_of)

    def data_files(
        self, size: int, *, source: str | None = None, pipeline: str | None = None, as_of: AsOf | None = None
    ) -> list[DataFiles]:
        """Return the published files, in parts of about `size` bytes, each a few numbers."""
        return views.data_files(self.database, size, source=source, pipeline=pipeline, as_of=as_of)

    def paths(self, files: DataFiles) -> Iterator[str]:
        """Yield the paths of a part, a page at a time."""
        return views.paths(self.database, files)

    def pipelines_with_files(self) -> list[str]:
        return self._read(compacting.pipelines_with_files)

    def small_files(self, pipeline: str, smaller_than: int) -> Iterator[CurrentFile]:
        """Yield the pipeline's data files with fewer bytes, a page at a time."""
        return compacting.small_files(self.database, pipeline, smaller_than)

    def replace_files(self, pipeline: str, files: Sequence[CurrentFile], joined: Split) -> bool:
        return self._write(compacting.replace, pipeline, files, joined)

    def forget_replaced(self, before: int) -> int:
        return self._write(compacting.forget_replaced, before)

    def win_interval(self, name: str, interval: float) -> bool:
        """Return True for one caller over all pipelines in each `interval` seconds."""
        return timing.win_interval(self.database, name, interval)

    def prune(
        self, policy: RetentionPolicy, now: datetime | None = None, *, dry_run: bool = False, time_out: float = 60.0
    ) -> PruneResult:
        """Remove what the policy allows, in small transactions, for at most `time_out` seconds."""
        return pruning.prune(self.database, policy, now, dry_run=dry_run, time_out=time_out)


def open_store(
    url: str,
    *,
    create: bool = True,
    clock: Callable[[], float] | None = None,
    patience: float = 30.0,
    trusts_rowcount: bool = True,
) -> ShardStore:
    """Open the store behind an SQLAlchemy URL; in an empty database its tables are created.

    Args:
        url: An SQLAlchemy URL, as in the option `storeUrl`.
        create: Create the tables in an empty database.
        clock: For tests: replaces the database's clock.
        patience: Seconds for which temporary failures are retried.
        trusts_rowcount: For tests: False counts changed rows as for a driver that does not.

    Returns:
        The store. Close it, or use it in a `with` statement. Threads may share it; processes may not.

    Raises:
        StoreConfigurationError: The URL, the driver or the permissions are wrong, or the schema is older or newer than
            this version's (`cuesqueue migrate`).
        StoreUnavailable: The database failed for longer than `patience`.

    Process:
        Any.
    """
    database = Database(url, clock=clock, patience=patience, trusts_rowcount=trusts_rowcount)
    try:
        install.ensure(database, create=create)
    except BaseException:
        database.close()
        raise
    return ShardStore(database)
