"""One queue for many sources: receivers record, and readers with `queueUrl=store` take what is theirs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from contracts.test_store_statements import counting
from queue_source.announcements.contents import s3_record
from queue_source.announcements.routes import Routes, parse_routes
from queue_source.commands.main import app
from queue_source.commands.reconcile import Period, compare
from queue_source.coordinator.receivers import Receiver, Totals
from queue_source.errors import OptionError
from queue_source.options import parse_listing_options, parse_receiver_options
from queue_source.queues import open_queue
from queue_source.schema.sampling import samples_of
from queue_source.storage.files import ObjectStat
from shard_store import failpoints
from shard_store.errors import StoreConfigurationError
from shard_store.failpoints import ROUTING_POINTS, FailpointReached
from shard_store.sql.schema import metadata
from shard_store.store import open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.coordinator_world import EMPTY, MovingWorld, World
from support.driver_loop import DriverLoop, reader_options, until
from support.servers.postgres import new_database
from support.store_backends import rows

ROUTES = {"a": "s3://bucket/a/", "b": "s3://bucket/b/", "all": "s3://bucket/"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def routes(of: Mapping[str, str] = ROUTES) -> Routes:
    return Routes(parse_routes(json.dumps([{"prefix": prefix, "source": name} for name, prefix in of.items()])))


def receive(world: World, of: Mapping[str, str] | Routes = ROUTES, **settings: Any) -> Totals:
    """A receiver that works until the queue is empty."""
    chosen = of if isinstance(of, Routes) else routes(of)
    options = parse_receiver_options(world.queue_url, settings.pop("options", {}), **settings)
    with open_queue(world.queue_url) as queue, open_store(world.store_url) as store:
        receiver = Receiver("files", queue, chosen, options, store, threading.Event())
        receiver.begin()
        receiver.run(until_empty=True)
        return receiver.totals


def reader(world: World, source: str, **options: str) -> Any:
    given: dict[str, Any] = {
        "queueUrl": "store",
        "source": source,
        "allowedPrefixes": ROUTES.get(source, "s3://bucket/"),
    }
    return world.loop(checkpoint=f"checkpoint-{source}", **{**given, **options})


def drain(world: World, source: str, **options: str) -> dict[str, Any]:
    with reader(world, source, **options) as loop:
        loop.drain()
        return dict(loop.metrics)


def published(world: World) -> dict[str, Counter[str]]:
    """What was published for each source: source -> object -> how often."""
    found: dict[str, Counter[str]] = {}
    with world.store() as store:
        for split in rows(store, "splits"):
            found.setdefault(split["source"], Counter()).update(json.loads(Path(split["path"]).read_text()))
    return found


def once(*uris: str) -> Counter[str]:
    return Counter(dict.fromkeys(uris, 1))


def waiting(world: World) -> dict[str, int]:
    with world.store() as store:
        return {waits.source: waits.objects for waits in store.waiting()}


A, B = [[f"s3://bucket/{name}/{number}" for number in range(5)] for name in "ab"]


def test_each_source_reads_what_its_routes_lead_to_once(world: World) -> None:
    world.publish(*A, *B, *A[:2])
    totals = receive(world)
    assert (totals.messages, totals.recorded, totals.unrouted) == (12, 20, 0)
    assert world.depth() == EMPTY
    assert waiting(world) == {"a": 5, "all": 10, "b": 5}
    for name in ROUTES:
        assert drain(world, name)["acquired"] == 0  # they are taken from no one
    assert published(world) == {"a": once(*A), "b": once(*B), "all": once(*A, *B)}
    assert waiting(world) == {}
    world.publish(*A)
    assert receive(world).recorded == 0
    assert drain(world, "a")["received"] == 0
    assert published(world)["a"] == once(*A)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_that_was_restored_is_noticed_by_a_receiver_that_is_started_again_and_listings_find_what_it_lacks(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """What was recorded since the backup is in no queue any more."""
    world = MovingWorld(tmp_path)
    if kind == "postgresql":
        world.at = new_database(request.getfixturevalue("postgres_url"))
    memory, file = tmp_path / "memory", tmp_path / "routes.json"
    file.write_text(json.dumps([{"prefix": prefix, "source": name} for name, prefix in ROUTES.items()]))
    arguments = ["route", world.queue_url, "--routes", str(file), "--store", world.store_url, "--until-empty"]

    def route(*more: str) -> Any:
        return CliRunner().invoke(app, [*arguments, *more])

    world.publish(A[0])
    assert route("--memory", str(memory)).exit_code == 0
    with world.store() as store, store.database.engine.connect() as connection:
        tables = metadata.sorted_tables
        backup = {table: [row._asdict() for row in connection.execute(table.select())] for table in tables}
    world.publish(*A[1:3])
    assert route("--memory", str(memory)).exit_code == 0
    with world.store() as store, store.database.engine.begin() as connection:
        for table, kept in backup.items():
            connection.execute(table.delete())
            if kept:
                connection.execute(table.insert(), kept)
    world.publish(A[3])
    refused = route("--memory", str(memory))
    assert refused.exit_code == 1
    assert "counts 1 messages of receiver 'files', which has had 3; nothing more is acknowledged" in refused.stderr
    assert world.depth().ready == 1
    world.bucket.put(*A[:4])
    for name in ("a", "all"):  # no reader of theirs has ever run
        options = parse_listing_options(["s3://bucket/a/"], {})
        with world.store() as store:
            pages = iter([world.bucket.open("s3://bucket/").page("s3://bucket/a/")])
            period = Period(grace=timedelta(0))
            report = compare(store, store.source_of(name), "s3://bucket/a/", options, pages, period=period)
        assert (report.verdict, report.tally.counts["missing"], report.tally.counts["waiting"]) == ("incomplete", 3, 1)
    memory.unlink()
    assert route("--memory", str(memory)).exit_code == 0
    for name in ("a", "all"):
        with reader(world, name, backfillPrefixes="s3://bucket/a/", backfillGrace="0s") as loop:
            until(lambda n=name: published(world).get(n) == once(*A[:4]), slowly(loop))  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "[]", "7", '["x", "files", 3]', '{"a": 1}', '["x", "files", "y"]'])
def test_a_memory_of_another_receiver_or_store_is_refused(world: World, text: str) -> None:
    memory = world.folder / "memory"
    memory.write_text(text)
    options = parse_receiver_options(world.queue_url, {})
    with open_queue(world.queue_url) as queue, open_store(world.store_url) as store:
        receiver = Receiver("files", queue, routes(), options, store, threading.Event(), memory=memory)
        with pytest.raises(OptionError, match="--memory"):
            receiver.begin()


def test_a_running_reader_reads_soon_what_comes(world: World) -> None:
    with reader(world, "a") as loop:
        for number in range(3):
            world.publish(A[number])
            receive(world)
            until(lambda n=number: published(world).get("a", Counter()).total() == n + 1, slowly(loop))  # type: ignore[misc]
    assert published(world)["a"] == once(*A[:3])


def slowly(*loops: DriverLoop) -> Callable[[], None]:
    def step() -> None:
        for loop in loops:
            loop.batch()
        time.sleep(0.02)

    return step


def test_more_than_a_reader_holds_comes_in_several_batches_and_all_of_it(world: World) -> None:
    many = [f"s3://bucket/a/{number}" for number in range(95)]
    world.publish(*many)
    receive(world)
    drain(world, "a", maxFilesPerTrigger="10")
    assert published(world)["a"] == once(*many)


def test_a_run_ends_although_a_receiver_goes_on(world: World) -> None:
    """AvailableNow takes what is recorded at its start."""
    world.publish(*A)
    receive(world)
    with reader(world, "a", maxFilesPerTrigger="1") as loop:
        loop.coordinator.drain()
        time.sleep(0.01)  # the store's clock goes on
        world.publish("s3://bucket/a/later")
        receive(world)
        while loop.batch():
            pass
    assert published(world)["a"] == once(*A)
    assert waiting(world)["a"] == 1


def test_what_a_reader_had_not_begun_is_given_back_when_it_stops(world: World) -> None:
    world.publish(*A)
    receive(world)
    with reader(world, "a", pipeline="first", commitTimeout="10m", visibilityTimeout="10m") as loop:
        until(lambda: loop.in_flight.counts().ready == 5, lambda: time.sleep(0.02))
        assert "a" not in waiting(world)
    assert waiting(world)["a"] == 5
    with reader(world, "a", pipeline="second") as loop:
        loop.drain()
    assert published(world)["a"] == once(*A)


def test_two_pipelines_of_one_source_share_what_is_recorded(world: World) -> None:
    many = [f"s3://bucket/a/{number}" for number in range(60)]
    world.publish(*many)
    receive(world)
    with (
        reader(world, "a", maxFilesPerTrigger="5") as one,
        world.loop(
            checkpoint="two", queueUrl="store", source="a", pipeline="two", allowedPrefixes="s3://bucket/a/",
            maxFilesPerTrigger="5",
        ) as other,
    ):  # fmt: skip
        until(lambda: published(world).get("a", Counter()).total() == 60, slowly(one, other))
    assert published(world)["a"] == once(*many)


@pytest.mark.parametrize("dies", ROUTING_POINTS[:3])
def test_a_receiver_that_dies_anywhere_leaves_nothing_out_and_doubles_nothing(world: World, dies: str) -> None:
    def again() -> None:
        time.sleep(0.1)
        receive(world)

    world.publish(*A, *B)
    with (
        patch.multiple(failpoints, _armed=failpoints._parse(f"{dies}=raise"), _reached={}),
        pytest.raises(FailpointReached),
    ):
        receive(world, options={"visibilityTimeout": "1s"})
    until(lambda: world.depth() == EMPTY, again, tries=50)
    for name in ROUTES:
        drain(world, name)
    assert published(world) == {"a": once(*A), "b": once(*B), "all": once(*A, *B)}


@pytest.mark.parametrize(
    "dies", ["recorded-found", "recorded-taken", "snapshot-written", "before-publish", "published"]
)
def test_a_reader_that_dies_anywhere_reads_everything_once_when_it_is_back(world: World, dies: str) -> None:
    world.publish(*A, *B)
    receive(world)
    with patch.multiple(failpoints, _armed=failpoints._parse(f"{dies}=raise"), _reached={}):
        with reader(world, "all", maxFilesPerTrigger="3") as loop, pytest.raises(FailpointReached):
            loop.drain()
        loop.die()
    drain(world, "all", maxFilesPerTrigger="3")
    assert published(world) == {"all": once(*A, *B)}


def test_of_a_pipeline_that_was_killed_another_takes_what_was_not_begun(world: World) -> None:
    world.publish(*A)
    receive(world)
    with reader(world, "a", pipeline="first") as loop:
        until(lambda: loop.in_flight.counts().ready == 5, lambda: time.sleep(0.02))
        loop.die()
    with world.loop(
        checkpoint="second", queueUrl="store", source="a", pipeline="second", allowedPrefixes="s3://bucket/a/"
    ) as second:
        until(lambda: "a" in published(world), slowly(second))
    assert published(world)["a"] == once(*A)


def test_a_route_added_later_finds_what_was_before_by_listing(world: World) -> None:
    world.bucket.put(*A)
    world.publish(*A)
    assert receive(world, {"b": ROUTES["b"]}, quarantines=False).unrouted == 5
    drain(world, "a", backfillPrefixes=ROUTES["a"], backfillGrace="0s")
    assert published(world)["a"] == once(*A)
    world.publish(*A, "s3://bucket/a/new")
    assert receive(world, {"a": ROUTES["a"]}).recorded == 1
    drain(world, "a", backfillPrefixes=ROUTES["a"], backfillGrace="0s")
    assert published(world)["a"] == once(*A, "s3://bucket/a/new")


def test_what_was_recorded_by_a_route_that_is_gone_is_read(world: World) -> None:
    world.publish(*A)
    receive(world, {"a": ROUTES["a"]})
    receive(world, {"b": ROUTES["b"]})
    drain(world, "a")
    assert published(world)["a"] == once(*A)


def test_a_reader_of_a_queue_of_its_own_goes_over_to_the_store(world: World) -> None:
    """What it had taken and not read waits for the messages that the receiver acknowledges from then on."""
    world.publish(*A)
    with world.loop(checkpoint="checkpoint-a", source="a", allowedPrefixes="s3://bucket/a/") as loop:
        until(lambda: loop.in_flight.counts().ready == 5, lambda: time.sleep(0.02))
    receive(world, {"a": ROUTES["a"]})
    drain(world, "a")
    assert published(world)["a"] == once(*A)


def test_an_object_that_no_route_takes_is_an_error_or_a_count(world: World) -> None:
    world.publish("s3://bucket/c/1", A[0])
    totals = receive(world, {"a": ROUTES["a"]})
    assert (totals.unrouted, totals.recorded, world.depth()) == (1, 1, EMPTY)
    with world.store() as store:
        (error,) = rows(store, "errors")
        assert (error["cause"], error["source"], error["scope"]) == ("no-route", "files", "message")
        assert "'s3://bucket/c/1'" in error["detail"]
        world.publish("s3://bucket/c/2")
        assert receive(world, {"a": ROUTES["a"]}, quarantines=False).unrouted == 1
        assert len(rows(store, "errors")) == 1
        (receiver,) = store.receivers()
        assert (receiver.messages, receiver.recorded, receiver.unrouted) == (3, 1, 2)


def test_a_message_that_was_not_understood_is_an_error_of_the_receiver(world: World) -> None:
    world.publish("no notification", "s3://bucket/a/../secret/1", A[0])
    assert receive(world).malformed == 2
    assert world.depth() == EMPTY
    with world.store() as store:
        assert {error["cause"] for error in rows(store, "errors")} == {"malformed-message"}


def test_tags_route_too(world: World) -> None:
    entries = [{"tag": "eu.#", "source": "a"}, {"prefix": "s3://bucket/a/", "tag": "*.urgent", "source": "b"}]
    by_tag = Routes(parse_routes(json.dumps(entries)))
    world.publish(A[0], tag="eu.urgent")
    world.publish(A[1], tag="us.urgent")
    world.publish(B[0], tag="eu")
    world.publish(B[1], tag="us")
    assert receive(world, by_tag).unrouted == 1
    for name in ("a", "b"):
        drain(world, name, allowedPrefixes="s3://bucket/")
    assert published(world) == {"a": once(A[0], B[0]), "b": once(A[0], A[1])}


def test_an_object_outside_of_the_readers_prefixes_is_given_up_unread(world: World) -> None:
    """A file of routes does not decide where a reader's credentials go."""
    world.publish(A[0], B[0])
    receive(world, {"all": "s3://bucket/"})
    drain(world, "all", allowedPrefixes="s3://bucket/a/")
    assert published(world) == {"all": once(A[0])}
    with world.store() as store:
        (error,) = rows(store, "errors")
        assert (error["cause"], error["subject"]) == ("quarantined-by-hand", B[0])
        assert "allowedPrefixes" in error["detail"]


