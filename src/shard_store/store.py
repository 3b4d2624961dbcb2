"""The shard store: one object whose methods are transactions, opened by URL and kept open by the processes of Spark.

Spark reuses the processes in which it plans a writer and commits, and ends one that was idle for a minute.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Connection

from shard_store.batches import plans, progress, publishing, readings, starting
from shard_store.batches.plans import NOTHING_NOTED, NotedPlans
from shard_store.batches.publishing import Looked, Published, Unpublished
from shard_store.completeness import certificates, comparing, listing
from shard_store.completeness.listing import Claim
from shard_store.error_table import handling, records, search
from shard_store.error_table.handling import Reopening
from shard_store.error_table.search import StoredError
from shard_store.errors import LostProgress, ShardStoreError, StoreUnavailable
from shard_store.model import PlanIdentity, PublishToken, ShardKey
from shard_store.operators import repair, shards, views
from shard_store.operators import reset as resetting
from shard_store.operators import status as operations
from shard_store.operators.repair import ShardsChanged
from shard_store.operators.reset import Reset
from shard_store.operators.shards import FoundShard, ShardCriteria
from shard_store.operators.views import AsOf, DataFiles, KeyRange
from shard_store.shards import ownership, recording, sources
from shard_store.shards.changes import Audit
from shard_store.sql import install
from shard_store.sql.database import Database, Transaction
from shard_store.sql.install import ensure
from shard_store.upkeep import cleaning, pruning, timing
from shard_store.upkeep.pruning import PruneResult, RetentionPolicy

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
            if _file_of(store) == file:
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
            self._stores[url] = store, _file_of(store)
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


def _file_of(store: ShardStore) -> object:
    """Return what distinguishes a file from another that comes to its place; None for a server."""
    file = store.database.file()
    if file is None:
        return None
    with suppress(FileNotFoundError):
        status = file.stat()
        return status.st_dev, status.st_ino
    return "absent"


QUERY_PATIENCE = 120.0
"""Seconds for which all processes of a running query wait for the store: through a lock, a restart, a failover.

