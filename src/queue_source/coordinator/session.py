"""A reader's session with its store: what is fixed, its counters and threads, and other readers of its pipeline."""

from __future__ import annotations

import contextvars
import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tenacity

from queue_source.common.local_paths import hold, is_held, release
from queue_source.errors import OptionError, QueueUnavailable
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from shard_store.batches.starting import Names
from shard_store.model import PublishToken, Semantics
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_LONG = 10.0  # seconds without a call of Spark's, after which a batch is long, or over without notice


class Precedence:
    """Makes other work wait while a micro-batch runs, for as long as the caller allows.

    All methods may be called from any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._until = clock()

    def begin(self) -> None:
        """Note that a batch is under way: until `end`, or until Spark has been silent for `_LONG` seconds."""
        with self._changed:
            self._until = self._clock() + _LONG

    def end(self) -> None:
        """Note that Spark waits for nothing."""
        with self._changed:
            self._until = self._clock()
            self._changed.notify_all()

    def wait_for_batch_end(self, seconds: float) -> None:
        """Wait until no batch is under way, at most `seconds`: otherwise work in a busy reader would never be done."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock() >= self._until, seconds)


@dataclass(slots=True)
class _Counts:
    received: int = 0  # messages delivered to us, redeliveries included
    ignored: int = 0  # records that announce nothing to read: test events, delete events
    foreign: int = 0  # objects of others, with onForeignObject = ignore
    duplicates: int = 0  # announcements of shards that were known already
    changed: int = 0  # announcements of other versions of what is published, which are not read
    reopened: int = 0  # objects of which nothing is published, and that are read again since they were announced again
    quarantined: int = 0  # messages that were not understood
    acknowledged: int = 0
    acquired: int = 0  # stale shards taken from other pipelines
    acknowledgeFailures: int = 0
    givenBack: int = 0
    lostLeases: int = 0
    lostShards: int = 0
    listed: int = 0  # objects of listings, by this reader
    backfilled: int = 0  # of these, unknown to the store and opened
    beyondMemory: int = 0  # of these, unknown and so old that they may have been read and forgotten
    existing: int = 0  # of these, unknown and there before the first listing (includeExistingFiles=false)
    listingFailures: int = 0
    pruned: int = 0
    errorsDelivered: int = 0  # to the error queue
    cleaned: int = 0  # objects that were deleted or moved after they were read (cleanSource)
    cleaningFailures: int = 0  # tries to do so that failed; the view `cleanings` has their causes
    cleaningsNeeded: int = 0  # objects that waited, since another source or a table needs them; again each hour
    maintenanceFailures: int = 0  # of work by the clock that is tried again; the log has their causes
    errors: Counter[str] = field(default_factory=Counter)  # by cause: bad messages, objects, records and rows