def test_such_an_object_is_left_out_and_counted_by_option(world: World) -> None:
    world.publish(A[0], B[0])
    receive(world, {"all": "s3://bucket/"})
    assert drain(world, "all", allowedPrefixes="s3://bucket/a/", onForeignObject="ignore")["foreign"] == 1
    assert published(world) == {"all": once(A[0])}
    assert waiting(world) == {}


def test_names_that_the_readers_options_leave_out_are_counted_as_ignored(world: World) -> None:
    world.publish("s3://bucket/a/_SUCCESS", "s3://bucket/a/1.csv", "s3://bucket/a/1.txt")
    receive(world, {"a": ROUTES["a"]})
    assert drain(world, "a", pathGlobFilter="*.csv")["ignored"] == 2
    assert published(world) == {"a": once("s3://bucket/a/1.csv")}
    assert waiting(world) == {}


def test_the_size_that_a_notification_lacks_is_asked_for_by_the_reader(world: World) -> None:
    world.publish(*A)
    receive(world)
    with reader(world, "a", maxFilesPerTrigger="100", maxBytesPerTrigger="20b") as loop:
        loop.drain()
    with world.store() as store:
        assert len([row for row in rows(store, "attempts") if row["source"] == "a"]) >= 3  # of two objects of 10 bytes


