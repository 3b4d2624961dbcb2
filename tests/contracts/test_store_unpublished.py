"""Contract: what is finished and was not published is told from what was: skipped objects, batches given up."""

from __future__ import annotations

from datetime import timedelta

from shard_store.completeness.comparing import Category, ListedShard, Scope, Tally, since, verdict
from shard_store.model import ErrorRecord, Semantics, Split, end_at, position_at, shard_key
from shard_store.shards.changes import Audit
from shard_store.sql.schema import certificates, errors
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import Planned
from support.store_backends import Pipeline, StoreBackend, rows

AT_MOST = Semantics.AT_MOST_ONCE


def became(store: ShardStore, *names: str) -> list[str]:
    listed = [ListedShard(name, 10, None, 0) for name in names]
    return [finding.category.value for finding in store.compare("s", listed)]


def skip(us: Pipeline, *names: str, of: tuple[str, ...] = ()) -> None:
    """A batch of `of`, in which `names` are bad and skipped."""
    plan = us.planned(*(of or names))
    found = [ErrorRecord("skipped", "corrupt-object", "no JSON", name, plan.identity.delivery_hash) for name in names]
    us.store.record_errors(us.source, us.token.pipeline, found)
    us.publish(plan, Split(f"/split-{us.seq}", 1, 1))
    us.confirm()


def begin(store: ShardStore, *names: str) -> Pipeline:
    """An attempt at a batch with at-most-once, of which nobody knows yet what came of it."""
    us = Pipeline.start(store, semantics=AT_MOST)
    us.planned(*names)
    return us


def give_up(store: ShardStore, *names: str) -> Pipeline:
    """The process dies in its batch; the next one leaves it out."""
    begin(store, *names)
    us = Pipeline.start(store, semantics=AT_MOST)
    us.publish(us.plan(), Split("/nothing", 0, 1))
    us.confirm()
    return us


def state_in_files_state(store: ShardStore) -> dict[str, tuple[str, bool]]:
    return {row["path"]: (row["state"], row["commit_time"] is not None) for row in rows(store, "files_state")}


def test_a_skipped_object_is_not_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    skip(us, "bad", of=("bad", "good"))
    assert became(store, "bad", "good") == ["skipped", "published"]


def test_a_skipped_object_stays_skipped_when_its_error_is_gone(store: ShardStore) -> None:
    us = Pipeline.start(store)
    skip(us, "bad")
    store.database.write(lambda t: t.execute(errors.delete()))
    assert became(store, "bad") == ["skipped"]


