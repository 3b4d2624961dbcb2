"""The opener thread: what was received becomes shards of ours, errors, or nothing to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from queue_source.announcements.contents import Announced, Stat, announced_messages, announced_objects, apart
from queue_source.coordinator.error_log import ErrorLog
from queue_source.coordinator.error_queue import ErrorQueue
from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.ownership import Ownership
from queue_source.coordinator.prefix_watch import PrefixWatch
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.session import Session
from queue_source.messages import Received, key_of
from shard_store.model import BEGINNING, Content, Shard, ShardKey, ShardState, shard_key
from shard_store.sql.transaction import ROWS_PER_STATEMENT

logger = logging.getLogger("cuesqueue")

_NAMED = 10  # reopened objects of a batch of messages that are logged by name


@dataclass
class Opener:
    """Up to 1,000 messages a transaction: all their shards are opened in one statement."""

    _session: Session
    _stat: Stat
    _in_flight: InFlight
    _ownership: Ownership
    _errors: ErrorQueue
    _error_log: ErrorLog
    _prefixes: PrefixWatch

    def run(self) -> None:
        while not self._session.stopping.is_set():
            messages = self._in_flight.begin_opening(ROWS_PER_STATEMENT, 0.5)
            if messages:
                self._open(messages)
                self._in_flight.end_opening()

    def _open(self, messages: Sequence[Received]) -> None:
        """Parse, record errors, open, and let each message wait for what it announced."""
        said = self._announced(messages)
        announced = self._with_begun(said)
        self._record([one for one in announced if one.error is not None])
        self._prefixes.count(said)
        found = self._find(announced)
        self._count(announced, found)
        self._in_flight.announce([self._opened(one, found) for one in announced])
        self._ownership.resolve(found.values())

    def _announced(self, messages: Sequence[Received]) -> list[Announced]:
        options, queue_names = self._session.options, self._session.names.queues
        if options.content.kind.is_announced:
            announced = announced_objects(
                messages, options.notifications, self._stat, in_pieces=partial(may_come_in_pieces, options)
            )
        else:
            announced = announced_messages(messages, options.notifications, queue_names)
        if not self._session.semantics.keeps_shards:
            announced = [apart(one, queue_names) for one in announced]
        if self._session.names.versionless:
            announced = self._without_versions(announced)
        return announced

    def _without_versions(self, announced: list[Announced]) -> list[Announced]:
        """What was begun before `allowOverwrites` was set has the URI alone as its id; only another version is new."""
        versioned = {self._key(c.uri) for one in announced for c in one.contents if c.shard_id != c.uri}
        known = {
            shard.content.uri: shard.content
            for shard in self._session.store.look(versioned).values()
            if shard.state is not ShardState.QUARANTINED
        }

        def named(content: Content) -> Content:
            before = known.get(content.uri)
            return (
                content
                if before is None or not _same_version(before, content)
                else content._replace(shard_id=content.uri)
            )

        return [one._replace(contents=tuple(map(named, one.contents))) for one in announced] if known else announced

    def _with_begun(self, announced: list[Announced]) -> list[Announced]:
        """What was begun is read to its end, whatever its age is by now: or a part of its rows would be missing."""
        session = self._session
        keys = {self._key(content.shard_id) for one in announced for content in one.left_out}
        if not keys:
            return announced
        if session.semantics.keeps_shards:
            begun = {key for key, shard in session.store.look(keys).items() if shard.state is ShardState.OPEN}
        else:
            begun = self._in_flight.awaited(keys)
        return [self._decided(one, begun) for one in announced]

    def _decided(self, one: Announced, begun: set[ShardKey]) -> Announced:
        going_on = tuple(content for content in one.left_out if self._key(content.shard_id) in begun)
        ignored = one.ignored + len(one.left_out) - len(going_on)
        return one._replace(contents=one.contents + going_on, ignored=ignored, left_out=())

    def _record(self, malformed: Sequence[Announced]) -> None:
        if malformed:
            options, names = self._session.options, self._session.names.queues
            bad = [one.error for one in malformed if one.error is not None]
            records = [replace(error, origin=names.get(error.queue, "")) for error in bad]
            self._session.store.record_errors(options.source, options.pipeline, records)
            self._error_log.of_messages(records)
            self._errors.forward()

    def _find(self, announced: Sequence[Announced]) -> dict[ShardKey, Shard]:
        """The shards of what is announced, those that are new opened as ours."""
        session = self._session
        contents = [content for one in announced for content in one.contents]
        if not session.semantics.keeps_shards:
            return self._find_unkept(announced)
        return session.store.open_shards(session.token, session.options.source, contents) if contents else {}

    def _find_unkept(self, announced: Sequence[Announced]) -> dict[ShardKey, Shard]:
        """Where the store keeps no shards, each is new and ours, unless only its message was still awaited.

        A message without an id of its own cannot be distinguished from another that is equal.
        """
        keys = {self._key(content.shard_id): (one, content) for one in announced for content in one.contents}
        known = self._in_flight.recall_done(keys)
        return {
            key: Shard(
                key,
                content,
                BEGINNING,
                ShardState.DONE if key in known and one.message.has_id else ShardState.OPEN,
                self._session.token,
                stale=False,
            )
            for key, (one, content) in keys.items()
        }

    def _opened(self, one: Announced, found: Mapping[ShardKey, Shard]) -> Opened:
        contents = {self._key(content.shard_id): content for content in one.contents}
        pending = {key: content for key, content in contents.items() if found[key].state is ShardState.OPEN}
        return Opened(key_of(one.message), pending)

    def _key(self, shard_id: str) -> ShardKey:
        return shard_key(self._session.options.source, shard_id)

    def _count(self, announced: Sequence[Announced], found: Mapping[ShardKey, Shard]) -> None:
        waited_for, token = self._in_flight.awaited(found), self._session.token
        reopened = [shard for shard in found.values() if shard.reopened]
        for shard in reopened[:_NAMED]:
            logger.info(
                "pipeline %s: %r was found bad, and is read again: it was announced again", token, shard.content.uri
            )
        known = sum(
            shard.state is not ShardState.OPEN or key in waited_for or shard.token != token
            for key, shard in found.items()
        )
        self._session.metrics.add(
            quarantined=sum(one.error is not None for one in announced),
            ignored=sum(one.ignored for one in announced),
            foreign=sum(one.foreign for one in announced),
            reopened=len(reopened),
            duplicates=sum(len(one.contents) for one in announced) - len(found) + known,
        )


def _same_version(one: Content, other: Content) -> bool:
    """By their ETags; where one is not known, by their sizes, as far as these are."""
    if one.etag is not None and other.etag is not None:
        return one.etag == other.etag
    return one.size is None or other.size is None or one.size == other.size