def test_an_object_announced_by_its_uri_alone_is_read_in_the_version_of_its_look_up(world: World) -> None:
    """Several tasks read its pieces: of an object that is overwritten meanwhile, rows would be of two versions."""
    world.publish(A[0])
    receive(world)
    looked_up = patch("support.driver_loop.ObjectStat", lambda size, modified: ObjectStat(size, modified, "v1"))
    with looked_up, reader(world, "a") as loop:
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.02))
        (entry,) = loop.coordinator.plan(0, loop.latest(0)).ranges
    assert (entry.content.etag, entry.content.reference) == ("v1", None)


def test_ordered_groups_are_read_too_though_in_no_order(world: World) -> None:
    world.publish(*A, group="g")
    for _ in A:
        receive(world, {"a": ROUTES["a"]})
    drain(world, "a")
    assert published(world)["a"] == once(*A)


def test_at_most_once_reads_what_is_recorded_too(world: World) -> None:
    world.publish(*A)
    receive(world)
    drain(world, "a", deliverySemantics="at-most-once")
    assert published(world)["a"] == once(*A)


def test_200_sources_cost_a_receiver_as_many_statements_as_one(world: World) -> None:
    counted = []
    for number in (1, 200):
        of = {f"source-{place}": f"s3://bucket/{number}/{place}/" for place in range(number)}
        world.publish(*(f"s3://bucket/{number}/{place % number}/{place}" for place in range(1000)))
        options = parse_receiver_options(world.queue_url, {})
        with open_queue(world.queue_url) as queue, open_store(world.store_url) as store:
            receiver = Receiver("files", queue, routes(of), options, store, threading.Event(), clock=lambda: 0.0)
            receiver.begin()
            with counting(store.database) as counts:
                receiver.run(until_empty=True)
        assert receiver.totals.recorded == 1000
        counted.append(counts.statements)
    assert counted[1] <= 1.3 * counted[0], "for a thousand messages"
    assert counted[0] <= 50


