"""What becomes of a shard between two looks at the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from queue_source.announcements.contents import Stat
from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.opening import Ownership
from queue_source.coordinator.ready import Limits
from queue_source.coordinator.sizes import Sizes
from queue_source.messages import Receipt
from shard_store.model import PublishToken, Shard, ShardKey, ShardState
from shard_store.store import ShardStore, open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.deliveries import hold, received
from support.sessions import make_session
from support.store_backends import Pipeline, content


def test_what_is_pruned_unread_before_it_is_acquired_is_new_and_its_message_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    with open_store(f"sqlite:///{tmp_path}/store.db", clock=lambda: now[0]) as store:
        gone, us = Pipeline.start(store, "gone", "files"), Pipeline.start(store, "p", "files")
        (released,) = gone.open("a").values()
        store.release(gone.token, [released.key])
        session = make_session(store, token=us.token)
        in_flight = InFlight(["q"], Limits(10, 10))
        stat: Stat = lambda uris: [None] * len(uris)  # noqa: E731
        ownership = Ownership(session, in_flight, stat, Sizes(session, stat, None))
        message = "q", Receipt("r")
        hold(in_flight, [received(message)])
        found = store.open_shards(us.token, "files", [content("a")])
        in_flight.announce([Opened(message, {released.key: content("a")})])
        acquire = ShardStore.acquire

        def prune_first(
            store: ShardStore, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]
        ) -> set[ShardKey]:
            now[0] += 8 * 86_400  # it slept: what was announced again would stay for a window
            assert store.prune(RetentionPolicy(timedelta(days=7))).shards == 1
            return acquire(store, token, seen)

        monkeypatch.setattr(ShardStore, "acquire", prune_first)
        ownership.resolve(found.values(), in_flight.look())
        assert [entry.content.shard_id for entry in in_flight.take(10, None)] == ["a"]
        assert in_flight.foreign() == []


def test_what_was_opened_after_it_was_looked_at_ends_no_wait_of_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        us = Pipeline.start(store, "p", "files")
        (opened,) = us.open("a").values()
        session = make_session(store, token=us.token)
        in_flight = InFlight(["q"], Limits(10, 10))
        stat: Stat = lambda uris: [None] * len(uris)  # noqa: E731
        ownership = Ownership(session, in_flight, stat, Sizes(session, stat, None))
        before, after = ("q", Receipt("before")), ("q", Receipt("after"))
        hold(in_flight, [received(before), received(after)])
        in_flight.announce([Opened(before, {opened.key: opened.content})])
        look, looks = ShardStore.look, []

        def as_it_was_a_moment_ago(store: ShardStore, keys: Iterable[ShardKey]) -> dict[ShardKey, Shard]:
            looks.append(keys)
            seen = look(store, keys)
            if len(looks) > 1:
                return seen
            in_flight.announce([Opened(after, {opened.key: opened.content})])  # its message has opened it again
            return {key: shard._replace(state=ShardState.QUARANTINED) for key, shard in seen.items()}

        monkeypatch.setattr(ShardStore, "look", as_it_was_a_moment_ago)
        ownership.get_again([opened.key])
        assert in_flight.begin_acknowledging("q", 10) == {before: False}
        assert [entry.content.shard_id for entry in in_flight.take(10, None)] == ["a"]
