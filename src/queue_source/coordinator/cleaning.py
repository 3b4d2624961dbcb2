"""Deleting or moving objects once they were read, on a thread of its own: one pipeline of the source at a time.

What is to be done is written into the store before, and what came of it after (`upkeep/cleaning.py`). A death in
between is no more than a repetition: what is gone stays gone, and what is another object by now is left alone.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import sha256

from queue_source.coordinator.session import Session
from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.storage.buckets.base import Bucket, Known, Outcome
from queue_source.storage.files import bucket_of
from queue_source.uris import climbs
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import time_of
from shard_store.upkeep import cleaning
from shard_store.upkeep.cleaning import Cleaning, Ended, Planned

logger = logging.getLogger("cuesqueue")

_EVERY = 60.0  # seconds between two rounds over all pipelines, and for one round
_PLANNED = 1000
_BATCH = 250  # objects of one call to a bucket: as many as are done again after a death
_SAME_CLOCK = timedelta(seconds=2)  # dates of HTTP have whole seconds, and an answer takes its time
_DETAIL = 1000  # characters
_PLAIN = re.compile(r"[\w=-][\w.=-]{0,199}", re.ASCII)


class Cleaner:
    """One thread. What fails is written down, logged, counted (`cleaningFailures`) and tried again.

    It ends no query.
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
                    self._round()
            except LostProgress:
                raise
            except ShardStoreError as error:
                session.metrics.add(maintenanceFailures=1)
                logger.warning("source %s: cleaning: %s; it is tried again", source, error)

    def _round(self) -> None:
        """As much as can be done in the time that is ours."""
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
        """What is to be done with the object of a finished shard."""
        if not uri.startswith(self._allowed):
            return None
        version = shard_id[len(uri) + 1 :] if shard_id.startswith(f"{uri}#") else None
        return Planned(uri, self._target(uri, version), version)

    def _target(self, uri: str, version: str | None) -> str | None:
        return None if self._destination is None else moved_to(uri, version, self._destination)

    def _as_options_say(self, due: Sequence[Cleaning]) -> list[Cleaning]:
        """Options may have changed since it was planned. And nobody who writes to the store says where objects go."""
        wanted = {one.shard_key: self._target(one.uri, one.version) for one in due}
        if other := {one.shard_key: wanted[one.shard_key] for one in due if one.target != wanted[one.shard_key]}:
            self._session.store.redirect_cleanings(other)
        return [one._replace(target=wanted[one.shard_key]) for one in due]

    def _clean_some(self) -> int:
        """What is due next; how many it were."""
        session = self._session
        due, now = session.store.due_cleanings(session.options.source, _BATCH)
        if not due:
            return 0
        due = self._as_options_say(due)
        ended: list[Ended] = []
        by_bucket: defaultdict[str, list[Cleaning]] = defaultdict(list)
        for one in due:
            if one.again:
                ended.append(Ended(one.shard_key, one.read_at, cleaning.CHANGED, "announced-again"))
            elif not one.uri.startswith(self._allowed) or climbs(one.uri):
                detail = f"{one.uri!r} is outside of allowedPrefixes"
                ended.append(Ended(one.shard_key, one.read_at, cause="forbidden-object", detail=detail, hopeless=True))
            else:
                by_bucket[bucket_of(one.uri)].append(one)
        for objects in by_bucket.values():
            outcomes = self._in_bucket(objects, now)
            ended += [_ended(one, outcome) for one, outcome in zip(objects, outcomes, strict=True)]
        reach("objects-cleaned")
        session.store.end_cleanings(ended)
        reach("cleanings-ended")
        self._report(due, ended)
        return len(due)

    def _in_bucket(self, objects: Sequence[Cleaning], now: int) -> Sequence[Outcome]:
        try:
            with closing(self._open_bucket(objects[0].uri)) as bucket:
                known = self._known(bucket, objects, now)
                outcomes: list[Outcome] = [None] * len(objects)
                deleted = [place for place, one in enumerate(objects) if one.target is None]
                moved = [(place, one.target) for place, one in enumerate(objects) if one.target is not None]
                found = bucket.delete([known[place] for place in deleted])
                found += bucket.move([(known[place], target) for place, target in moved])
                for place, outcome in zip([*deleted, *(place for place, _ in moved)], found, strict=True):
                    outcomes[place] = outcome
                return outcomes
        except (BadObject, ObjectStoreError) as error:
            return [error] * len(objects)

    def _known(self, bucket: Bucket, objects: Sequence[Cleaning], now: int) -> list[Known]:
        """As the bucket compares them. Where only the time tells, the store's clock is compared with the database's."""
        skew = timedelta()
        alone = next((one.uri for one in objects if one.etag is None), None)
        if alone is not None:
            skew = bucket.page(alone).now - time_of(now)
            skew = timedelta() if abs(skew) < _SAME_CLOCK else skew
        return [Known(one.uri, one.size, one.etag, time_of(one.opened_at) + skew, one.version) for one in objects]

    def _report(self, due: Sequence[Cleaning], ended: Sequence[Ended]) -> None:
        """One line for a batch, and one for what failed of it."""
        session = self._session
        outcomes = Counter(one.outcome for one in ended if one.outcome is not None)
        failed = [one for one in ended if one.outcome is None]
        session.metrics.add(cleaned=outcomes[cleaning.DONE], cleaningFailures=len(failed))
        source = session.options.source
        logger.info(
            "source %s: of %d object(s) that were read, %d are %s, and %d are others by now and stay",
            source,
            len(due),
            outcomes[cleaning.DONE],
            "deleted" if self._destination is None else "moved",
            outcomes[cleaning.CHANGED],
        )
        if failed:
            causes = ", ".join(f"{number} {cause}" for cause, number in Counter(one.cause for one in failed).items())
            logger.warning(
                "source %s: %d object(s) could not be cleaned (%s) and are tried again; the first: %s",
                source,
                len(failed),
                causes,
                failed[0].detail,
            )


def moved_to(uri: str, version: str | None, destination: str) -> str:
    """The whole path of the object below the destination; where versions of it are told apart, its version before the
    name, since the next one will have the same name."""
    rest = uri.partition("://")[2]
    path = rest.lstrip("/") if uri.startswith("file:") else rest.partition("/")[2]
    if version is None:
        return destination + path
    folder, slash, name = path.rpartition("/")
    if not _PLAIN.fullmatch(version):  # whoever sends a message says what it is: it must not be a path
        version = sha256(version.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{destination}{folder}{slash}{version}/{name}"


def _ended(one: Cleaning, outcome: Outcome) -> Ended:
    if outcome is None:
        return Ended(one.shard_key, one.read_at, cleaning.DONE)
    detail = str(outcome)[:_DETAIL]
    if isinstance(outcome, BadObject):
        if outcome.cause == "object-changed":
            return Ended(one.shard_key, one.read_at, cleaning.CHANGED, outcome.cause, detail)
        return Ended(one.shard_key, one.read_at, cause=outcome.cause, detail=detail, hopeless=True)
    refused = isinstance(outcome, ObjectRefused)
    cause = "forbidden-object" if refused else "unavailable"
    return Ended(one.shard_key, one.read_at, cause=cause, detail=detail, hopeless=refused)