@dataclass(slots=True)
class Metrics:
    """Counters that any thread may raise, shown in the query's progress as numbers since the reader's start."""

    _counts: _Counts = field(default_factory=_Counts)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    def count_errors(self, causes: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.errors.update(causes)

    def snapshot(self) -> dict[str, Any]:
        """Return all counters by name; `errors` are numbers by cause."""
        with self._lock:
            return {**asdict(self._counts), "errors": dict(self._counts.errors)}


@dataclass(frozen=True, slots=True)
class Session:
    """The facts that are fixed for one reader.

    `queues` by name; `names`: how the source names its shards. `stopping` is set when the reader ends; `clock` gives
    seconds of a monotonic clock. `batches` knows whether a micro-batch is under way, for work that can wait.
    """

    options: ReaderOptions
    store: ShardStore
    queues: Mapping[str, Queue]
    token: PublishToken
    metrics: Metrics
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    batches: Precedence = field(default_factory=lambda: Precedence(time.monotonic))
    names: Names = field(default_factory=Names)

    def note_changed(self, number: int) -> None:
        """Count and log shards that were announced in another version while a batch read them, and published."""
        self.metrics.add(changed=number)
        logger.warning(
            "pipeline %s: %d object(s) were announced in another version while they were read; they are not read again",
            self.token,
            number,
        )

    @property
    def semantics(self) -> Semantics:
        return Semantics(self.options.delivery.delivery_semantics)

    @property
    def lease(self) -> float:
        """Seconds for which a message is invisible to others."""
        return self.options.leases.visibility_timeout.total_seconds()

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats."""
        return self.options.leases.heartbeat.total_seconds()

    @property
    def stale_after(self) -> float:
        """Seconds after the last heartbeat at which other pipelines may take our shards."""
        return self.options.leases.stale_after.total_seconds()

    @property
    def patiently(self) -> tenacity.Retrying:
        """The retries for one call to a queue."""
        return with_back_off(self.stopping, self.options.queue.retry_timeout.total_seconds(), self.clock)


def with_back_off(
    stopping: threading.Event,
    seconds: float,
    clock: Callable[[], float],
    is_passing: Callable[[BaseException], bool] = lambda error: isinstance(error, QueueUnavailable),
) -> tenacity.Retrying:
    """Build the retries of a call, for `seconds`, while a queue (or what `is_passing` accepts) is unavailable.

    They end with `stopping`. Waits are 1 s, doubled, at most 30 s, with full jitter; then the error of the last call is
    raised.
    """
    end = clock() + seconds
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_passing),
        wait=tenacity.wait_random_exponential(multiplier=1.0, max=30.0),
        stop=lambda _: stopping.is_set() or clock() >= end,
        sleep=tenacity.sleep_using_event(stopping),
        before_sleep=lambda state: logger.warning("%s; it is tried again", state.outcome and state.outcome.exception()),
        reraise=True,
    )


_POLL = 0.1  # seconds
_FILE = re.compile(r"([0-9a-f]{32})-([0-9]+)")


class Presence:
    """The readers of one pipeline in one driver, as files in a folder of the driver's: one for each incarnation."""

    def __init__(self, folder: Path, store_id: str, pipeline: str) -> None:
        self._folder = folder
        self._pipeline = hashlib.sha256(f"{store_id}\0{pipeline}".encode()).hexdigest()[:32]
        self._own: tuple[Path, int] | None = None

    def enter(self, token: PublishToken) -> None:
        """Register this reader before its first plan, until `leave` or the end of this process.

        Where the folder takes no file, or its file system has no locks, other readers do not see this one.
        """
        file = self._folder / f"{self._pipeline}-{token.incarnation}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own = file, hold(file)
        except OSError as error:
            logger.warning(
                "pipeline %s: another query of this driver would not notice that this one runs the same pipeline: %s",
                token,
                error,
            )

    def leave(self) -> None:
        """Unregister this reader, which plans nothing more: Spark ends a reader when its thread has ended."""
        own, self._own = self._own, None
        if own is not None:
            release(*own)

    def has_others(self, token: PublishToken) -> bool:
        """Tell whether a reader of an earlier incarnation still runs."""
        for file in self._folder.iterdir() if self._folder.is_dir() else ():
            named = _FILE.fullmatch(file.name)
            is_earlier = named and named[1] == self._pipeline and int(named[2]) < token.incarnation
            if is_earlier and is_held(file):
                return True
        return False


def await_readers_before(session: Session, presence: Presence, *, unfinished: bool) -> None:
    """Wait until this pipeline's earlier readers in this driver have ended: their sinks must not take our plans.

    A sink is built after its reader's plan, perhaps long after: Spark may run jobs in between. It takes the plan that
    is the pipeline's current one in its driver. The earlier reader is fenced, so its query ends at its next call.
    `unfinished`: its last plan is not finished, so its sink may still be to come; then we begin only after its end.
    Otherwise it gets the time of a heartbeat, in which it notices that it was replaced. Raises OptionError where its
    end does not come.
    """
    clock, token = session.clock, session.token
    began = beat = clock()
    if presence.has_others(token):
        logger.warning(
            "pipeline %s: another query of this driver runs the same pipeline; it was replaced, and this one begins "
            "when it has ended; stop it, or give each query its own 'pipeline'",
            token,
        )
    while presence.has_others(token):
        now = clock()
        if not unfinished and now - began > session.heartbeat:
            return
        if now - began > session.stale_after:
            raise OptionError(
                "pipeline",
                f"{token.pipeline!r} is run by another query of this driver, whose batch does not end: stop that "
                "query, and start this one again, or give each query its own 'pipeline'; if there is no other query, "
                "this one joins the stream with itself, which Spark reads as two: join each batch with itself in "
                "foreachBatch instead",
            )
        if now - beat > session.heartbeat:
            session.store.heartbeat(token, session.stale_after)
            beat = now
        if session.stopping.wait(_POLL):
            return


class Threads:
    """The threads of one reader. The first failure stops all of them and is raised by `check` (invariant 8).

    `held`: none runs before `begin`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self._held = held
        self.stopping = threading.Event()
        self._wakes: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def on_stop(self, *wakes: Callable[[], None]) -> None:
        """Call `wakes` when the threads are to end: they wake all that wait, the threads included."""
        self._wakes += wakes

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Run `work` on a thread of its own, in a copy of our context: its log lines have the same origin."""

        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - kept, and raised by Spark's next call
                self._failure = self._failure or error
                self._stop()

        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(guarded,), name=f"cuesqueue-{name}", daemon=True)
        self._threads.append(thread)
        if not self._held:
            thread.start()

    def begin(self) -> None:
        """Start the threads that were held until now."""
        self._held = False
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What has ended the threads, if they have not been stopped."""
        return self._failure

    def check(self) -> None:
        """Raise the failure that has ended the threads, if there was one."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Ask all threads to end, and wait up to `patience` seconds for each."""
        self._stop()
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(patience)

    def _stop(self) -> None:
        self.stopping.set()
        for wake in self._wakes:
            wake()
