"""Contract: at most 4 transactions a micro-batch and 1,000 rows a statement, however many messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from shard_store.completeness.listing import Found
from shard_store.model import LISTING, Range, Split
from shard_store.sql.database import Database
from support.store_backends import Pipeline, StoreBackend, content, whole


@dataclass
class Counts:
    """What was sent to the database. A row is a set of parameters, or an entry of a list that is a parameter."""

    commits: int = 0
    statements: int = 0
    largest: int = 0
    texts: list[str] = field(default_factory=list)

    def statement(self, text: str, parameters: Any, many: bool) -> None:
        self.statements += 1
        self.texts.append(text)
        self.largest = max(self.largest, rows_in(parameters, many))


def rows_in(parameters: Any, many: bool) -> int:
    if many:
        return len(parameters)
    values = list(parameters.values()) if isinstance(parameters, dict) else list(parameters)
    lists = [len(value) for value in values if isinstance(value, list | tuple)]
    jsons = [value.count("],[") + 1 for value in values if isinstance(value, str) and value.startswith("[[")]
    binary = sum(isinstance(value, bytes) for value in values)  # keys in an IN list
    return max([1, binary, *lists, *jsons])


@contextmanager
def counting(database: Database) -> Iterator[Counts]:
    counts = Counts()

    def statement(_c: object, _cursor: object, text: str, parameters: Any, _context: object, many: bool) -> None:
        counts.statement(text, parameters, many)

    def commit(_connection: object) -> None:
        counts.commits += 1

    sa.event.listen(database.engine, "before_cursor_execute", statement)
    sa.event.listen(database.engine, "commit", commit)
    try:
        yield counts
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", statement)
        sa.event.remove(database.engine, "commit", commit)


def micro_batch(us: Pipeline, count: int) -> int:
    """Open, advance (confirm the batch before and write the snapshot), plan, publish: with ends that all differ."""
    store, name = us.store, us.seq
    contents = [content(f"{name}/{i}", i) for i in range(count)]
    found = store.open_shards(us.token, us.source, contents)
    ranges: list[Range] = [whole(shard) for shard in found.values()]
    confirm = us.seq if us.seq else None
    store.advance(us.token, confirm=confirm, keys=list(found), snapshot=(us.seq + 1, ranges))
    plan = store.plan(us.token, us.seq, us.seq + 1)
    us.seq += 1
    return store.publish(
        [plan.identity], [Split(f"/{name}/{i}", 1, 1) for i in range(count // 2)], batch_id=us.seq
    ).shards


@pytest.mark.parametrize("count", [10, 1000, 5000])
def test_a_micro_batch_takes_4_transactions_and_statements_of_1000_rows(backend: StoreBackend, count: int) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert micro_batch(us, count) == count
    with counting(store.database) as counts:
        assert micro_batch(us, count) == count
    assert counts.commits == 4
    assert counts.largest == min(count, 1000)
    assert counts.statements <= 40 + 12 * (count // 1000)


@pytest.mark.parametrize("known", [True, False], ids=["all known", "none known"])
def test_a_page_of_a_listing_is_one_transaction_with_one_look_and_one_insert(
    backend: StoreBackend, known: bool
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    contents = [content(f"{i:04}", 10)._replace(queue=LISTING) for i in range(1000)]
    if known:
        us.deliver(*(one.shard_id for one in contents))
    claim = store.claim_listing(us.token, us.source, "p", 60.0)
    assert claim is not None
    now = round(backend.clock.now * 1_000_000)
    with counting(store.database) as counts:
        store.compare_listed(
            us.token,
            claim,
            [Found(one, now) for one in contents],
            objects=1000,
            cursor="1000",
            grace=0.0,
            clock=lambda: now,
        )
    assert counts.commits == 1
    assert counts.largest <= 1000
    of_shards = [text.split()[0] for text in counts.texts if "cuesqueue_shards" in text]
    if known:
        assert of_shards == ["SELECT"]
        assert len([text for text in counts.texts if "cuesqueue_" in text]) == 4  # with the fence, the listing, its end
    elif store.database.dialect.counts_inserts:
        assert of_shards == ["SELECT", "INSERT"], counts.texts
    else:
        assert of_shards == ["SELECT", "INSERT", "SELECT"]


def test_reading_an_attempts_plan_and_heartbeats_do_not_grow_with_what_is_held(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.planned(*(f"k{i}" for i in range(1500)))
    with counting(store.database) as counts:
        store.heartbeat(us.token, 60.0)
        store.current_plan("p")
    assert (counts.commits, counts.largest) == (2, 1)
    assert len([text for text in counts.texts if "cuesqueue_" in text]) == 3
