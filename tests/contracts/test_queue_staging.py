"""Staged messages of a SQL queue: nobody sees them before the transaction that shows them, and then all are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from queue_source.errors import QueueError
from queue_source.messages import Outgoing
from queue_source.queues.base import Unsendable
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import messages, parse_address
from queue_source.queues.sql.staging import Staging, hidden_queue, staged
from shard_store.sql.database import Transaction
from support.servers.proxy import commit_cutter
from support.store_backends import StoreBackend


class Refused(Exception):
    """What a test raises inside a transaction."""


@pytest.fixture
def queue(backend: StoreBackend) -> Iterator[SqlQueue]:
    """In the store's database; what other tests left in it is gone."""
    with SqlQueue(url_of(backend)) as opened:
        opened.create()
        with staging_of(backend) as staging:
            staging.prepare()
            staging._database.write(lambda c: [c.execute(sa.delete(table)) for table in (messages, staged)])
        yield opened


def url_of(backend: StoreBackend) -> str:
    return f"sql+{backend.url}{'&' if '?' in backend.url else '?'}queue=target"


class StagingOf(Staging):
    def __enter__(self) -> StagingOf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def staging_of(backend: StoreBackend, owner: str = "p") -> StagingOf:
    return StagingOf(parse_address(url_of(backend)), owner)


def outgoing(*bodies: str, group: str | None = None) -> list[Outgoing]:
    return [Outgoing(body.encode(), "a.b", {"n": body}, group) for body in bodies]


def bodies(queue: SqlQueue) -> list[str]:
    return sorted(message.body.decode() for message in queue.peek(10_000))


def left(staging: Staging) -> tuple[int, int]:
    """Entries, and messages in hidden queues."""

    def count(t: Transaction) -> tuple[int, int]:
        hidden = sa.select(sa.func.count()).where(messages.c.queue.like(" %"))
        entries = sa.select(sa.func.count()).select_from(staged)
        return t.execute(entries).scalar_one(), t.execute(hidden).scalar_one()

    return staging._database.read(count)


def test_staged_messages_are_seen_by_nobody_until_they_are_shown_in_a_transaction_of_the_store(
    backend: StoreBackend, queue: SqlQueue
) -> None:
    database = backend.open().database
    with staging_of(backend) as staging:
        name = staging.begin()
        assert staging.add(name, 0, outgoing("1", "2")) == 2
        assert staging.add(name, 2, outgoing("3", group="g")) == 3
        assert (queue.depth().total, queue.receive(10, 60, 0), queue.peek(10)) == (0, [], [])

        def show_and_fail(t: Transaction) -> None:
            staging.show(t, [name])
            raise Refused

        with pytest.raises(Refused):
            database.write(show_and_fail)
        assert queue.depth().total == 0
        assert database.write(lambda connection: staging.show(connection, [name])) == []
        found = queue.receive(10, 60, 0)
        assert [(m.body, m.tag, dict(m.headers), m.group) for m in found] == [
            (b"1", "a.b", {"n": "1"}, None),
            (b"2", "a.b", {"n": "2"}, None),
            (b"3", "a.b", {"n": "3"}, "g"),
        ]
        queue.send(["later"])
        assert all(m.sent_at is not None and m.sent_at > 1_600_000_000 for m in found)
        assert left(staging) == (0, 0)


def test_what_failed_attempts_staged_is_abandoned_by_the_publish_and_cleaned(
    backend: StoreBackend, queue: SqlQueue
) -> None:
    database = backend.open().database
    with staging_of(backend) as staging, staging_of(backend, "another pipeline") as other:
        failed, winner, others = staging.begin(), staging.begin(), other.begin()
        staging.add(failed, 0, outgoing(*map(str, range(1500))))
        staging.add(winner, 0, outgoing("won"))
        other.add(others, 0, outgoing("of another"))
        abandoned = database.write(lambda connection: staging.show(connection, [winner]))
        assert abandoned == [failed]
        with pytest.raises(QueueError, match="another attempt at this batch was published"):
            staging.add(failed, 1500, outgoing("too late"))
        assert staging.clean(abandoned) == 1500
        assert left(staging) == (1, 1)
        with pytest.raises(QueueError, match="another attempt"):
            staging.add(failed, 1500, outgoing("far too late"))
        assert database.write(lambda connection: other.show(connection, [others])) == []
    assert bodies(queue) == ["of another", "won"]


def test_what_a_crash_left_to_clean_is_found_by_the_next_batch(backend: StoreBackend, queue: SqlQueue) -> None:
    database = backend.open().database
    with staging_of(backend) as staging:
        failed = staging.begin()
        staging.add(failed, 0, outgoing("1"))
        assert database.write(staging.abandon) == [failed]
        assert database.write(staging.abandon) == [failed]
        staging.clean([failed])
        assert (left(staging), database.write(staging.abandon)) == ((0, 0), [])


def test_messages_that_are_gone_undo_the_whole_transaction(backend: StoreBackend, queue: SqlQueue) -> None:
    database = backend.open().database
    with staging_of(backend) as staging:
        name = staging.begin()
        staging.add(name, 0, outgoing("1", "2"))
        first = sa.select(sa.func.min(messages.c.id)).where(messages.c.queue == hidden_queue(name))
        number = database.read(lambda connection: connection.execute(first).scalar_one())
        database.write(lambda connection: connection.execute(sa.delete(messages).where(messages.c.id == number)))
        with pytest.raises(QueueError, match="of 1 tasks that staged messages 1 are known with 2 messages, and 1"):
            database.write(lambda connection: staging.show(connection, [name]))
        with pytest.raises(QueueError, match="of 1 tasks that staged messages 0 are known with 0 messages, and 0"):
            database.write(lambda connection: staging.show(connection, ["never begun"]))
        assert queue.depth().total == 0


def test_staging_is_the_same_when_a_transaction_runs_again_though_it_was_committed(
    backend: StoreBackend, queue: SqlQueue
) -> None:
    """As after a connection that was lost during COMMIT."""
    with staging_of(backend) as staging:
        name = staging.begin()
        staging.add(name, 0, outgoing("1", "2"))
        assert staging.add(name, 0, outgoing("1", "2")) == 2
        assert left(staging) == (1, 2)


def test_a_message_that_no_database_keeps_is_named_and_nothing_is_staged(
    backend: StoreBackend, queue: SqlQueue
) -> None:
    with staging_of(backend) as staging:
        name = staging.begin()
        with pytest.raises(Unsendable, match="NUL") as caught:
            staging.add(name, 0, [Outgoing(b"good"), Outgoing(b"bad", "a\0b")])
        assert (caught.value.place, left(staging)) == (1, (1, 0))


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_of_which_nobody_knows_the_outcome_stages_once(
    backend: StoreBackend, queue: SqlQueue, cut: str
) -> None:
    url = make_url(backend.url)
    assert url.port is not None
    with commit_cutter(url.port) as cutter:
        through = url.set(port=cutter.port).render_as_string(hide_password=False)
        with StagingOf(parse_address(f"sql+{through}?queue=target"), "p") as staging:
            name = staging.begin()
            cutter.cut = "before" if cut == "before" else "after"
            assert staging.add(name, 0, outgoing("1", "2")) == 2
            assert (cutter.cuts, left(staging)) == (1, (1, 2))