def test_what_waits_is_the_depth_of_the_readers_queue(world: World) -> None:
    world.publish(*A)
    receive(world)
    with reader(world, "a", maxFilesPerTrigger="1", commitTimeout="2s") as loop:
        until(lambda: loop.coordinator.report()["depth"] == 2, lambda: time.sleep(0.05), tries=400)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content": "message", "fileFormat": ""}, "'content': message needs the messages"),
        ({"allowOverwrites": "true"}, "'allowOverwrites'.*URIs alone"),
        ({"tagFilter": "a.#"}, "'tagFilter'.*file of routes"),
        ({"maxFileAge": "1 day"}, "'maxFileAge'"),
        ({"pathRewrites": '{"s3://a/": "s3://b/"}'}, "'pathRewrites'.*the receiver's"),
        ({"trustNotification": "none"}, "'trustNotification'.*the receiver's"),
        ({"deliverySemantics": "at-least-once"}, "'deliverySemantics'.*exactly-once"),
        ({"queueUrl": "store,sim://x?dir=/tmp"}, "'queueUrl'.*store is read alone"),
        ({"source": ""}, "'source': is required without a queue"),
    ],
)
def test_a_reader_of_the_store_refuses_what_needs_messages(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        reader_options("store", "sqlite:///x.db", **{"source": "a", **options})


def test_a_source_that_was_read_with_versions_is_refused_by_name(world: World) -> None:
    with world.loop(source="a", allowOverwrites="true"):
        pass
    world.publish(A[0])
    with pytest.raises(StoreConfigurationError, match="source 'a', which was read with allowOverwrites"):
        receive(world)


def test_a_listener_is_refused_since_it_loses_messages(world: World) -> None:
    url = f"sim://x?dir={world.folder}&listener=true&tags=%23"
    with open_queue(url) as queue, open_store(world.store_url) as store:
        receiver = Receiver("r", queue, routes(), parse_receiver_options(url, {}), store, threading.Event())
        with pytest.raises(OptionError, match="is a listener"):
            receiver.begin()


def test_objects_by_reference_have_what_their_announcements_said(world: World) -> None:
    world.publish(A[0], tag="eu")
    receive(world)
    with reader(world, "a", content="reference", fileFormat="") as loop:
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.02))
        (entry,) = loop.coordinator.plan(0, loop.latest(0)).ranges
    assert entry.content.reference is not None
    assert (entry.content.reference.tag, entry.content.queue, entry.content.size) == ("eu", "store", 10)


