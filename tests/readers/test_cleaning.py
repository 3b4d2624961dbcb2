"""Objects that are deleted or moved once they were read, by a reader that is driven as Spark drives it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from queue_source.coordinator import cleaning as cleaner
from queue_source.coordinator.cleaning import moved_to
from queue_source.errors import OptionError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import Bucket, Known, Outcome, Page, open_bucket
from shard_store import failpoints
from shard_store.failpoints import CLEANING_POINTS, FailpointReached
from shard_store.model import BEGINNING, ErrorRecord, shard_key
from shard_store.shards.changes import Audit
from shard_store.shards.recording import Receipts
from shard_store.sql.schema import cleanings, errors, shards, sources
from shard_store.upkeep import cleaning as planning
from support.buckets import MemoryStore
from support.coordinator_world import World
from support.driver_loop import DriverLoop, states, until
from support.servers.ministack import client, new_name
from support.sessions import LEAST
from support.store_backends import content as content_of
from support.store_backends import rows

BODY = b"ten bytes\n"
"""As long as the objects of driver loops are."""


@dataclass
class Objects(MemoryStore):
    """The real thing: local files or S3, in place of the object store in memory."""

    root: str = ""
    storage: StorageOptions = field(default_factory=StorageOptions)
    client: Any = None

    def open(self, prefix: str) -> Bucket:
        return open_bucket(prefix, self.storage)

    def write(self, uri: str, body: bytes = BODY) -> None:
        if self.client is not None:
            self.client.put_object(Bucket=self._bucket, Key=uri[len(self.root) :], Body=body)
            return
        path = Path(uri[7:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def contents(self) -> dict[str, bytes]:
        """By name below the root."""
        if self.client is not None:
            listed = self.client.list_objects_v2(Bucket=self._bucket).get("Contents", ())
            return {one["Key"]: self._get(one["Key"]) for one in listed}
        root = Path(self.root[7:])
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    @property
    def _bucket(self) -> str:
        return self.root[5:-1]

    def _get(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return body


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SETTLED", timedelta(0))
    monkeypatch.setattr(cleaner, "_EVERY", 0.05)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    root = tmp_path / "objects"
    (root / "in").mkdir(parents=True)
    return Objects(root=f"file://{root}/", storage=StorageOptions(local_prefixes=(f"file://{root}/in/",)))


@pytest.fixture
def world(tmp_path: Path, objects: Objects) -> World:
    return World(tmp_path, objects)


@pytest.fixture(params=["local", "s3"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "local":
        yield World(tmp_path, request.getfixturevalue("objects"))
        return
    url = request.getfixturevalue("ministack_url")
    made = client(url, "s3")
    name = new_name("bucket")
    made.create_bucket(Bucket=name)
    storage = StorageOptions(endpoint=url, access_key="test", secret_key="test", region="us-east-1")
    yield World(tmp_path, Objects(root=f"s3://{name}/", storage=storage, client=made))
    made.close()


def real(world: World) -> Objects:
    assert isinstance(world.bucket, Objects)
    return world.bucket


def options(world: World, action: str, **more: str) -> dict[str, str]:
    given = {"allowedPrefixes": f"{real(world).root}in/", "source": "files", "cleanSource": action}
    if action != "off":
        given["cleanSource.retentionDuration"] = "1ms"
    if action == "move":
        given["cleanSource.moveDestination"] = f"{real(world).root}archive"
    return {**given, **more}


def read(world: World, *names: str, bad: Sequence[str] = (), **more: str) -> list[str]:
    """Objects that are there, announced and read, by a reader that cleans nothing. Their URIs."""
    uris = [f"{real(world).root}in/{name}" for name in names]
    for uri in uris:
        real(world).write(uri)
    world.publish(*uris)
    with loop_of(world, "off", **more) as loop:
        loop.bad = {f"{real(world).root}in/{name}": "corrupt-object" for name in bad}
        loop.drain()
    return uris


def loop_of(world: World, action: str, **more: str) -> Any:
    given: dict[str, Any] = options(world, action, **more)
    return world.loop(**given)


def ended(world: World) -> dict[str, str | None]:
    """Outcome or cause, by name."""
    with world.store() as store:
        found = rows(store, "cleanings")
    return {row["uri"].rpartition("/")[2]: row["outcome"] or row["cause"] for row in found}


def clean(world: World, action: str, expected: dict[str, str | None], **more: str) -> dict[str, Any]:
    """Run a reader until this is written down; its counters."""
    with loop_of(world, action, **more) as loop:
        until(lambda: ended(world) == expected, step(loop))
    counts: dict[str, Any] = loop.metrics  # when its threads have ended
    return counts


def step(loop: DriverLoop) -> Callable[[], None]:
    def go() -> None:
        loop.batch()
        time.sleep(0.02)

    return go


def archived(world: World, name: str) -> str:
    """Where `in/NAME` is moved to, below the root."""
    return moved_to(f"{real(world).root}in/{name}", None, "archive/")


# --- what becomes of what was read ---


def test_what_was_read_is_deleted_and_nothing_else(any_world: World) -> None:
    read(any_world, "a", "b/c")
    real(any_world).write(f"{real(any_world).root}in/not-announced")
    real(any_world).write(f"{real(any_world).root}elsewhere")
    counts = clean(any_world, "delete", {"a": "cleaned", "c": "cleaned"})
    assert sorted(real(any_world).contents()) == ["elsewhere", "in/not-announced"]
    assert (counts["cleaned"], counts["cleaningFailures"]) == (2, 0)


def test_what_was_read_is_moved_with_its_whole_path(any_world: World) -> None:
    read(any_world, "a", "b/c")
    clean(any_world, "move", {"a": "cleaned", "c": "cleaned"})
    assert real(any_world).contents() == {archived(any_world, "a"): BODY, archived(any_world, "b/c"): BODY}


def test_an_object_by_reference_is_moved_when_its_row_is_published(world: World) -> None:
    by_reference = {"content": "reference", "fileFormat": ""}
    read(world, "a", **by_reference)
    clean(world, "move", {"a": "cleaned"}, **by_reference)
    assert real(world).contents() == {archived(world, "a"): BODY}


def test_a_reader_deletes_nothing_unless_it_is_told_to(world: World) -> None:
    read(world, "a")
    with loop_of(world, "off") as loop:
        for _ in range(5):
            step(loop)()
    assert (sorted(real(world).contents()), ended(world)) == (["in/a"], {})


def test_what_is_not_done_stays(world: World) -> None:
    read(world, "a", "broken", bad=["broken"])
    with world.store() as store:
        assert states(store) == {"done": 1, "quarantined": 1}
    clean(world, "delete", {"a": "cleaned"})
    assert sorted(real(world).contents()) == ["in/broken"]


def test_what_is_done_only_now_is_left_for_the_retention(world: World) -> None:
    read(world, "a", "b")
    with world.store() as store:
        old = shards.update().where(shards.c.shard_id.like("%a"))
        store.database.write(lambda t: t.execute(old.values(finished_at=t.now() - 8 * 86_400 * 10**6)))
    os.utime(real(world).root[7:] + "in/a", (1, 1_600_000_000))
    clean(world, "delete", {"a": "cleaned"}, **{"cleanSource.retentionDuration": "7 days"})
    assert sorted(real(world).contents()) == ["in/b"]


def test_what_was_overwritten_while_it_waited_stays(any_world: World) -> None:
    (uri, _) = read(any_world, "a", "b")
    time.sleep(1.1)  # times of S3's answers have whole seconds
    real(any_world).write(uri, b"TEN BYTES\n")
    clean(any_world, "delete", {"a": "changed", "b": "cleaned"})
    assert real(any_world).contents() == {"in/a": b"TEN BYTES\n"}


def test_without_an_etag_what_was_modified_after_it_was_announced_stays_also_if_it_was_done_later(world: World) -> None:
    """It may have been overwritten while it was read: then nobody has read what is there."""
    read(world, "a")
    earlier = shards.update().values(opened_at=shards.c.opened_at - 3_600_000_000)
    with world.store() as store:
        store.database.write(lambda t: t.execute(earlier))
    clean(world, "delete", {"a": "changed"})
    assert sorted(real(world).contents()) == ["in/a"]


def test_what_was_announced_again_while_it_waited_stays(world: World) -> None:
    (uri,) = read(world, "a")
    with world.store() as store:
        assert store.plan_cleanings("files", timedelta(0), lambda _, uri: planning.Planned(uri, None), 10) == 1
        store.forget([shard_key("files", uri)], Audit("me", "to read it again"))
    clean(world, "delete", {})  # what was planned is forgotten, too
    assert sorted(real(world).contents()) == ["in/a"]
    world.publish(uri)
    with loop_of(world, "off") as loop:
        loop.batch()
    clean(world, "delete", {}, **{"cleanSource.retentionDuration": "1 hour"})
    assert sorted(real(world).contents()) == ["in/a"]


def test_versions_that_are_told_apart_do_not_meet_where_they_are_moved_to(world: World) -> None:
    assert moved_to("s3://b/in/x.json", "3.L4k-q", "s3://b/archive/") == "s3://b/archive/in/3.L4k-q/x.json"
    assert moved_to("s3://b/x.json", "v1", "s3://b/archive/") == "s3://b/archive/v1/x.json"
    assert moved_to("s3://b/in//x", None, "s3://b/archive/") == "s3://b/archive/in//x"
    assert moved_to("gs://b/in/", None, "gs://b/archive/") == "gs://b/archive/in/"
    assert moved_to("file:///data/in/x", None, "file:///old/") == "file:///old/data/in/x"


@pytest.mark.parametrize("version", ["..", ".", "../../in", "a/b", "a\0b", "x" * 300, ""])
def test_a_version_is_never_a_path(version: str) -> None:
    folder, name = moved_to("s3://b/in/x", version, "s3://b/archive/").removeprefix("s3://b/archive/in/").split("/")
    assert (len(folder), name) == (16, "x")


def test_what_a_route_leads_to_for_another_source_stays_until_that_has_published_it(world: World) -> None:
    uris = read(world, "a", "b")
    shared = [content_of(uri) for uri in uris[:1]]
    with world.store() as store:
        store.start_receiver("r", "q", "host", ["audit"])
        store.record("r", {"audit": shared}, Receipts(1))
    counts = clean(world, "delete", {"a": planning.NEEDED, "b": "cleaned"})
    assert sorted(real(world).contents()) == ["in/a"]
    assert (counts["cleaningsNeeded"], counts["cleaningFailures"]) == (1, 0)
    with loop_of(world, "off", source="audit", queueUrl="store", checkpoint="of audit") as loop:
        loop.drain()
    with world.store() as store:
        store.database.write(lambda t: t.execute(cleanings.update().values(due_at=0)))
    clean(world, "delete", {"a": "cleaned", "b": "cleaned"})
    assert real(world).contents() == {}


def test_options_decide_where_objects_go_and_not_what_was_planned_or_is_in_the_store(world: World) -> None:
    read(world, "a", "b")
    elsewhere = f"{real(world).root}in/../../elsewhere"
    with world.store() as store:
        store.plan_cleanings("files", timedelta(0), lambda _, uri: planning.Planned(uri, elsewhere), 10)
    clean(world, "move", {"a": "cleaned", "b": "cleaned"})
    assert sorted(real(world).contents()) == sorted(archived(world, name) for name in "ab")
    with world.store() as store:
        targets = {row["target"] for row in rows(store, "cleanings")}
    assert targets == {real(world).root + archived(world, name) for name in "ab"}


@pytest.mark.parametrize("finder", ["files", "audit"])
def test_what_was_to_be_moved_and_has_bad_records_is_not_deleted_after_a_change_of_options(
    world: World, finder: str
) -> None:
    uri, _ = read(world, "a", "b")
    if finder == "audit":
        world.publish(uri)
        with loop_of(world, "off", source="audit", checkpoint="of audit") as loop:
            loop.drain()
    with world.store() as store:
        store.plan_cleanings("files", timedelta(0), lambda _, uri: planning.Planned(uri, f"{uri}.moved"), 10)
        store.record_errors(finder, "files", [ErrorRecord("record", "bad-record", "why", uri, "0" * 64, BEGINNING)])
    clean(world, "delete", {"a": "changed", "b": "cleaned"})
    with world.store() as store:
        store.database.write(lambda t: t.execute(errors.delete()))  # as pruning does, when another source forgets
        assert not store.due_cleanings("files", 10).cleanings, "nobody looks at it again"
    assert sorted(real(world).contents()) == ["in/a"]


def test_whoever_writes_to_the_store_has_nothing_deleted_outside_of_allowed_prefixes(world: World) -> None:
    read(world, "a")
    outside = f"{real(world).root}outside"
    real(world).write(outside)
    climbing = f"{real(world).root}in/../outside"
    with world.store() as store:
        for uri in (outside, climbing):
            store.database.write(lambda t: t.execute(sources.update().values(cleaned_until=None)))
            this = shards.update().values(uri=uri, shard_id=uri)
            store.database.write(lambda t, s=this: t.execute(s))  # type: ignore[misc]
            store.plan_cleanings("files", timedelta(0), lambda _, uri: planning.Planned(uri, None), 10)
            with loop_of(world, "delete") as loop:
                until(lambda: list(ended(world).values()) == ["forbidden-object"], step(loop))
            store.database.write(lambda t: t.execute(cleanings.delete()))
    assert sorted(real(world).contents()) == ["in/a", "outside"]


# --- what fails ---


def test_what_may_not_be_deleted_is_written_down_and_the_query_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    read(world, "a", "b")
    refused = PermissionError(13, "Permission denied")
    with mock.patch("os.unlink", side_effect=refused), loop_of(world, "delete") as loop:
        until(lambda: ended(world) == {"a": "forbidden-object", "b": "forbidden-object"}, step(loop))
        until(lambda: loop.metrics["cleaningFailures"] == 2, step(loop))
        real(world).write(f"{real(world).root}in/new")
        world.publish(f"{real(world).root}in/new")
        until(lambda: _done(world) == 3, step(loop))
    with world.store() as store:
        (row, _) = (row for row in rows(store, "cleanings") if row["uri"][-1] in "ab")
    assert "Permission denied" in row["detail"]
    assert row["due_at"] - row["planned_at"] > 80_000 * 10**6, "a person has to change it: tried once a day"
    assert any("2 object(s) could not be cleaned (2 forbidden-object)" in one.message for one in caplog.records)


def test_what_fails_in_passing_is_tried_again_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_FIRST_PAUSE", timedelta(milliseconds=10))
    read(world, "a")
    real_unlink, tries = os.unlink, []

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise OSError(5, "Input/output error")
        real_unlink(path, dir_fd=dir_fd)

    with mock.patch("os.unlink", unlink):
        counts = clean(world, "delete", {"a": "cleaned"})
    assert counts["cleaningFailures"] == 2
    assert real(world).contents() == {}


@pytest.mark.parametrize("order", [("gone/a", "here/b"), ("here/b", "gone/a")])
def test_a_folder_that_is_gone_keeps_no_other_object_from_being_cleaned(world: World, order: tuple[str, str]) -> None:
    for name in order:
        read(world, name)
    shutil.rmtree(f"{real(world).root[7:]}in/gone")
    counts = clean(world, "delete", {"a": "cleaned", "b": "cleaned"})
    assert (real(world).contents(), counts["cleaningFailures"]) == ({}, 0)


def test_what_is_outside_of_allowed_prefixes_by_now_stays(world: World) -> None:
    read(world, "narrow/a", "wide/b")
    with world.store() as store:
        store.plan_cleanings("files", timedelta(0), lambda _, uri: planning.Planned(uri, None), 10)
    narrow = {"allowedPrefixes": f"{real(world).root}in/narrow/"}
    clean(world, "delete", {"a": "cleaned", "b": "forbidden-object"}, **narrow)
    assert sorted(real(world).contents()) == ["in/wide/b"]


def test_a_target_that_is_another_object_is_never_overwritten(world: World) -> None:
    read(world, "a")
    target = real(world).root + archived(world, "a")
    real(world).write(target, b"from before")
    clean(world, "move", {"a": "target-exists"})
    assert real(world).contents() == {"in/a": BODY, archived(world, "a"): b"from before"}


def test_while_it_is_another_pipelines_turn_nothing_is_cleaned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "_EVERY", 60.0)
    read(world, "a")
    with world.store() as store:
        assert store.win_interval("clean files", 60.0)
    with loop_of(world, "delete") as loop:
        for _ in range(10):
            step(loop)()
    assert (sorted(real(world).contents()), ended(world)) == (["in/a"], {})


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_times_are_compared_by_the_clock_of_the_store(world: World, ahead: float) -> None:
    """Where nothing but the time tells whether it is still the object that was read."""
    known: list[Known] = []

    class Skewed(Bucket):
        def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
            return Page([], None, datetime.now(timezone.utc) + timedelta(seconds=ahead))

        def delete(self, objects: Sequence[Known]) -> list[Outcome]:
            known.extend(objects)
            return [None] * len(objects)

        def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
            return []

        def close(self) -> None:
            pass

    read(world, "a")
    with mock.patch.object(Objects, "open", return_value=Skewed()):
        clean(world, "delete", {"a": "cleaned"})
    with world.store() as store:
        done = rows(store, "shards")[0]["finished_at"] / 1e6
    assert known[0].known_at.timestamp() - done == pytest.approx(ahead, abs=3.0)


# --- deaths ---


@pytest.mark.parametrize("point", CLEANING_POINTS)
@pytest.mark.parametrize("action", ["delete", "move"])
def test_a_death_at_any_step_is_ended_by_the_next_reader(
    any_world: World, monkeypatch: pytest.MonkeyPatch, point: str, action: str
) -> None:
    if (action, point) == ("delete", "object-copied"):
        pytest.skip("nothing is copied to be deleted")
    monkeypatch.setattr(cleaner, "_BATCH", 3)
    names = [f"{place}" for place in range(8)]
    uris = read(any_world, *names)
    time.sleep(1.1)
    real(any_world).write(uris[0], b"TEN BYTES\n")  # it was exchanged, and stays through all deaths
    for turn in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "_armed", failpoints._parse(f"{point}@{turn}=raise"))
            patch.setattr(failpoints, "_reached", {})
            try:
                with loop_of(any_world, action) as loop:
                    until(lambda: len(ended_only(any_world)) == 8, step(loop))
                assert turn == 2, "by then all may be done"
            except FailpointReached:
                loop.die()
    clean(any_world, action, {"0": "changed", **dict.fromkeys(names[1:], "cleaned")})
    expected = {"in/0": b"TEN BYTES\n"}
    if action == "move":
        expected |= {archived(any_world, name): BODY for name in names[1:]}
    assert real(any_world).contents() == expected


def ended_only(world: World) -> list[str]:
    return [name for name, outcome in ended(world).items() if outcome is not None]


def _done(world: World) -> int:
    with world.store() as store:
        return states(store)["done"]


# --- options ---


def parse(**given: str) -> Any:
    names = {"destination": "cleanSource.moveDestination", "retention": "cleanSource.retentionDuration"}
    named = {names.get(name, name): text for name, text in given.items()}
    return parse_reader_options({**LEAST, "fileFormat": "json", "allowedPrefixes": "s3://b/in/", **named}).cleaning


def test_options_are_taken_as_spark_and_auto_loader_write_them() -> None:
    assert parse().clean_source == "off"
    assert parse(cleanSource="DELETE").clean_source == "delete"
    assert parse(cleanSource="OFF").retention == timedelta(days=30)
    moved = parse(cleanSource="archive", sourceArchiveDir="s3a://b/old")
    assert (moved.clean_source, moved.destination) == ("move", "s3://b/old/")
    of_auto_loader = {
        "cloudFiles.cleanSource": "MOVE",
        "cloudFiles.cleanSource.moveDestination": "s3://b/old/",
        "cloudFiles.cleanSource.retentionDuration": "14 days",
    }
    assert parse(**of_auto_loader) == parse(cleanSource="move", destination="s3://b/old/", retention="14 days")
    local = parse(cleanSource="move", destination="/data/old", allowedPrefixes="/data/in/")
    assert local.destination == "file:///data/old/"


@pytest.mark.parametrize(
    ("given", "option", "next_step"),
    [
        ({"cleanSource": "move"}, "cleanSource.moveDestination", "name a folder"),
        ({"cleanSource": "delete", "destination": "s3://b/x/"}, "cleanSource.moveDestination", "leave it out"),
        ({"destination": "s3://b/x/"}, "cleanSource.moveDestination", "leave it out"),
        ({"retention": "1 day"}, "cleanSource.retentionDuration", "set that too"),
        ({"cleanSource": "purge"}, "cleanSource", "write one of off, delete, move"),
        (
            {"cleanSource": "delete", "retention": "31 days"},
            "cleanSource.retentionDuration",
            "raise deduplicationWindow",
        ),
        ({"cleanSource": "delete", "deduplicationWindow": "10 days"}, "cleanSource.retentionDuration", "lower it"),
        ({"cleanSource": "delete", "deliverySemantics": "at-least-once"}, "cleanSource", "leave one of them out"),
        ({"cleanSource": "delete", "deliverySemantics": "at-most-once"}, "cleanSource", "leave one of them out"),
        (
            {"cleanSource": "delete", "content": "message", "allowedPrefixes": "s3://b/in/"},
            "cleanSource",
            "leave it out",
        ),
        ({"cleanSource": "move", "destination": "s3://b/in/old/"}, "cleanSource.moveDestination", "another folder"),
        ({"cleanSource": "move", "destination": "s3://b/"}, "cleanSource.moveDestination", "another folder"),
        ({"cleanSource": "move", "destination": "s3://c/old/"}, "cleanSource.moveDestination", "same bucket"),
        ({"cleanSource": "move", "destination": "gs://b/old/"}, "cleanSource.moveDestination", "same bucket"),
        ({"cleanSource": "move", "destination": "s3://b/in/../old/"}, "cleanSource.moveDestination", "the path"),
        ({"cleanSource": "move", "destination": "old"}, "cleanSource.moveDestination", "scheme://bucket/"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused_with_the_next_step(
    given: dict[str, str], option: str, next_step: str
) -> None:
    with pytest.raises(OptionError, match=next_step) as raised:
        parse(**given)
    assert raised.value.option == option