As long as others wait, by default, before they take over. People and commands are told sooner.
"""

P = ParamSpec("P")
T = TypeVar("T")


def _reads(function: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[ShardStore, P], T]:
    """Make a method of the function: in a transaction of its own, which only reads."""

    @wraps(function)
    def method(store: ShardStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.database.read(lambda transaction: function(transaction, *args, **kwargs))

    return method


def _writes(function: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[ShardStore, P], T]:
    """Make a method of the function: in a transaction of its own, which is committed."""

    @wraps(function)
    def method(store: ShardStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return store.database.write(lambda transaction: function(transaction, *args, **kwargs))
        except LostProgress:
            store.is_trusted = False
            raise

    return method


def _joins(
    function: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[ShardStore, Connection, P], T]:
    """Make a method of the function: in the transaction of the caller's connection."""

    @wraps(function)
    def method(store: ShardStore, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.database.inside(connection, lambda transaction: function(transaction, *args, **kwargs))

    return method


class ShardStore:
    """Shards, their owners and their progress behind a SQLAlchemy URL. Threads may share one; processes may not.

    Every method is one transaction, tried again for a while when the database is in trouble. Those named `..._inside`
    are part of the caller's own transaction: they commit nothing, and try nothing again. All are safe to call again,
    and raise `shard_store.errors`. Used in the reader process, in the sink's commit process and, for errors and Iceberg
    tables, in executors.
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

    store_id = _reads(install.store_id)
    backlog = _reads(ownership.backlog)
    has_finished = _reads(ownership.has_finished)

    # shards and their owners

    start = _writes(starting.start)
    heartbeat = _writes(ownership.heartbeat)
    retire = _writes(ownership.retire)
    open_shards = _writes(ownership.open_shards)
    look = _reads(ownership.read_shards)
    renewed = _reads(ownership.renewed)
    acquire = _writes(ownership.acquire)
    release = _writes(ownership.release)

    # what is found by listing objects

    def claim_listing(
        self, token: PublishToken, source: str, prefix: str, interval: float, *, at_once: bool = False
    ) -> Claim | None:
        """Claim the listing of a prefix, if it is due and ours."""
        return listing.claim(self.database, token, source, prefix, interval, at_once=at_once)

    compare_listed = _writes(listing.compare)
    fail_listing = _writes(listing.fail)
    leave_existing = _writes(listing.leave_existing)
    abandoned = _reads(listing.abandoned)
    let_go_of_listings = _writes(listing.let_go)
    adopt = _writes(repair.adopt)

    # what a receiver records for the sources of its routes

    start_receiver = _writes(recording.start_receiver)
    note_work = _writes(recording.note_work)
    record = _writes(recording.record)
    recorded = _reads(recording.recorded)
    decline = _writes(recording.decline)
    waiting = _reads(recording.waiting)
    count_waiting = _reads(recording.count_waiting)
    receivers = _reads(recording.all_receivers)

    # objects that are deleted or moved after they were read

    plan_cleanings = _writes(cleaning.plan)
    due_cleanings = _reads(cleaning.due)
    redirect_cleanings = _writes(cleaning.redirect)
    end_cleanings = _writes(cleaning.end)
    waiting_cleanings = _reads(cleaning.waiting)
    note_registered = _writes(cleaning.note_registered)

    # snapshots and plans

    advance = _writes(progress.advance)
    adopt_offset = _writes(progress.adopt_offset)
    plan = _writes(plans.plan)
    current_plan = _reads(plans.current_plan)
    planned_ranges = _reads(plans.planned_ranges)
    plan_to_load = _reads(plans.plan_to_load)
    current_plan_inside = _joins(plans.current_plan)

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

    publish = _writes(publishing.publish)
    publish_inside = _joins(publishing.publish)
    delivered = _reads(publishing.find_delivery)
    is_published = _reads(publishing.is_published)
    has_published = _reads(publishing.has_published)
    hold_inside = _joins(publishing.hold)

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
        return self.database.write(lambda t: work(t, publishing.publish(t, identities, (), look=look, **how)))

    @contextmanager
    def held(self, identities: Sequence[PlanIdentity], batch_id: int) -> Iterator[None]:
        """Keep the micro-batch publishable, and its shards with their pipelines, while the block lasts.

        Raises as `publish` does. Keep it short: the pipeline's heartbeats wait for it.
        """
        with self.database.begin() as connection:
            self.hold_inside(connection, identities, batch_id)
            yield

    # errors

    record_errors = _writes(records.record)
    reject = _writes(records.reject)
    reject_inside = _joins(records.reject)
    report = _writes(readings.report)
    begin_reading = _writes(readings.begin_reading)
    judge = _writes(readings.judge)
    found_bad = _reads(records.found_bad)
    errors_of_plans = _reads(search.of_plans)
    known_objects = _reads(plans.known_objects)
    name_error_queue = _writes(handling.name_queue)
    undelivered_errors = _reads(handling.undelivered)
    mark_delivered = _writes(handling.mark_delivered)
    mark_requeued = _writes(handling.mark_requeued)
    drop_errors = _writes(handling.drop)

    def reopen(self, errors: Sequence[StoredError], *, dry_run: bool = False, audit: Audit | None = None) -> Reopening:
        """Put the quarantined shards of these object errors back to where each was found bad."""
        run = self.database.read if dry_run else self.database.write
        return run(lambda t: handling.reopen(t, errors, dry_run=dry_run, audit=audit))

    # shards as operators see them

    remembered_shards = _reads(shards.remembered)
    shard_story = _reads(shards.story)

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
        """Have stopped sources, or some of their pipelines, read all once more that is announced once more."""
        run = self.database.read if dry_run else self.database.write
        options = {"message_uri": message_uri, "only": only, "adopted": adopted, "dry_run": dry_run}
        options["lose_rows"] = lose_rows
        return run(lambda t: resetting.reset(t, names, audit, **options))  # type: ignore[arg-type]

    status = _reads(operations.status)
    hours = _reads(operations.hours)
    recent = _reads(operations.recent)

    # marks of reads: called by executors, for plans that have failed before

    begin_read = _writes(readings.begin_read)
    end_read = _writes(readings.end_read)
    undo_read = _writes(readings.undo_read)
    read_marks = _reads(readings.marks_of_plan)

    # what became of the objects of a listing

    source_of = _reads(comparing.source_of)
    database_time = _reads(comparing.database_time)
    compare = _reads(comparing.compare)
    certify = _writes(certificates.write)
    certificate = _reads(certificates.find)
    newest_certificate = _reads(certificates.newest)
    latest_certificates = _reads(certificates.latest)

    # where a source is

    moved_sources = _reads(sources.moved_sources)

    # views and pruning

    key_ranges = _reads(views.key_ranges)
    published_names = _reads(views.published_names)
    announced_uris = _reads(views.announced_uris)
    row_schema = _reads(views.row_schema)

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