def test_a_schema_is_inferred_from_what_is_recorded_within_the_prefixes(world: World) -> None:
    """Before anything else was checked: a message must not choose what a reader's credentials read."""
    world.publish(A[0], B[0], "s3://bucket/a/_hidden")
    receive(world, {"a": "s3://bucket/"})
    options = reader_options("store", world.store_url, source="a", allowedPrefixes="s3://bucket/a/")
    assert [content.uri for content in samples_of(options, [])] == [A[0]]


def test_old_errors_of_a_receiver_are_pruned_by_it(world: World) -> None:
    options, ending = parse_receiver_options(world.queue_url, {}), threading.Event()
    with open_queue(world.queue_url) as queue, open_store(world.store_url) as store:
        receiver = Receiver("files", queue, routes(), options, store, threading.Event())
        receiver.begin()
        calls: list[RetentionPolicy] = []

        def prune(policy: RetentionPolicy, **_: object) -> None:
            calls.append(policy)
            ending.set()

        with patch.object(store, "prune", prune):
            receiver.run(ending=ending)
    assert [policy.source for policy in calls] == ["files"]


def test_an_object_that_was_missing_is_read_after_the_requeue_of_its_error(world: World) -> None:
    """No message is sent: its reader takes it from the store."""
    world.publish(A[0])
    receive(world, {"a": ROUTES["a"]})
    requeue = ["errors", "requeue", "--all", "--json", "--store", world.store_url]
    with reader(world, "a") as loop:
        loop.bad = {A[0]: "missing-object"}
        until(lambda: loop.batch(), lambda: time.sleep(0.02))
        loop.latest(loop._start)
        loop.bad = {}
        result = CliRunner().invoke(app, requeue)
        numbers = json.loads(result.stdout)
        assert (numbers["errors"], numbers["messages"], numbers["refused"]) == (1, 0, {})
        until(lambda: "a" in published(world), slowly(loop))
    assert published(world)["a"] == once(A[0])


