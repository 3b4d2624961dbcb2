"""Deletes or moves objects that were read, on its own thread: one pipeline of the source at a time.

The plan is stored before the work, and the outcome after it (`upkeep/cleaning.py`). A crash in between only repeats the
work: what is gone stays gone, and an object that was replaced since is left alone.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from hashlib import sha256

from queue_source.coordinator.session import Session
from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.storage.buckets import Bucket, Known, Outcome
from queue_source.storage.files import bucket_of
from queue_source.uris import azure_uri, climbs
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import time_of
from shard_store.upkeep import cleaning
from shard_store.upkeep.cleaning import Cleaning, Ended, Planned

logger = logging.getLogger("cuesqueue")

_EVERY = 60.0  # seconds between two rounds over all pipelines, and for one round
_PLANNED = 1000
_BATCH = 250  # objects of one call to a bucket: as many are done again after a crash
_SAME_CLOCK = timedelta(seconds=2)  # dates of HTTP have whole seconds, and an answer takes its time
_DETAIL = 1000  # characters
_PLAIN = re.compile(r"[\w=-][\w.=-]{0,199}", re.ASCII)


class Cleaner:
    """Cleans on one thread.

    Failures are recorded, logged, counted (`cleaningFailures`) and tried again; they end no query.
    """

    def __init__(self, session: Session, open_bucket: Callable[[str], Bucket]) -> None:
        self._session = session
        self._open_bucket = open_bucket
        options = session.options
        self._allowed = options.notifications.allowed_prefixes
        self._destination = options.cleaning.destination
        self._versions = options.notifications.allow_overwrites

    def run(self) -> None:
        session = self._session
        source = session.options.source
        pause = 0.0
        while not session.stopping.wait(pause):
            pause = min(_EVERY, session.heartbeat)
            try:
                if session.store.win_interval(f"clean {source}", _EVERY):
                    self.clean()
            except LostProgress:
                raise
            except ShardStoreError as error:
                session.metrics.add(maintenanceFailures=1)
                logger.warning("source %s: cleaning: %s; it is tried again", source, error)

    def clean(self) -> None:
        """Clean as much as the time of a round allows."""
        session = self._session
        until = session.clock() + _EVERY
        while not session.stopping.is_set() and session.clock() < until:
            planned = session.store.plan_cleanings(
                session.options.source, session.options.cleaning.retention, self._choose, _PLANNED
            )
            reach("cleanings-planned")
            if not self._clean_some() and not planned:
                return

    def _choose(self, shard_id: str, uri: str) -> Planned | None:
        """Plan what to do with the object of a finished shard; None for one that is not allowed."""
        if not uri.startswith(self._allowed):
            return None
        version = shard_id[len(uri) + 1 :] if shard_id.startswith(f"{uri}#") else None
        return Planned(uri, self._target(uri, version), version)

    def _target(self, uri: str, version: str | None) -> str | None:
        return None if self._destination is None else moved_to(uri, version, self._destination)

    def _clean_some(self) -> int:
        """Clean the objects that are due next; return how many there were."""
        session = self._session
        due, now = session.store.due_cleanings(session.options.source, _BATCH)
        if not due:
            return 0
        # only the options decide where objects go, which may have changed since the plan, and never the store
        targets = {due_object.shard_key: self._target(due_object.uri, due_object.version) for due_object in due}
        if other := {item.shard_key: targets[item.shard_key] for item in due if item.target != targets[item.shard_key]}:
            session.store.redirect_cleanings(other)
        ended: list[Ended] = []
        by_bucket: defaultdict[str, list[Cleaning]] = defaultdict(list)
        for due_object in due:
            end = partial(Ended, due_object.shard_key, due_object.read_at)
            if due_object.again:
                ended.append(end(cleaning.CHANGED, "announced-again"))
            elif due_object.needed is not None:
                ended.append(end(cause=cleaning.NEEDED, detail=due_object.needed))
            elif due_object.has_bad_records and targets[due_object.shard_key] is None:
                # for good: the errors that say so are forgotten some day
                ended.append(end(cleaning.CHANGED, "bad-records"))
            elif not (azure_uri(due_object.uri) or due_object.uri).startswith(self._allowed) or climbs(due_object.uri):
                detail = f"{due_object.uri!r} is outside of allowedPrefixes"
                ended.append(end(cause="forbidden-object", detail=detail, hopeless=True))
            else:
                target = targets[due_object.shard_key]
                by_bucket[bucket_of(due_object.uri)].append(due_object._replace(target=target))
        for objects in by_bucket.values():
            outcomes = self._in_bucket(objects, now)
            ended += [_ended(due_object, outcome) for due_object, outcome in zip(objects, outcomes, strict=True)]
        reach("objects-cleaned")
        session.store.end_cleanings(ended)
        reach("cleanings-ended")
        self._report(due, ended)
        return len(due)

    def _in_bucket(self, objects: Sequence[Cleaning], now: int) -> Sequence[Outcome]:
        """Delete or move the objects, where they still are what was read."""
        try:
            with closing(self._open_bucket(objects[0].uri)) as bucket:
                skew = timedelta()
                alone = next((due_object.uri for due_object in objects if due_object.etag is None), None)
                if alone is not None:  # only the time tells versions apart, by the clock of the object store
                    skew = bucket.now(alone) - time_of(now)
                    skew = timedelta() if abs(skew) < _SAME_CLOCK else skew
                deleted: dict[int, Known] = {}
                moved: dict[int, tuple[Known, str]] = {}
                for place, due in enumerate(objects):
                    identity = Known(due.uri, due.size, due.etag, time_of(due.opened_at) + skew, due.version)
                    if due.target is None:
                        deleted[place] = identity
                    else:
                        moved[place] = identity, due.target
                outcomes = [*bucket.delete(list(deleted.values())), *bucket.move(list(moved.values()))]
                by_place = dict(zip([*deleted, *moved], outcomes, strict=True))
                return [by_place[place] for place in range(len(objects))]
        except (BadObject, ObjectStoreError) as error:
            return [error] * len(objects)

    def _report(self, due: Sequence[Cleaning], ended: Sequence[Ended]) -> None:
        """Log one line for a batch, and one for its failures."""
        session = self._session
        outcomes = Counter(end.outcome for end in ended if end.outcome is not None)
        needed = [end for end in ended if end.cause == cleaning.NEEDED]
        failed = [end for end in ended if end.outcome is None and end.cause != cleaning.NEEDED]
        session.metrics.add(cleaned=outcomes[cleaning.DONE], cleaningFailures=len(failed), cleaningsNeeded=len(needed))
        source = session.options.source
        logger.info(
            "source %s: of %d object(s) that were read, %d are %s, %d are others by now and stay, and %d are needed "
            "elsewhere and wait",
            source,
            len(due),
            outcomes[cleaning.DONE],
            "deleted" if self._destination is None else "moved",
            outcomes[cleaning.CHANGED],
            len(needed),
        )
        if failed:
            causes = ", ".join(f"{number} {cause}" for cause, number in Counter(end.cause for end in failed).items())
            logger.warning(
                "source %s: %d object(s) could not be cleaned (%s) and are tried again; the first: %s",
                source,
                len(failed),
                causes,
                failed[0].detail,
            )


def moved_to(uri: str, version: str | None, destination: str) -> str:
    """Build the path of the moved object, below the destination.

    Where versions are distinguished, the version comes before the name, since the next version will have the same name.
    """
    location = uri.partition("://")[2]
    path = location.lstrip("/") if uri.startswith("file:") else location.partition("/")[2]
    if version is None:
        return destination + path
    folder, slash, name = path.rpartition("/")
    if not _PLAIN.fullmatch(version):  # the sender of a message chose the version: it must not lead to another folder
        version = sha256(version.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{destination}{folder}{slash}{version}/{name}"


def _ended(due_object: Cleaning, outcome: Outcome) -> Ended:
    if outcome is None:
        return Ended(due_object.shard_key, due_object.read_at, cleaning.DONE)
    detail = str(outcome)[:_DETAIL]
    if isinstance(outcome, BadObject):
        if outcome.cause == "object-changed":
            return Ended(due_object.shard_key, due_object.read_at, cleaning.CHANGED, outcome.cause, detail)
        return Ended(due_object.shard_key, due_object.read_at, cause=outcome.cause, detail=detail, hopeless=True)
    refused = isinstance(outcome, ObjectRefused)
    cause = "forbidden-object" if refused else "unavailable"
    return Ended(due_object.shard_key, due_object.read_at, cause=cause, detail=detail, hopeless=refused)
