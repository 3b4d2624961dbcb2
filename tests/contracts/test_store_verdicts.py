"""Contract: a target's mark has the verdict on each object of its batch, however many are bad (decision 0092).

The store's transaction runs twice, or is rolled back for good and made again: then nothing but the mark knows them.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_store.batches.publishing import Looked, Unpublished
from shard_store.error_table.records import Verdicts
from shard_store.model import BEGINNING, Content, ErrorRecord, Plan, Range, ShardKey, ShardState, end_at, shard_key
from shard_store.sql.schema import errors, shards
from shard_store.store import ShardStore
from support.store_backends import Pipeline, rows

CAUSES = (("object", "missing-object"), ("object", "corrupt-object"), ("skipped", "corrupt-object"))


def planned(us: Pipeline, count: int, size: int | None) -> tuple[Plan, list[str]]:
    ids = [f"{number:05}" for number in range(count)]
    opened = us.store.open_shards(us.token, us.source, [Content(i, i, size, None, "q", f"m{i}") for i in ids])
    us.write(*(Range(s.key, s.content, BEGINNING, end_at(s.content.size or 0)) for s in opened.values()))
    return us.plan(), ids


def found_bad(us: Pipeline, plan: Plan, bad: dict[str, tuple[str, str]]) -> None:
    """As tasks do, before the commit."""
    said = [
        ErrorRecord(scope, cause, "", subject, plan.identity.delivery_hash) for subject, (scope, cause) in bad.items()
    ]
    us.store.record_errors(us.source, us.token.pipeline, said)


def states(store: ShardStore) -> dict[str, str]:
    return {row["shard_id"]: row["state"] for row in rows(store, "shards")}


def recorded(store: ShardStore) -> dict[str, tuple[str, str]]:
    return {row["subject"]: (row["scope"], row["cause"]) for row in rows(store, "errors")}


@pytest.mark.parametrize("loses", ["nothing", "its errors"])
@pytest.mark.parametrize("size", [10, None])
@pytest.mark.parametrize("number", [1, 1000, 1001, 1002, 2500])
def test_a_second_run_of_the_transaction_has_the_verdicts_of_the_first(
    store: ShardStore, number: int, size: int | None, loses: str
) -> None:
    """`loses`: what was recorded in the transaction, as by `register`, or by a store that was put back."""
    us = Pipeline.start(store)
    plan, ids = planned(us, number + 7, size)
    chosen = random.Random(number)
    bad = {subject: chosen.choice(CAUSES) for subject in chosen.sample(ids, number)}
    found_bad(us, plan, bad)
    marks: list[str | None] = []

    def look(batch: Unpublished) -> Looked:
        return Looked((7, 7), bool(marks), marks[0] if marks else None)

    def commit(published: Any) -> None:
        marks.append(published.verdicts)

    with store.database.engine.begin() as connection:
        commit(us.store.publish_inside(connection, [plan.identity], (), look=look))
        connection.rollback()
    if loses != "nothing":
        with store.database.engine.begin() as connection:
            connection.execute(errors.delete())
    commit(us.publish(plan, look=look))
    quarantined = {subject for subject, (scope, _) in bad.items() if scope == "object"}
    assert states(store) == {
        subject: (ShardState.QUARANTINED if subject in quarantined else ShardState.DONE).value for subject in ids
    }
    # it is not proven that no attempt before has shown rows of them
    assert {subject: cause for subject, (_, cause) in recorded(store).items()} == {
        subject: cause for subject, (_, cause) in bad.items()
    }
    assert marks[0] is not None
    assert len(marks[0]) < 100_000


def test_shards_that_pass_to_another_pipeline_meanwhile_shift_no_verdict(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan, ids = planned(us, 1300, 10)
    bad = dict.fromkeys(ids[:1200], CAUSES[0])
    found_bad(us, plan, bad)
    mark: list[str | None] = []
    with store.database.engine.begin() as connection:
        mark += [us.store.publish_inside(connection, [plan.identity], (), look=lambda _: Looked((1, 1))).verdicts]
        connection.rollback()
    theirs = ids[::7]
    store.database.write(
        lambda t: t.change_among(
            shards.update().values(owner="other", incarnation=1),
            shards.c.shard_key,
            [shard_key(us.source, subject) for subject in theirs],
        )
    )
    us = Pipeline.start(store)
    plan = us.plan()
    assert len(plan.lost) == len(theirs)
    with store.database.engine.begin() as connection:
        connection.execute(errors.delete())
    us.store.publish([plan.identity], (), look=lambda _: Looked((1, 1), True, mark[0]))
    assert recorded(store).keys() == bad.keys() - set(theirs)
    assert all(
        (state == "quarantined") is (subject in bad)
        for subject, state in states(store).items()
        if subject not in theirs
    )


def test_a_mark_of_before_that_was_cut_says_nothing_of_those_it_lacks(store: ShardStore) -> None:
    """Version 0.4.0 wrote 1,001 of them, whatever their number."""
    us = Pipeline.start(store)
    plan, ids = planned(us, 1200, 10)
    bad = dict.fromkeys(ids, CAUSES[0])
    found_bad(us, plan, bad)
    cut = {shard_key(us.source, subject).hex()[:16]: CAUSES[0] for subject in ids[:1001]}
    us.store.publish([plan.identity], (), look=lambda _: Looked((1, 1), True, json.dumps(cut)))
    assert set(states(store).values()) == {"quarantined"}


KEYS = [ShardKey(shard_key("s", str(number))) for number in range(3000)]


@settings(max_examples=60, deadline=None)
@given(
    most=st.integers(1, 3000),
    every=st.integers(1, 40),
    met=st.none() | st.just("0123456789abcdef"),
    shuffled=st.randoms(use_true_random=False),
)
def test_what_a_mark_says_is_what_was_found(most: int, every: int, met: str | None, shuffled: random.Random) -> None:
    keys = KEYS[:most]
    found = {key: CAUSES[place % 3] for place, key in enumerate(keys) if place % every == 0}
    said = Verdicts(found, met)
    text = said.as_text(keys)
    others = [*keys]
    shuffled.shuffle(others)
    read = Verdicts.of(text, others)
    assert (read.met, read.is_whole) == (met, True)
    assert {key: read.bad.get(key) for key in keys} == {key: found.get(key) for key in keys}