def test_the_requeue_of_an_object_that_is_forgotten_says_that_nothing_would_announce_it(world: World) -> None:
    world.publish(A[0])
    receive(world, {"a": ROUTES["a"]})
    with reader(world, "a") as loop:
        loop.bad = {A[0]: "missing-object"}
        until(lambda: loop.batch(), lambda: time.sleep(0.02))
        loop.latest(loop._start)
    CliRunner().invoke(app, ["shards", "forget", "--all", "--yes", "--reason", "x", "--store", world.store_url])
    result = CliRunner().invoke(app, ["errors", "requeue", "--all", "--json", "--store", world.store_url])
    (refused,) = json.loads(result.stdout)["refused"].values()
    assert "announce it there, with `cuesqueue send`" in refused


# --- the reader's option `routes`


@pytest.fixture
def file(world: World) -> str:
    entries = [{"prefix": prefix, "source": name} for name, prefix in ROUTES.items()]
    (world.folder / "routes.json").write_text(json.dumps(entries))
    return str(world.folder / "routes.json")


def test_a_reader_with_routes_records_for_all_sources_and_reads_its_own(world: World, file: str) -> None:
    world.publish(*A, *B)
    drain(world, "a", queueUrl=world.queue_url, routes=file)
    assert published(world) == {"a": once(*A)}
    assert world.depth() == EMPTY
    assert waiting(world) == {"all": 10, "b": 5}
    drain(world, "b")
    drain(world, "all", queueUrl=world.queue_url, routes=file)
    assert published(world) == {"a": once(*A), "b": once(*B), "all": once(*A, *B)}


