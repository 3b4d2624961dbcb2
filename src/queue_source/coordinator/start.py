"""Starts a reader: compares its options with those before, recovers what was unfinished, and builds its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import tenacity

from queue_source.announcements.contents import Stat
from queue_source.coordinator.acknowledging import Acknowledger, LeaseKeeper
from queue_source.coordinator.backfill import Backfill, OpenBucket
from queue_source.coordinator.cleaning import Cleaner
from queue_source.coordinator.coordinator import Coordinator
from queue_source.coordinator.errors import ErrorLog, ErrorQueue
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.maintenance import Maintenance, send_heartbeats
from queue_source.coordinator.opening import Opener, Ownership, PrefixWatch, Receivers
from queue_source.coordinator.progress import Offsets, Progress
from queue_source.coordinator.ready import limits_of, shares_of
from queue_source.coordinator.receivers import OwnReceivers, Recorded
from queue_source.coordinator.session import Metrics, Presence, Session, Threads, await_readers_before, with_back_off
from queue_source.coordinator.sizes import Sizes
from queue_source.errors import OptionError
from queue_source.options import ReaderOptions
from queue_source.options.checks import warn_of_retention
from queue_source.options.places import WHILE_PARTLY_READ, WHILE_UNFINISHED
from queue_source.queues.base import Queue, identity_of
from queue_source.queues.urls import canonical
from shard_store.batches.starting import Naming, Started
from shard_store.batches.takeover import Look
from shard_store.model import BEGINNING, WITHOUT_MESSAGE, Content, Runtime, Semantics, is_end
from shard_store.store import ShardStore

# after a reader's end its messages come again within one lease, to any reader that runs by then
_REMEMBERED_LEASES = 3.0


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
    open_bucket: OpenBucket,
    answers_with_facts: Callable[[str], bool] | None = None,
    look: Look | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Coordinator:
    """Recover the pipeline and build its coordinator, which receives nothing yet. Runs in the reader process.

    May be repeated after a crash at any moment. `queues` by name, `store` already open, `error_queue`: the
    coordinator's `stop` closes all of them; they are left open when this raises (ShardStoreError, QueueError). `driver`
    identifies the driver that runs us, `presence` records its other readers and is entered here, `runtime` is shown to
    operators. `open_bucket`: for `backfillPrefixes` and `cleanSource`. `answers_with_facts`: see `Sizes`. `look`: into
    the targets of stopped pipelines.
    """
    if taken := queues.keys() & set(WITHOUT_MESSAGE):
        raise OptionError(
            "queueUrl", f"names a queue {taken.pop()!r}, which is our name for what has no queue; rename it"
        )
    threads = Threads(held=True)
    began = clock()
    started = _begin(
        options,
        store,
        queues,
        driver,
        runtime,
        with_back_off(threads.stopping, options.queue.retry_timeout.total_seconds(), clock),
    )
    routed, queues = (queues, {}) if options.queue.routes is not None else ({}, queues)
    session = Session(options, store, queues, started.token, Metrics(), threads.stopping, clock, names=started.names)
    if presence is not None:
        presence.enter(started.token)
        await_readers_before(session, presence, unfinished=started.plan_unfinished)

    lists = bool(options.backfill.prefixes)
    shares = "round-robin" if routed else options.queue.queue_shares  # receivers take from all of them
    in_flight = InFlight(queues, limits_of(options), shares_of(shares, queues, listing=lists))
    errors, error_log = ErrorQueue(session, error_queue), ErrorLog(session, in_flight.log_id)
    error_log.of_plans(started.with_errors)
    errors.forward()
    sizes = Sizes(session, stat, answers_with_facts)
    ownership = Ownership(session, in_flight, stat, sizes, *(() if look is None else (look,)))
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
    allowed_before = started.settings.get("allowedPrefixes")
    prefixes = PrefixWatch(session, started.intake, same=allowed_before == options.settings["allowedPrefixes"])
    receivers = Receivers(session, in_flight)
    opener = Opener(session, stat, sizes, in_flight, ownership, errors, error_log, prefixes)
    maintenance = Maintenance(session, in_flight, ownership, acknowledger, error_log, prefixes, started.counters)
    backfill = Backfill(session, in_flight, ownership, open_bucket) if lists else None
    recorded = Recorded(session, in_flight, ownership) if options.queue.from_store else None
    own_receivers = None
    if recorded is not None and options.queue.routes is not None:
        own_receivers = OwnReceivers(session, routed, in_flight, recorded)

    threads.on_stop(in_flight.wake)
    threads.start("leases", LeaseKeeper(session, in_flight).run)
    threads.start("heartbeats", send_heartbeats, session, began, maintenance.report)
    threads.start("maintenance", maintenance.run)
    threads.start("open", opener.run)
    acknowledger.start(threads)
    receivers.start(threads)
    if backfill is not None:
        backfill.start(threads)
    if recorded is not None:
        recorded.start(threads)
    if own_receivers is not None:
        own_receivers.start(threads)
    if options.cleaning.clean_source != "off":
        threads.start("cleaning", Cleaner(session, open_bucket).run)
    return Coordinator(
        session,
        threads,
        in_flight,
        ownership,
        acknowledger,
        errors,
        error_log,
        progress,
        Offsets(session, progress, started.store_id, dict(started.other_stores)),
        receivers,
        maintenance,
        backfill,
        recorded,
        own_receivers,
    )


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

    def naming() -> Naming:
        """Name the source's shards. A listener's messages come once, and its private queue has no name."""
        lasting = {name: queue for name, queue in queues.items() if not queue.capabilities.loses_while_closed}
        has_versions = options.content.kind.is_announced and semantics.keeps_shards
        versions = options.notifications.allow_overwrites if has_versions else None
        return Naming({name: identity_of(queue) for name, queue in lasting.items()}, canonical, versions)

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
        naming=patiently(naming),
        settings=options.settings,
        check=partial(refuse_changes, options),
    )


_SHOWN = 300  # characters of an id: senders of messages choose them


class _Unfinished(NamedTuple):
    """What an earlier reader left unfinished; `in_part`: of which a part is published."""

    content: Content
    in_part: bool


def refuse_changes(options: ReaderOptions, started: Started) -> None:
    """Raise OptionError, with the next step, where unfinished work could not be finished as it was begun."""
    unfinished = list(_unfinished_work(options, started))
    if not unfinished:
        return
    changed = {name: was for name, was in started.settings.items() if options.settings.get(name, was) != was}
    for name in WHILE_UNFINISHED:
        if name in changed:
            raise _refusal(name, changed[name], options.settings[name], unfinished)
    in_part = [item for item in unfinished if item.in_part]
    for name in WHILE_PARTLY_READ:
        if name in changed and in_part:
            raise _refusal(name, changed[name], options.settings[name], in_part, ", of which a part is published")
    if "allowedPrefixes" in changed and options.content.kind.is_announced:
        allowed = options.notifications.allowed_prefixes
        outside = [item.content.uri for item in unfinished if not item.content.uri.startswith(allowed)]
        if outside:
            raise OptionError(
                "allowedPrefixes",
                f"allows {len(outside):,} unfinished object(s) no longer, such as {outside[0][:_SHOWN]!r}; run the "
                "query with the prefixes that it had until nothing is left (trigger availableNow), or give these "
                "objects up with cuesqueue shards quarantine",
            )


def _unfinished_work(options: ReaderOptions, started: Started) -> Iterator[_Unfinished]:
    """Yield what is unfinished and ours, in a batch or not, unless an operator gave it up.

    Where the store keeps no shards, or calls them done already, only the batches have it.
    """
    ranges = [entry for snapshot in started.unconfirmed for entry in snapshot.ranges]
    cut = {entry.key for entry in ranges if entry.start != BEGINNING or not is_end(entry.end)}
    ours = {shard.key for shard in started.unfinished}
    for shard in started.unfinished:
        if shard.key not in started.given_up:
            yield _Unfinished(shard.content, shard.position != BEGINNING or shard.key in cut)
    if options.delivery.delivery_semantics != "exactly-once":
        for entry in ranges:
            if entry.key not in ours:
                yield _Unfinished(entry.content, entry.key in cut)


def _refusal(name: str, was: str, now: str, unfinished: list[_Unfinished], why: str = "") -> OptionError:
    return OptionError(
        name,
        f"was {was or 'not given'!r} and is {now or 'not given'!r}, and {len(unfinished):,} object(s) or message(s) "
        f"are not finished{why}, such as {unfinished[0].content.shard_id[:_SHOWN]!r}; run the query with "
        f"{was or 'none'!r} until nothing is left (trigger availableNow), and then with {now or 'none'!r}; or give "
        "the new query another 'pipeline'",
    )
