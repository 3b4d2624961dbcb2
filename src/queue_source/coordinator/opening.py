"""The opener thread: what was received becomes shards of ours, errors, or nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from queue_source.announcements.intake import Intake, Stat, set_apart, take_in, take_messages
from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.crew import Crew
from queue_source.coordinator.forwarding import ErrorForwarder
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import key_of
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.receiving import Receivers
from queue_source.coordinator.routing import Router
from queue_source.messages import Received
from queue_source.options import ReaderOptions
from shard_store.model import BEGINNING, PublishToken, Shard, ShardKey, ShardState, shard_key
from shard_store.semantics import Semantics
from shard_store.sql.transaction import ROWS_PER_STATEMENT
from shard_store.store import ShardStore


class Opener:
    """Up to 1,000 messages a transaction: all their shards are opened in one statement (Quickwit's OpenShards)."""

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        stat: Stat,
        pen: HoldingPen,
        receivers: Receivers,
        router: Router,
        acknowledger: Acknowledger,
        forwarder: ErrorForwarder,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._semantics = Semantics(options.delivery.delivery_semantics)
        self._store = store
        self._stat = stat
        self._pen = pen
        self._receivers = receivers
        self._router = router
        self._acknowledger = acknowledger
        self._forwarder = forwarder
        self._metrics = metrics
        self._clock = clock

    def run(self, crew: Crew, token: PublishToken) -> None:
        pen = self._pen
        while crew.working:
            with pen.changed:
                messages = pen.begin_opening(ROWS_PER_STATEMENT)
                if not messages:
                    pen.changed.wait(0.5)
                    continue
            self._open(self._receivers.sort_out(messages), token)
            with pen.changed:
                pen.end_opening()

    def _open(self, messages: Sequence[Received], token: PublishToken) -> None:
        """Parse, quarantine, open, and hang each message on what it announced."""
        source, pipeline = self._options.source, self._options.pipeline
        if self._options.content.content == "message":
            intake = take_messages(messages, self._options.notifications)
        else:
            intake = take_in(messages, self._options.notifications, self._stat)
        if not self._semantics.keeps_shards:
            set_apart(intake)
        if intake.errors:
            self._store.record_errors(source, pipeline, list(intake.errors.values()))
            self._forwarder.forward()
        contents = [content for some in intake.contents.values() for content in some]
        if self._semantics.keeps_shards:
            found = self._store.open_shards(token, source, contents) if contents else {}
        else:
            found = self._open_unkept(intake, messages, token)
        self._count(intake, len(contents), found, token)
        complete = [key_of(messages[place]) for place in (*intake.errors, *intake.ignored)]
        now = self._clock()
        with self._pen.changed:
            for place, announced in intake.contents.items():
                message = key_of(messages[place])
                keys = {shard_key(source, content.shard_id): content for content in announced}
                pending = {key: content for key, content in keys.items() if found[key].state is ShardState.OPEN}
                self._pen.tracker.hang(message, pending, now)
                if not pending:
                    complete.append(message)
        self._router.route(found.values())
        self._acknowledger.later(complete)

    def _open_unkept(self, intake: Intake, messages: Sequence[Received], token: PublishToken) -> dict[ShardKey, Shard]:
        """Where the store keeps no shards, each is new and ours, unless this very message was awaited.

        One without an id of its own cannot be told from another that is equal.
        """
        found: dict[ShardKey, Shard] = {}
        with self._pen.changed:
            awaited = self._pen.tracker.awaited
            for place, contents in intake.contents.items():
                for content in contents:
                    key = shard_key(self._options.source, content.shard_id)
                    done = messages[place].has_id and key in awaited
                    awaited.discard(key)
                    state = ShardState.DONE if done else ShardState.OPEN
                    found[key] = Shard(key, content, BEGINNING, state, token, stale=False)
        return found

    def _count(self, intake: Intake, announced: int, found: Mapping[ShardKey, Shard], token: PublishToken) -> None:
        with self._pen.changed:
            waiting = self._pen.tracker.waiting
            known = sum(
                shard.state is not ShardState.OPEN or key in waiting or shard.token != token
                for key, shard in found.items()
            )
        self._metrics.add(
            quarantined=len(intake.errors),
            ignored=intake.ignored_records,
            duplicates=announced - len(found) + known,
        )
