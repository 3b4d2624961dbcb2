"""Contract: what a page of a listing comes to, in one statement; certificates, and what changed since one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.test_store_statements import counting
from contracts.test_store_year import Statement, noting, scanned
from shard_store.completeness import comparing
from shard_store.completeness.comparing import (
    HOUR,
    UNMEASURED,
    Category,
    Clocks,
    Finding,
    ListedShard,
    Scope,
    Tally,
    since,
)
from shard_store.errors import StoreConfigurationError
from shard_store.model import Content, ErrorRecord, Semantics, Split, shard_key
from shard_store.shards.activity import Report
from shard_store.shards.changes import Audit
from shard_store.sql.schema import shards, sources
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import Pipeline, StoreBackend, rows

SECOND = 1_000_000


def listed(name: str, *, size: int = 10, etag: str | None = None, at: int = 0) -> ListedShard:
    return ListedShard(name, size, etag, at)


def found(store: ShardStore, *objects: ListedShard, clocks: Clocks = UNMEASURED) -> list[str]:
    return [finding.category.value for finding in store.compare("s", objects, clocks)]


def remember(store: ShardStore, forgotten: int = 0, existing: int | None = None, source: str = "s") -> None:
    with store.database.engine.begin() as connection:
        connection.execute(sources.delete())
        connection.execute(sources.insert().values(source=source, forgotten_before=forgotten, existing_before=existing))


def quarantine(us: Pipeline, name: str) -> None:
    [entry] = us.snapshot(*us.open(name).values())
    plan = us.plan()
    error = ErrorRecord("object", "corrupt-object", "", name, plan.identity.delivery_hash)
    us.store.record_errors(us.source, us.token.pipeline, [error])
    us.publish(plan, Split(f"/split-{us.seq}", 0, 1))
    us.confirm([entry.key])


def now(backend: StoreBackend) -> int:
    return round(backend.clock.now * SECOND)


def test_each_object_is_in_the_category_of_its_shard(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("done")
    quarantine(us, "bad")
    us.open("open")
    us.store.release(us.token, [us.open("released")["released"].key])
    names = ("done", "bad", "open", "released", "never")
    assert store.compare("s", [listed(name, at=now(backend)) for name in names]) == [
        Finding(Category.PUBLISHED, "p"),
        Finding(Category.QUARANTINED, "p"),
        Finding(Category.WAITING, "p"),
        Finding(Category.WAITING, None),
        Finding(Category.MISSING, None),
    ]
    assert found(store, listed("done"), listed("done"), listed("never")) == ["published", "published", "missing"]
    assert found(store) == []
    assert [f.category.value for f in store.compare("another source", [listed("done")])] == ["missing"]


def test_what_was_published_and_is_another_object_now_has_changed(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    tagged = Content("tagged", "tagged", 10, "e1", "queue", "m", 1)
    opened = store.open_shards(us.token, "s", [tagged])
    us.snapshot(*opened.values(), *us.open("plain").values())
    us.publish(us.plan(), Split("/x", 2, 1))
    us.confirm()
    ended = now(backend)
    late = ended + 2 * HOUR
    assert found(store, listed("tagged", etag="e1", at=late), listed("tagged", etag="e2", at=0)) == [
        "published",  # written again with the same bytes
        "changed",
    ]
    assert found(store, listed("plain", etag="e", at=ended), listed("plain", size=11, at=ended)) == [
        "published",
        "changed",
    ]
    assert found(store, listed("plain", at=late), listed("tagged", at=late)) == ["changed", "changed"]
    within = listed("plain", at=ended + HOUR)
    assert found(store, within) == ["published"]  # two clocks may differ by so much
    assert found(store, within, clocks=Clocks(0, comparing.MEASURED)) == ["changed"]
    assert found(store, within, clocks=Clocks(HOUR, comparing.MEASURED)) == ["published"]


def test_what_was_read_before_versions_were_part_of_its_id_is_published(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    opened = store.open_shards(us.token, "s", [Content("tagged", "tagged", 10, "e1", "queue", "m", 1)])
    us.snapshot(*opened.values(), *us.open("plain").values())
    us.publish(us.plan(), Split("/x", 2, 1))
    us.confirm()
    at = now(backend)
    us.open("open")
    assert store.compare(
        "s",
        [
            ListedShard("tagged#e1", 10, "e1", at + HOUR, "tagged"),
            ListedShard("tagged#e2", 10, "e2", at - HOUR, "tagged"),
            ListedShard("plain#e1", 10, "e1", at, "plain"),
            ListedShard("plain#e2", 10, "e2", at + 1, "plain"),
            ListedShard("open#e", 10, "e", at, "open"),
        ],
    ) == [
        Finding(Category.PUBLISHED, "p"),
        Finding(Category.MISSING),
        Finding(Category.PUBLISHED, "p"),
        Finding(Category.MISSING),
        Finding(Category.MISSING),
    ]


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_what_may_be_forgotten_is_beyond_memory_also_with_clocks_an_hour_off(backend: StoreBackend, ahead: int) -> None:
    store = backend.open()
    Pipeline.start(store)
    forgotten = 1_000 * HOUR
    remember(store, forgotten)
    at = (forgotten - HOUR, forgotten, forgotten + HOUR, forgotten + HOUR + 1)
    expected = ["beyond_memory", "beyond_memory", "beyond_memory", "missing"]
    measured = Clocks(ahead, comparing.MEASURED)
    assert found(store, *(listed("x", at=t + ahead) for t in at), clocks=measured) == expected
    assert found(store, *(listed("x", at=t) for t in at)) == expected


def test_what_nobody_wanted_at_the_first_start_is_before_the_beginning(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("old, and announced all the same")
    remember(store, existing=500 * HOUR, forgotten=2 * HOUR)
    old = listed("old", at=500 * HOUR - SECOND)  # stands for any moment of that second
    assert found(store, old, old._replace(modified=500 * HOUR)) == ["before_beginning", "missing"]
    assert found(store, listed("old, and announced all the same", at=1)) == ["published"]
    remember(store, existing=500 * HOUR, forgotten=600 * HOUR)
    assert found(store, old, old._replace(modified=500 * HOUR)) == ["before_beginning", "beyond_memory"]


def test_a_page_of_a_thousand_is_one_statement_by_the_key(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver(*(f"k{i}" for i in range(1500)))
    _analyse(store)
    with counting(store.database) as counts:
        page = [listed(f"k{i}") for i in range(600, 1600)]
        assert found(store, *page) == ["published"] * 900 + ["missing"] * 100
    assert len([text for text in counts.texts if "cuesqueue_" in text]) == 1
    statements: list[Statement] = []
    with noting(store.database, statements):
        found(store, *page[:100])  # of so few shards, planners rather read the whole table for a thousand
    _assert_no_scan(store, statements)


def _assert_no_scan(store: ShardStore, statements: list[Statement]) -> None:
    ours = [(text, parameters) for text, parameters in statements if "cuesqueue_shards" in text]
    assert ours
    with store.database.engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET enable_seqscan = off")
        for text, parameters in ours:
            assert "cuesqueue_shards" not in scanned(connection, text, parameters)


def _analyse(store: ShardStore) -> None:
    with store.database.engine.begin() as connection:
        table = "TABLE cuesqueue_shards" if store.database.dialect.name in ("mysql", "mariadb") else "cuesqueue_shards"
        connection.exec_driver_sql(f"ANALYZE {table}")


def test_names_of_any_unicode_are_compared(store: ShardStore) -> None:
    us = Pipeline.start(store)
    names = ["s3://b/ü", "s3://b/\ud800", 's3://b/"', "s3://b/a\0b", "s3://b/" + "x" * 1100]
    us.deliver(*names)
    assert found(store, *map(listed, names)) == ["published"] * len(names)


def test_a_source_is_found_or_named(store: ShardStore) -> None:
    with pytest.raises(StoreConfigurationError, match="has no source yet"):
        store.source_of(None)
    Pipeline.start(store, "p", "s")
    assert store.source_of(None) == store.source_of("s") == "s"
    with pytest.raises(StoreConfigurationError, match="has no source 'S'; it has: s"):
        store.source_of("S")
    Pipeline.start(store, "q", "t", semantics=Semantics.AT_LEAST_ONCE)
    with pytest.raises(StoreConfigurationError, match="several sources, so name one; it has: s, t"):
        store.source_of(None)
    with pytest.raises(StoreConfigurationError, match="does not remember what was read"):
        store.source_of("t")


SCOPE = Scope("s", "s3://b/ü/", None, 5 * HOUR, "{}")


def tally(**counts: int) -> Tally:
    made = Tally()
    for name, count in counts.items():
        for i in range(count):
            made.add(f"s3://b/{name}/{i}", 10, None, Category(name))
    return made


def test_a_certificate_is_kept_as_it_was_written(backend: StoreBackend) -> None:
    store = backend.open()
    found = tally(published=3, quarantined=1, missing=2, left_out=4, beyond_memory=1, before_beginning=1)
    number = store.certify(SCOPE, "listing", found, "me@here")
    kept = store.certificate(number)
    assert (kept.id, kept.scope, kept.evidence, kept.actor) == (number, SCOPE, "listing", "me@here")
    assert kept.objects == 8
    assert kept.counts == found.counts
    assert kept.written_at == now(backend)
    assert kept.unpublished == {
        "missing": ["s3://b/missing/0", "s3://b/missing/1"],
        "quarantined": ["s3://b/quarantined/0"],
    }
    assert kept.verdict == "incomplete"
    with pytest.raises(StoreConfigurationError, match="has no certificate 4711"):
        store.certificate(4711)
    [row] = rows(store, "completeness")
    assert (row["certificate"], row["prefix"], row["verdict"], row["objects"]) == (number, "s3://b/ü/", "incomplete", 8)
    assert {name: row[name] for name in found.counts} == found.counts
    assert (row["modified_since"], row["modified_before"], row["written_at"]) == (None, 5 * HOUR, now(backend))


@pytest.mark.parametrize("by", ["reset", "forget"])
def test_what_was_forgotten_while_it_was_compared_is_not_certified(backend: StoreBackend, by: str) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("done", "done too")
    store.retire(us.token, Report(stopped=True))
    before = store.database_time()
    backend.clock.advance(1.0)
    assert found(store, listed("done")) == ["published"]
    audit = Audit("somebody", "a reason")
    if by == "reset":
        store.reset(["s"], audit, message_uri="message:")
    else:
        store.forget([shard_key("s", "done")], audit)
    with pytest.raises(StoreConfigurationError, match=r"forgotten .*while they were compared"):
        store.certify(SCOPE, "listing", tally(published=1), "me", before)
    backend.clock.advance(1.0)
    assert store.certify(SCOPE, "listing", tally(missing=1), "me", store.database_time())
    assert store.certify(replace(SCOPE, source="another"), "listing", tally(missing=1), "me", before)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, "empty"),
        ({"left_out": 1}, "empty"),
        ({"published": 5, "before_beginning": 2, "left_out": 1}, "complete"),
        ({"published": 5, "beyond_memory": 1}, "unknown"),
        ({"published": 5, "beyond_memory": 1, "missing": 1}, "incomplete"),
        ({"waiting": 1}, "incomplete"),
        ({"changed": 1}, "incomplete"),
        ({"quarantined": 1}, "incomplete"),
        ({"skipped": 1}, "incomplete"),
        ({"given_up": 1}, "incomplete"),
    ],
)
def test_the_verdict_is_the_same_in_the_view_and_in_the_report(
    store: ShardStore, counts: dict[str, int], expected: str
) -> None:
    store.certify(SCOPE, "listing", tally(**counts), "me")
    assert comparing.verdict(tally(**counts).counts) == expected
    assert [row["verdict"] for row in rows(store, "completeness")] == [expected]


def test_the_newest_certificate_of_a_scope_is_found(backend: StoreBackend) -> None:
    store = backend.open()
    assert store.newest_certificate(SCOPE) is None
    store.certify(SCOPE, "listing", tally(missing=1), "me")
    backend.clock.advance(5)
    second = store.certify(SCOPE, "listing", tally(published=1), "me")
    others = (
        Scope("t", SCOPE.prefix, None, SCOPE.modified_before, "{}"),
        Scope("s", "s3://b/", None, SCOPE.modified_before, "{}"),
        Scope("s", SCOPE.prefix, 1, SCOPE.modified_before, "{}"),
        Scope("s", SCOPE.prefix, None, SCOPE.modified_before + 1, "{}"),
        Scope("s", SCOPE.prefix, None, SCOPE.modified_before, '{"allowOverwrites": true}'),
    )
    backend.clock.advance(5)
    for other in others:
        assert store.newest_certificate(other) is None
    for other in others:
        store.certify(other, "listing", tally(), "me")
    newest = store.newest_certificate(SCOPE)
    assert newest is not None
    assert newest.id == second
    assert all(store.newest_certificate(other) is not None for other in others)


def test_a_second_run_agrees_whatever_the_order_or_says_what_changed(store: ShardStore) -> None:
    first = Tally()
    for name, category in (("a", Category.PUBLISHED), ("b", Category.MISSING), ("c", Category.WAITING)):
        first.add(name, 1, None, category)
    certificate = store.certificate(store.certify(SCOPE, "listing", first, "me"))
    second = Tally()
    for name, category in (("c", Category.WAITING), ("b", Category.MISSING), ("a", Category.PUBLISHED)):
        second.add(name, 1, None, category)
    assert since(certificate, second) == comparing.Difference(True, {}, {}, {}, True)
    third = Tally()
    for name, category in (("a", Category.PUBLISHED), ("b", Category.PUBLISHED), ("c", Category.QUARANTINED)):
        third.add(name, 1, None, category)
    third.add("d", 1, None, Category.MISSING)
    changed = since(certificate, third)
    assert not changed.same
    assert changed.whole
    assert changed.counts == {"objects": (3, 4), "published": (1, 2), "waiting": (1, 0), "quarantined": (0, 1)}
    assert changed.appeared == {"missing": ["d"], "quarantined": ["c"]}
    assert changed.gone == {"missing": ["b"], "waiting": ["c"]}
    overwritten = Tally()
    for name, size, category in (("a", 2, Category.PUBLISHED), ("b", 1, Category.MISSING), ("c", 1, Category.WAITING)):
        overwritten.add(name, size, None, category)
    same_numbers = since(certificate, overwritten)
    assert (same_numbers.same, same_numbers.counts) == (False, {})


def test_a_certificate_keeps_the_first_thousand_of_each_kind(store: ShardStore) -> None:
    many = tally(missing=1500, quarantined=1001, published=2000)
    kept = store.certificate(store.certify(SCOPE, "listing", many, "me"))
    assert (kept.counts["missing"], len(kept.unpublished["missing"]), len(kept.unpublished["quarantined"])) == (
        1500,
        1000,
        1000,
    )
    assert not since(kept, many).whole
    assert since(kept, many).same
    long = Tally()
    for i in range(3000):
        long.add(f"{i}/" + "x" * 2000, None, None, Category.MISSING)
    assert sum(map(len, long.unpublished["missing"])) <= comparing.LONGEST


def test_old_certificates_are_pruned_but_the_newest_of_a_prefix(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store)
    other = Scope("s", "s3://other/", None, 1, "{}")
    for scope in (SCOPE, SCOPE, other):
        of_other = store.certify(scope, "listing", tally(), "me")
        backend.clock.advance(5)
    backend.clock.advance(364 * 86_400)
    last = store.certify(SCOPE, "listing", tally(), "me")
    assert store.prune(RetentionPolicy()).certificates == 0
    backend.run_for(2 * 86_400)
    assert store.prune(RetentionPolicy(source="t")).certificates == 0
    assert store.prune(RetentionPolicy(), dry_run=True).certificates == 2
    assert store.prune(RetentionPolicy()).certificates == 2
    assert [row["certificate"] for row in rows(store, "completeness")] == [of_other, last]


def test_the_key_ranges_of_a_view_hold_every_shard_once(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from shard_store.operators import views

    us = Pipeline.start(store)
    assert store.key_ranges(10) == [views.KeyRange()]
    monkeypatch.setattr(views, "SAMPLE", 50)
    us.deliver(*(f"k{i}" for i in range(400)))
    ranges = store.key_ranges(40)
    assert 5 <= len(ranges) <= 20
    shown = [[row[1] for page in store.pages("shards", keys=keys) for row in page] for keys in ranges]
    assert sorted(name for part in shown for name in part) == sorted(f"k{i}" for i in range(400))
    assert max(map(len, shown)) < 3 * 400 / len(ranges)
    _analyse(store)
    statements: list[Statement] = []
    with noting(store.database, statements):
        list(store.pages("shards", keys=ranges[1]))
    _assert_no_scan(store, statements)


def test_what_is_reopened_waits_and_what_is_forgotten_is_missing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantine(us, "bad")
    us.deliver("done")
    with store.database.engine.begin() as connection:  # as `cuesqueue shards reopen` and `forget` leave them
        bad = shards.c.shard_key == shard_key("s", "bad")
        connection.execute(shards.update().where(bad).values(state="open", finished_at=None, position=""))
        connection.execute(shards.delete().where(shards.c.shard_key == shard_key("s", "done")))
    assert found(store, listed("bad", at=HOUR), listed("done", at=HOUR)) == ["waiting", "missing"]