def test_a_reader_with_routes_records_what_it_trusts_alone(world: World, file: str) -> None:
    world.publish(json.dumps({"Records": [s3_record("bucket", "b/1", "2026-01-01T00:00:00Z", size=0, eTag="odd")]}))
    drain(world, "a", queueUrl=world.queue_url, routes=file, trustNotification="size")
    with world.store() as store:
        assert {(row["size"], row["etag"]) for row in rows(store, "shards")} == {(0, None)}


def test_a_run_of_a_reader_with_routes_takes_what_was_there_and_ends(world: World, file: str) -> None:
    many = [f"s3://bucket/a/{number}" for number in range(2500)]
    world.publish(*many)
    with reader(world, "a", queueUrl=world.queue_url, routes=file, maxFilesPerTrigger="1000") as loop:
        loop.drain()
    assert published(world)["a"] == once(*many)


def test_the_first_batch_of_a_running_reader_with_routes_has_all_that_was_there(world: World, file: str) -> None:
    """Spark before 4.2 asks once, and ends an AvailableNow query where nothing came."""
    world.publish(*A)
    with reader(world, "a", queueUrl=world.queue_url, routes=file) as loop:
        assert loop.batch()
    assert published(world)["a"] == once(*A)


def test_several_readers_with_routes_share_a_queue_and_die(world: World, file: str) -> None:
    world.publish(*A, *B)
    options: dict[str, Any] = {"queueUrl": world.queue_url, "routes": file, "visibilityTimeout": "2s"}
    with reader(world, "a", **options) as one:
        until(lambda: world.depth() == EMPTY, lambda: time.sleep(0.02))
        one.die()
    world.publish("s3://bucket/a/more", "s3://bucket/b/more")
    with reader(world, "a", **options) as one, reader(world, "b", **options) as other:
        until(lambda: sum(map(Counter.total, published(world).values())) == 12, slowly(one, other))
    assert published(world) == {"a": once(*A, "s3://bucket/a/more"), "b": once(*B, "s3://bucket/b/more")}
    assert waiting(world) == {"all": 12}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queueUrl": "store", "routes": "x.json"}, "'routes': divides the messages of a queue"),
        ({"onUnroutedObject": "count"}, "'onUnroutedObject': acts only on routes"),
        ({"routes": "x.json", "content": "message", "fileFormat": ""}, "'content'"),
        ({"routes": "x.json", "allowOverwrites": "true"}, "'allowOverwrites'"),
    ],
)
def test_options_that_do_not_go_with_routes_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        reader_options("sim://x?dir=/tmp", "sqlite:///x.db", **{"source": "a", **options})


def test_a_reader_whose_source_has_no_route_is_refused(world: World, file: str) -> None:
    with (
        pytest.raises(OptionError, match=r"no route of .* leads to source 'other'"),
        reader(world, "other", queueUrl=world.queue_url, routes=file),
    ):
        pass
