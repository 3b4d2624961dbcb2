"""Starts a reader: takes over what the incarnation before left, and builds the session and all that depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import tenacity

from queue_source.announcements.facts import Stat
from queue_source.coordinator.changes import refuse_changes
from queue_source.coordinator.coordinator import Coordinator, Parts
from queue_source.coordinator.ending.acknowledging import Acknowledger
from queue_source.coordinator.ending.cleaning import Cleaner
from queue_source.coordinator.ending.error_log import ErrorLog
from queue_source.coordinator.ending.error_queue import ErrorQueue
from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.holding.leases import LeaseKeeper
from queue_source.coordinator.holding.room import limits_of
from queue_source.coordinator.holding.shares import shares_of
from queue_source.coordinator.intake.backfill import Backfill, OpenBucket
from queue_source.coordinator.intake.opening import Opener
from queue_source.coordinator.intake.own_receivers import OwnReceivers
from queue_source.coordinator.intake.prefix_watch import PrefixWatch
from queue_source.coordinator.intake.receiving import Receivers
from queue_source.coordinator.intake.recorded import Recorded
from queue_source.coordinator.intake.routing import Ownership
from queue_source.coordinator.offsets import Offsets
from queue_source.coordinator.progress import Progress
from queue_source.coordinator.session import Metrics, Session, with_back_off
from queue_source.coordinator.threads import Threads
from queue_source.coordinator.upkeep.heartbeats import send_heartbeats
from queue_source.coordinator.upkeep.maintenance import Maintenance
from queue_source.coordinator.upkeep.presence import Presence, await_readers_before
from queue_source.coordinator.upkeep.reporting import Reporting
from queue_source.errors import OptionError
from queue_source.options import ReaderOptions
from queue_source.options.checks import warn_of_retention
from queue_source.queues.base import Queue, identity_of
from queue_source.queues.urls import canonical
from queue_source.storage.buckets.base import Bucket
from shard_store.batches.starting import Started
from shard_store.model import WITHOUT_MESSAGE, Runtime, Semantics
from shard_store.shards.sources import Naming
from shard_store.store import ShardStore

# after a reader's end its messages come again within one lease, to any reader that runs by then
_REMEMBERED_LEASES = 3.0


def _no_bucket(prefix: str) -> Bucket:
    raise AssertionError(f"nothing to list {prefix} with")


def prepare(
    options: ReaderOptions,
    store: ShardStore,
    queues: Mapping[str, Queue],
    stat: Stat,
    *,
    driver: str = "",
    presence: Presence | None = None,
    runtime: Runtime | None = None,
    error_queue: Queue | None = None,
    open_bucket: OpenBucket = _no_bucket,
    clock: Callable[[], float] = time.monotonic,
) -> Coordinator:
    """Recover the pipeline and build its coordinator, which receives nothing yet. Runs in the reader process.

    May be repeated after a crash at any moment. `queues` by name, `store` already open, `error_queue`: the
    coordinator's `stop` closes all of them; they are left open when this raises (ShardStoreError, QueueError). `driver`
    identifies the driver that runs us, `presence` records its other readers and is entered here, `runtime` is shown to
    operators. `open_bucket`: for `backfillPrefixes` and `cleanSource`.
    """
    listing = bool(options.backfill.prefixes)
    if taken := queues.keys() & set(WITHOUT_MESSAGE):
        raise OptionError(
            "queueUrl", f"names a queue {taken.pop()!r}, which is our name for what has no queue; rename it"
        )
    threads = Threads(held=True)
    began = clock()
    retry = options.queue.retry_timeout.total_seconds()
    started = _begin(options, store, queues, driver, runtime, with_back_off(threads.stopping, retry, clock))
    routed, queues = (queues, {}) if options.queue.routes is not None else ({}, queues)
    session = Session(options, store, queues, started.token, Metrics(), threads.stopping, clock, names=started.names)
    if presence is not None:
        presence.enter(started.token)
        await_readers_before(session, presence, unfinished=started.plan_unfinished)
    shares = "round-robin" if routed else options.queue.queue_shares  # receivers take from all of them
    in_flight = InFlight(queues, limits_of(options), shares_of(shares, queues, listing=listing))
    errors, error_log = ErrorQueue(session, error_queue), ErrorLog(session, in_flight.log_id)
    error_log.of_plans(started.with_errors)
    errors.forward()
    ownership = Ownership(session, in_flight, stat)
    if released := in_flight.recover(ownership.with_facts(started.unfinished), started.unconfirmed, started.recent):
        store.release(started.token, released)
    if started.changed:
        session.note_changed(started.changed)
    acknowledger = Acknowledger(session, in_flight)
    progress = Progress(
        session,
        in_flight,
        ownership,
        acknowledger,
        errors,
        error_log,
        confirmed=started.confirmed_seq,
        last_seq=started.last_seq,
    )
    receivers = Receivers(session, in_flight)
    backfill = Backfill(session, in_flight, ownership, open_bucket)
    backfill.prepare()
    recorded = Recorded(session, in_flight, ownership)
    own_receivers = OwnReceivers(session, routed, in_flight, recorded)
    maintenance = Maintenance(session, in_flight, ownership, acknowledger, error_log, backfill)
    allowed_before = started.settings.get("allowedPrefixes")
    prefixes = PrefixWatch(session, started.intake, same=allowed_before == options.settings["allowedPrefixes"])
    reporting = Reporting(session, in_flight, maintenance, prefixes, started.counters)
    threads.on_stop(in_flight.wake)
    opener = Opener(session, stat, in_flight, ownership, errors, error_log, prefixes)
    threads.start("leases", LeaseKeeper(session, in_flight).run)
    threads.start("heartbeats", send_heartbeats, session, began, reporting.report)
    threads.start("maintenance", maintenance.run)
    threads.start("open", opener.run)
    acknowledger.start(threads)
    receivers.start(threads)
    backfill.start(threads)
    recorded.start(threads)
    own_receivers.start(threads)
    if options.cleaning.clean_source != "off":
        threads.start("cleaning", Cleaner(session, open_bucket).run)
    parts = Parts(
        in_flight,
        acknowledger,
        errors,
        error_log,
        progress,
        Offsets.of(session, progress, started),
        receivers,
        backfill,
        recorded,
        own_receivers,
        maintenance,
        reporting,
        threads,
    )
    return Coordinator(session, parts)


def _begin(
    options: ReaderOptions,
    store: ShardStore,
    queues: Mapping[str, Queue],
    driver: str,
    runtime: Runtime | None,
    patiently: tenacity.Retrying,
) -> Started:
    """Start the new incarnation, and return what the one before left."""
    semantics = Semantics(options.delivery.delivery_semantics)
    if semantics.keeps_shards:
        window = options.deduplication.deduplication_window
        patiently(warn_of_retention, queues.values(), window)
    naming = patiently(_naming, options, queues)
    stale_after = options.leases.stale_after.total_seconds()
    lease = options.leases.visibility_timeout.total_seconds()
    return store.start(
        options.source,
        options.pipeline,
        driver=driver,
        stale_after=stale_after,
        semantics=semantics,
        remembered=_REMEMBERED_LEASES * max(lease, stale_after),
        runtime=runtime,
        naming=naming,
        settings=options.settings,
        check=partial(refuse_changes, options),
    )


def _naming(options: ReaderOptions, queues: Mapping[str, Queue]) -> Naming:
    """Return how the source's shards are named. A listener's messages come once, and its private queue has no name."""
    kind, semantics = options.content.kind, Semantics(options.delivery.delivery_semantics)
    lasting = {name: queue for name, queue in queues.items() if not queue.capabilities.loses_while_closed}
    versions = options.notifications.allow_overwrites if kind.is_announced and semantics.keeps_shards else None
    return Naming({name: identity_of(queue) for name, queue in lasting.items()}, canonical, versions)