def test_an_object_is_skipped_whose_other_part_was_published_by_a_later_batch(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(us.open("large")["large"], ends=[position_at(5)])
    plan = us.plan()
    bad = ErrorRecord("skipped", "corrupt-object", "", "large", plan.identity.delivery_hash)
    store.record_errors("s", "p", [bad])
    us.publish(plan, Split("/a", 0, 1))
    us.confirm()
    us.snapshot(us.look("large")["large"])
    us.publish(us.plan(), Split("/b", 5, 1))
    us.confirm()
    assert became(store, "large") == ["skipped"]


def test_an_object_that_was_skipped_is_published_after_it_was_forgotten_and_read_again(store: ShardStore) -> None:
    us = Pipeline.start(store)
    skip(us, "bad")
    store.forget([shard_key("s", "bad")], Audit("a person", "a test"))
    assert became(store, "bad") == ["missing"]
    us.deliver("bad")
    assert became(store, "bad") == ["published"]


def test_an_object_of_which_no_record_was_good_is_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("bad records")
    dropped = ErrorRecord("record", "bad-record", "", "bad records", plan.identity.delivery_hash)
    store.record_errors("s", "p", [dropped])
    us.publish(plan, Split("/empty", 0, 1))
    us.confirm()
    assert became(store, "bad records") == ["published"]


def test_at_most_once_an_object_waits_until_its_batch_is_published(store: ShardStore) -> None:
    us = begin(store, "a")
    assert became(store, "a") == ["waiting"]
    us.publish(us.plan(), Split("/a", 1, 1))
    assert became(store, "a") == ["published"]


def test_at_most_once_with_another_sink_an_object_waits_until_spark_is_done_with_it(store: ShardStore) -> None:
    us = begin(store, "a")
    us.confirm()
    assert became(store, "a") == ["published"]


def test_at_most_once_what_was_given_up_is_not_published(store: ShardStore) -> None:
    us = give_up(store, "a", "b")
    us.deliver("c")
    assert became(store, "a", "b", "c") == ["given_up", "given_up", "published"]


def test_at_most_once_what_another_sink_may_have_taken_before_it_died_is_given_up(store: ShardStore) -> None:
    begin(store, "a")
    us = Pipeline.start(store, semantics=AT_MOST)
    us.snapshot(*us.open("b").values())
    us.plan()
    us.confirm()
    assert became(store, "a", "b") == ["given_up", "published"]


def test_at_most_once_a_snapshot_that_no_plan_has_held_is_published_by_the_next_start(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    us.snapshot(*us.open("a").values())
    us = Pipeline.start(store, semantics=AT_MOST)
    assert became(store, "a") == ["waiting"]
    us.publish(us.plan(), Split("/a", 1, 1))
    assert became(store, "a") == ["published"]


def test_at_most_once_an_object_is_given_up_of_which_a_part_was(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    us.snapshot(us.open("large")["large"], ends=[position_at(5)])
    us.plan()
    us = Pipeline.start(store, semantics=AT_MOST)
    us.publish(us.plan(), Split("/nothing", 0, 1))
    us.confirm()
    us.snapshot(us.look("large")["large"], ends=[end_at(10)])
    us.publish(us.plan(), Split("/rest", 5, 1))
    us.confirm()
    assert became(store, "large") == ["given_up"]


def test_at_most_once_a_skipped_and_a_bad_object_are_what_they_are(store: ShardStore) -> None:
    us = begin(store, "skipped", "bad", "good")
    plan = us.plan()
    digest = plan.identity.delivery_hash
    found = [ErrorRecord(scope, "corrupt-object", "", scope, digest) for scope in ("skipped",)]
    found.append(ErrorRecord("object", "corrupt-object", "", "bad", digest))
    store.record_errors("s", "p", found)
    us.publish(plan, Split("/a", 1, 1))
    us.confirm()
    assert became(store, "skipped", "bad", "good") == ["skipped", "quarantined", "published"]


def test_the_views_and_the_story_of_a_shard_say_that_it_was_not_published(store: ShardStore) -> None:
    skip(Pipeline.start(store, "other"), "bad", of=("bad", "good"))
    give_up(store, "lost")
    begin(store, "begun")
    found = state_in_files_state(store)
    assert found == {
        "bad": ("skipped", True),
        "good": ("done", True),
        "lost": ("given-up", False),
        "begun": ("begun", False),
    }
    told = {name: store.shard_story(shard_key("s", name)).outcome for name in ("bad", "good", "lost", "begun")}
    assert told["bad"].startswith("skipped, and not published: corrupt-object: no JSON")
    assert told["good"].startswith("published by attempt")
    assert told["lost"].startswith("given up: its batch was begun")
    assert told["begun"].startswith("in a batch that was begun")


def test_skipped_objects_are_not_counted_as_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    skip(us, "bad", of=("bad", "good"))
    [status] = store.status()
    assert status.total.objects == 1
    assert status.last_batch is not None
    assert status.last_batch.objects == 1


def test_nothing_is_cleaned_that_was_not_published(backend: StoreBackend) -> None:
    store = backend.open()
    us = give_up(store, "lost")
    us.deliver("good")
    skip(Pipeline.start(store, "other"), "bad")
    begun = begin(store, "late")
    backend.clock.now += 3600

    def clean() -> set[str]:
        chosen: set[str] = set()

        def choose(shard_id: str, uri: str) -> Planned:
            chosen.add(shard_id)
            return Planned(uri, None)

        store.plan_cleanings("s", timedelta(minutes=20), choose, 100)
        return chosen

    assert clean() == {"good"}
    begun.publish(begun.plan(), Split("/late", 1, 1))
    backend.clock.now += 3600
    assert clean() == {"late"}, "its time is that of its publication"


def test_a_certificate_with_skipped_or_given_up_objects_is_incomplete(store: ShardStore) -> None:
    for category in (Category.SKIPPED, Category.GIVEN_UP):
        tally = Tally()
        tally.add("a", 1, None, Category.PUBLISHED)
        tally.add("b", 1, None, category)
        assert verdict(tally.counts) == "incomplete"
        number = store.certify(Scope("s", "p", None, 5, "{}"), "listing", tally, "somebody")
        kept = store.certificate(number)
        assert (kept.objects, kept.counts["published"], kept.counts[category.value]) == (2, 1, 1)
        assert kept.unpublished == {category.value: ["b"]}
        [row] = [row for row in rows(store, "completeness") if row["certificate"] == number]
        assert (row["verdict"], row[category.value]) == ("incomplete", 1)


def test_a_certificate_of_an_earlier_version_is_read_and_compared(store: ShardStore) -> None:
    tally = Tally()
    tally.add("a", 1, None, Category.PUBLISHED)
    number = store.certify(Scope("s", "p", None, 5, "{}"), "listing", tally, "somebody")
    unknown = certificates.update().values(skipped=None, given_up=None)
    store.database.write(lambda t: t.execute(unknown))
    earlier = store.certificate(number)
    assert (earlier.verdict, earlier.counts["skipped"]) == ("complete", 0)
    assert since(earlier, tally).same
    [row] = rows(store, "completeness")
    assert (row["verdict"], row["skipped"]) == ("complete", None)
    now = Tally()
    now.add("a", 1, None, Category.SKIPPED)
    assert since(earlier, now).counts == {"published": (1, 0), "skipped": (0, 1)}


def test_nothing_is_certified_of_no_objects(store: ShardStore) -> None:
    empty = Tally()
    assert verdict(empty.counts) == "empty"
    number = store.certify(Scope("s", "p", None, 5, "{}"), "listing", empty, "an earlier version")
    [row] = rows(store, "completeness")
    assert (row["certificate"], row["verdict"]) == (number, "empty")
    assert store.certificate(number).verdict == "empty"
