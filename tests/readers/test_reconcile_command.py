"""`cuesqueue reconcile` beside a real reader and store: what is missing is found, announced, read, and certified."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import tenacity
from typer.testing import CliRunner, Result

from queue_source.commands import reconcile as reconciling
from queue_source.commands.main import app
from queue_source.errors import ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.storage.buckets import Page, local
from shard_store.completeness.comparing import Tally
from shard_store.sql.schema import shards, sources
from shard_store.upkeep.pruning import RetentionPolicy
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import until
from support.inventories import CREATED, FORMATS, Entry, write_inventory
from support.servers.ministack import client, new_name
from support.store_backends import rows

SECRET = "n0t-t0-be-sh0wn"
OLD = datetime(2026, 11, 20, tzinfo=timezone.utc)
BODY = b'{"id": 1}\n'  # 10 bytes, as the driver loop takes all objects to have


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    (tmp_path / "in").mkdir()
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    monkeypatch.setenv("COLUMNS", "200")
    return world


def prefix(world: World) -> str:
    return f"file://{world.folder}/in/"


def put(world: World, *names: str, body: bytes = BODY, at: datetime = OLD) -> list[str]:
    """Files that were last modified at a time; their URIs."""
    for name in names:
        path = world.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        os.utime(path, (at.timestamp(), at.timestamp()))
    return [f"{prefix(world)}{name}" for name in names]


def read(world: World, *uris: str, **options: Any) -> None:
    """The reader reads what is announced, until its queue is empty."""
    if uris:
        world.publish(*uris)
    with world.loop(**options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))


def run(*arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> Result:
    done: Result = CliRunner().invoke(app, ["reconcile", *arguments], env=env)
    assert done.exit_code == code, done.output
    return done


def found(*arguments: str, code: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stdout)
    assert told["complete"] is (code == 0)
    [one] = told["prefixes"]
    return dict(one)


def counts(one: Mapping[str, Any]) -> dict[str, int]:
    return {name: one[name] for name in Tally().counts if one[name]}


def certificates(world: World) -> list[dict[str, Any]]:
    with world.store() as store:
        return rows(store, "completeness")


def test_what_is_missing_is_announced_and_read_and_then_it_is_complete(world: World) -> None:
    known = put(world, "a", "b")
    read(world, *known)
    lost = put(world, "c d", "e%20f", "ü+")
    first = found(prefix(world), "--certify", "--send", world.queue_url, code=1)
    assert counts(first) == {"published": 2, "missing": 3}
    assert (first["verdict"], first["announced"], first["unpublished"]) == ("incomplete", 3, {"missing": sorted(lost)})
    assert counts(found(prefix(world), "--send", world.queue_url, code=1)) == {"published": 2, "missing": 3}  # twice
    read(world)
    second = found("--certificate", str(first["certificate"]), "--certify")
    assert counts(second) == {"published": 5}
    assert second["modified_before"] == first["modified_before"]
    assert second["compared_with"] == {
        "certificate": first["certificate"],
        "written_at": second["compared_with"]["written_at"],
        "same": False,
        "counts": {"published": [2, 5], "missing": [3, 0]},
        "appeared": {},
        "gone": {"missing": sorted(lost)},
        "all_names_kept": True,
    }
    third = found(prefix(world), "--until", second["modified_before"])
    assert (third["compared_with"]["certificate"], third["compared_with"]["same"]) == (second["certificate"], True)
    assert [row["verdict"] for row in certificates(world)] == ["incomplete", "complete"]
    with world.store() as store:
        assert sorted(row["shard_id"] for row in rows(store, "shards")) == sorted([*known, *lost])


def test_people_read_what_it_means(world: World) -> None:
    read(world, *put(world, "a"))
    put(world, *(f"lost {i:02}" for i in range(12)))
    told = run(prefix(world), "--certify", code=1)
    assert "Of the 13 objects under" in told.stderr
    assert "1 are published, 12 missing. Not complete." in told.stderr
    assert f"missing: {prefix(world)}lost 00" in told.stderr
    assert "and 2 more missing; --list FILE writes all" in told.stderr
    [row] = certificates(world)
    before = datetime.fromtimestamp(row["modified_before"] / 1e6, timezone.utc).isoformat()
    again = run(prefix(world), "--until", before, code=1)
    assert "the same objects and numbers as in certificate 1" in again.stderr
    put(world, "lost 13")
    more = run("--certificate", "1", code=1).stderr
    assert "changed since certificate 1" in more
    assert "objects 13 -> 14, missing 12 -> 13" in more
    assert f"now missing: {prefix(world)}lost 13" in more


def test_a_dry_run_sends_and_certifies_nothing(world: World) -> None:
    read(world, *put(world, "a"))
    put(world, "b")
    told = found(prefix(world), "--dry-run", "--certify", "--send", world.queue_url, code=1)
    assert (told["announced"], told["certificate"]) == (1, None)
    assert world.depth() == EMPTY
    assert certificates(world) == []


def test_the_readers_own_options_choose_and_the_rest_is_left_out(world: World) -> None:
    names = ("a.csv", "b.json", "_hidden.csv", "_temporary/c.csv", "year/_year=1/d.csv")
    uris = put(world, *names)
    read(world, *uris, pathGlobFilter="*.csv", allowedPrefixes=prefix(world))
    assert counts(found(prefix(world), "--option", "pathGlobFilter=*.csv")) == {"published": 2, "left_out": 3}
    assert counts(found(prefix(world), code=1)) == {"published": 2, "missing": 1, "left_out": 2}
    every = ("--option", "readHiddenFiles=TRUE", "--option", "PATHGLOBFILTER=*.csv")
    assert counts(found(prefix(world), *every, code=1)) == {"published": 2, "missing": 2, "left_out": 1}
    below = ("--option", f"allowedPrefixes={prefix(world)}")
    assert counts(found(f"{prefix(world)}_temporary/", *below, code=1)) == {"left_out": 1}
    assert counts(found(f"{prefix(world)}_temporary/", code=1)) == {"missing": 1}


def test_the_readers_choice_by_time_is_left_out_and_needs_a_zone(world: World) -> None:
    old, young = put(world, "old")[0], put(world, "young", at=OLD + timedelta(hours=2))[0]
    read(world, young)
    chosen = ("--option", "modifiedAfter=2026-11-20T02:00:00+01:00")
    told = found(prefix(world), *chosen, "--certify")
    assert counts(told) == {"published": 1, "left_out": 1}
    again = found(prefix(world), "--until", told["modified_before"], "--option", "modifiedAfter=2026-11-20T01:00:00Z")
    assert again["compared_with"]["same"]
    assert found("--certificate", str(told["certificate"]))["compared_with"]["same"]
    assert "has no time zone" in run(prefix(world), "--option", "modifiedAfter=2026-11-20", code=2).stderr
    assert "leave it out here" in run(prefix(world), "--option", "maxFileAge=7 days", code=2).stderr
    assert found(prefix(world), code=1)["unpublished"] == {"missing": [old]}


def test_a_certificate_is_compared_only_with_one_of_the_same_choice(world: World) -> None:
    read(world, *put(world, "a.csv"))
    first = found(prefix(world), "--certify", "--option", "pathGlobFilter=*.csv")
    time_ = ("--until", first["modified_before"])
    assert "compared_with" not in found(prefix(world), *time_)
    assert found(prefix(world), *time_, "--option", "pathglobfilter= *.csv ")["compared_with"]["same"]
    assert found("--certificate", str(first["certificate"]))["compared_with"]["same"]


def test_a_period_is_asked_about(world: World) -> None:
    hours = [put(world, f"at {hour}", at=OLD + timedelta(hours=hour))[0] for hour in range(5)]
    read(world, *hours[:3])
    told = found(prefix(world), "--since", "2026-11-20T01:00Z", "--until", "2026-11-20T03:00Z")
    assert (counts(told), told["outside_of_the_period"]) == ({"published": 2}, 3)
    assert (told["modified_since"], told["modified_before"]) == ("2026-11-20T01:00:00Z", "2026-11-20T03:00:00Z")
    put(world, "young", at=datetime.now(timezone.utc))
    assert counts(found(prefix(world), code=1)) == {"published": 3, "missing": 2}
    assert counts(found(prefix(world), "--grace", "0s", code=1)) == {"published": 3, "missing": 3}


def test_of_no_objects_nothing_is_certified_and_the_grace_is_named(world: World) -> None:
    read(world, *put(world, "young", at=datetime.now(timezone.utc)))
    told = found(prefix(world), "--certify", code=1)
    assert (told["verdict"], told["objects"], told["outside_of_the_period"], told["certificate"]) == (
        *("empty", 0, 1),
        None,
    )
    text = run(prefix(world), "--certify", code=1).stderr
    assert "No object under" in text
    assert "and 1 outside of that time. There was nothing to compare" in text
    assert "--grace" in text
    assert certificates(world) == []
    assert found(prefix(world), "--grace", "0s")["verdict"] == "complete"


@pytest.mark.parametrize("publishes", [True, False])
def test_at_most_once_a_batch_that_was_given_up_is_told_apart(world: World, publishes: bool) -> None:
    """With the cuesqueue sink, and with another one, which may have taken its rows."""
    lost, read_later = put(world, "a", "b"), put(world, "c")
    world.publish(*lost)
    once: dict[str, Any] = {"deliverySemantics": "at-most-once"}
    with world.loop(**once, publishes=publishes) as loop:
        loop.work = _die
        with pytest.raises(RuntimeError, match="dies"):
            loop.batch()
    assert counts(found(prefix(world), code=1)) == {"waiting": 2, "missing": 1}
    world.publish(*read_later)
    with world.loop(**once, publishes=publishes) as loop:
        until(lambda: _done(world) == 1, patiently(loop))
    told = found(prefix(world), code=1)
    assert counts(told) == {"published": 1, "given_up": 2}
    assert told["unpublished"] == {"given_up": sorted(lost)}
    assert "1 are published, 2 given up (their batch was begun" in told["says"]


def _done(world: World) -> int:
    with world.store() as store:
        return sum(row["state"] == "done" for row in rows(store, "files_state"))


def _die() -> None:
    raise RuntimeError("it dies in its batch")


def test_what_changes_between_two_runs_is_said(world: World) -> None:
    uris = put(world, "a", "b", "c")
    read(world, *uris)
    first = found(prefix(world), "--certify")
    put(world, "a", body=b'{"id": 12}\n')
    put(world, "b", at=OLD + timedelta(minutes=1))
    (world.folder / "in" / "c").unlink()
    second = found("--certificate", str(first["certificate"]), code=1)
    assert second["compared_with"]["counts"] == {"objects": [3, 2], "published": [3, 1], "changed": [0, 1]}
    assert second["compared_with"]["appeared"] == {"changed": [uris[0]]}
    assert "published in another version than there is now" in second["says"]


def test_what_was_empty_when_it_was_read_is_announced_and_read_and_what_is_published_is_only_named(
    world: World,
) -> None:
    empty, full = [*put(world, "empty", body=b""), *put(world, "full")]
    read(world, empty, full)
    with world.store() as store:  # this reader reads nothing, and takes each object for one of 10 bytes
        zero = shards.update().where(shards.c.shard_id == empty).values(size=0)
        store.database.write(lambda transaction: transaction.execute(zero))
    put(world, "empty", body=b'{"id": 1}\n')
    put(world, "full", body=b'{"id": 12}\n')
    sent = found(prefix(world), "--send", world.queue_url, code=1)
    assert (counts(sent), sent["announced"]) == ({"changed": 2}, 1)
    assert "cuesqueue shards forget" in run(prefix(world), code=1).output
    read(world)
    again = found(prefix(world), code=1)
    assert (counts(again), again["unpublished"]) == ({"published": 1, "changed": 1}, {"changed": [full]})


def test_what_is_waiting_or_quarantined_is_not_complete_until_it_is_reopened_and_read(world: World) -> None:
    bad, late = put(world, "bad", "late")
    world.publish(bad)
    with world.loop() as loop:
        loop.bad[bad] = "corrupt-object"
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert counts(found(prefix(world), "--until", "2026-11-21", code=1)) == {"quarantined": 1, "missing": 1}
    world.publish(late)
    with world.loop() as loop:
        loop.bad[bad] = "corrupt-object"
        until(lambda: world.depth() == EMPTY, patiently(loop))
    first = found(prefix(world), "--certify", code=1)
    assert counts(first) == {"quarantined": 1, "published": 1}
    assert first["unpublished"] == {"quarantined": [bad]}
    reopened = CliRunner().invoke(app, ["shards", "reopen", bad])
    assert reopened.exit_code == 0, reopened.output
    again = found("--certificate", str(first["certificate"]), code=1)
    assert counts(again) == {"waiting": 1, "published": 1}
    assert (again["compared_with"]["appeared"], again["compared_with"]["gone"]) == (
        {"waiting": [bad]},
        {"quarantined": [bad]},
    )
    with world.loop() as loop:
        until(lambda: counts(found_any(world)) == {"published": 2}, patiently(loop))
    assert counts(found("--certificate", str(first["certificate"]))) == {"published": 2}


def found_any(world: World) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["reconcile", prefix(world), "--json"])
    return dict(json.loads(told.stdout)["prefixes"][0])


def test_what_the_store_has_forgotten_is_beyond_memory_and_nobody_says_complete(world: World) -> None:
    read(world, *put(world, "a", "b"))
    put(world, "later", at=OLD + timedelta(hours=5))
    with world.store() as store:
        later = datetime.now(timezone.utc) + timedelta(days=60)  # the reader remembers for 30 days
        assert store.prune(RetentionPolicy(timedelta(days=7)), later).shards == 2
    with world.store() as store, store.database.engine.begin() as connection:
        connection.execute(sources.delete())
        at = round((OLD + timedelta(hours=1)).timestamp() * 1e6)
        connection.execute(sources.insert().values(source="files", forgotten_before=at))
    assert counts(found(prefix(world), code=1)) == {"beyond_memory": 2, "missing": 1}
    told = found(prefix(world), "--until", "2026-11-20T02:00Z", "--certify", code=1)
    assert (told["verdict"], counts(told)) == ("unknown", {"beyond_memory": 2})
    assert "Nothing is known to be missing" in told["says"]
    assert [row["verdict"] for row in certificates(world)] == ["unknown"]
    assert world.depth() == EMPTY


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_bucket_whose_clock_is_an_hour_off_is_compared_by_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    real = local.LocalBucket.page

    def page(bucket: Any, *given: Any, **more: Any) -> Page:
        shown = real(bucket, *given, **more)
        objects = [one._replace(modified=one.modified + ahead) for one in shown.objects]
        return Page(objects, shown.cursor, shown.now + ahead)

    uris = put(world, "a", "b", at=datetime.now(timezone.utc) - timedelta(seconds=30))
    read(world, *uris)
    put(world, "young", at=datetime.now(timezone.utc) - timedelta(seconds=20))
    monkeypatch.setattr(local.LocalBucket, "page", page)
    assert counts(found(prefix(world), "--grace", "1s", code=1)) == {"published": 2, "missing": 1}
    assert counts(found(prefix(world), "--grace", "25s")) == {"published": 2}


def test_a_listing_that_fails_in_the_middle_certifies_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read(world, *put(world, "a"))
    put(world, *(f"b{i}" for i in range(9)))
    monkeypatch.setattr(local, "PAGE", 3)
    real = local.LocalBucket.page
    tries: list[str] = []

    def page(bucket: Any, prefix: str, cursor: str | None = None, **more: Any) -> Page:
        if cursor is not None and cursor.endswith("b4"):
            tries.append(cursor)
            raise ObjectStoreError("the store is away")
        return real(bucket, prefix, cursor, **more)

    monkeypatch.setattr(local.LocalBucket, "page", page)
    monkeypatch.setattr(reconciling, "_WAIT", tenacity.wait_none())
    told = run(prefix(world), "--certify", "--send", world.queue_url, code=1)
    assert "the store is away" in told.stderr
    assert "were announced before this" in told.stderr
    assert told.stdout == ""
    assert certificates(world) == []
    assert len(tries) == 5
    monkeypatch.undo()
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    read(world)
    assert found(prefix(world), "--certify", "--send", world.queue_url, code=1)["announced"] == 4
    read(world)
    assert counts(found(prefix(world), "--certify")) == {"published": 10}


def test_a_page_that_fails_once_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read(world, *put(world, "a"))
    real = local.LocalBucket.page
    failures = [ObjectStoreError("503")]

    def page(bucket: Any, *given: Any, **more: Any) -> Page:
        if failures:
            raise failures.pop()
        return real(bucket, *given, **more)

    monkeypatch.setattr(local.LocalBucket, "page", page)
    monkeypatch.setattr(reconciling, "_WAIT", tenacity.wait_none())
    assert counts(found(prefix(world))) == {"published": 1}


def test_several_pages_and_prefixes_are_compared_each_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PAGE", 7)
    uris = put(world, *(f"one/{i:02}" for i in range(20)), *(f"two/{i:02}" for i in range(15)))
    read(world, *uris[:30])
    told = json.loads(run(f"{prefix(world)}one/", f"{prefix(world)}two/", "--certify", "--json", code=1).stdout)
    assert [counts(one) for one in told["prefixes"]] == [{"published": 20}, {"published": 10, "missing": 5}]
    assert [row["verdict"] for row in certificates(world)] == ["complete", "incomplete"]


def test_every_unpublished_object_is_written_into_a_file(world: World, tmp_path: Path) -> None:
    known, lost = put(world, "a", "lost")
    read(world, known)
    run(prefix(world), "--list", str(tmp_path / "list.jsonl"), code=1)
    [line] = (tmp_path / "list.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "uri": lost,
        "category": "missing",
        "size": 10,
        "etag": None,
        "last_modified": "2026-11-20T00:00:00Z",
        "pipeline": None,
    }
    assert run(prefix(world), "--list", "-", "--json", code=1).stdout.splitlines()[0] == line


def test_wrong_use_is_said_and_compares_nothing(world: World) -> None:
    put(world, "a")
    read(world, *put(world, "a"))
    for arguments, problem in (
        ((), "nothing is named; write what to compare"),
        (("not-a-uri",), "write scheme://bucket/"),
        ((prefix(world), "--source", "fiels"), "has no source 'fiels'; it has: files"),
        ((prefix(world), "--since", "yesterday"), "'--since': 'yesterday' is not a time"),
        ((prefix(world), "--until", "2099-01-01"), "up to which the bucket is known"),
        ((prefix(world), "--since", "2026-01-02", "--until", "2026-01-01"), "is not before"),
        ((prefix(world), "--grace", "5"), "has no unit"),
        ((prefix(world), "--option", "pathGlobFilter"), "write it as NAME=VALUE"),
        ((prefix(world), "--option", "pathGlobFiltr=x"), "did you mean 'pathGlobFilter'?"),
        ((prefix(world), "--option", "allowedPrefixes=s3://else/"), "begins with none of the allowedPrefixes"),
        ((prefix(world), f"{prefix(world)}sub/"), "would be counted twice"),
        ((prefix(world), "--certificate", "1"), "leave out PREFIX"),
        (("--certificate", "7"), "has no certificate 7"),
        ((prefix(world), "--inventory", "not a uri"), "no URI begins with"),
    ):
        assert problem in run(*arguments, code=2).stderr, arguments
    for arguments, problem in (
        ((f"{prefix(world)}no-such-folder/",), "missing-object"),
        ((prefix(world), "--inventory", f"{prefix(world)}none/manifest.json"), "missing-object"),
    ):
        assert problem in run(*arguments, code=1).stderr, arguments


def test_no_secret_is_in_what_it_says(world: World) -> None:
    put(world, "a")
    read(world, *put(world, "a"))
    queue = f"https://me:{SECRET}@127.0.0.1:1/queue"
    given = ("--option", f"s3.secretAccessKey={SECRET}", "--option", "s3.accessKeyId=key")
    for arguments in (
        ("s3://no-such-bucket/x/", *given, "--endpoint-url", f"http://u:{SECRET}@127.0.0.1:1"),
        (prefix(world), *given, "--send", queue),
        (prefix(world), *given, "--certify"),
        (prefix(world), "--option", f"azure.accessKey={SECRET}"),
    ):
        told = CliRunner().invoke(app, ["reconcile", *arguments, "--grace", "0s"])
        assert SECRET not in told.output + told.stderr, arguments
    assert SECRET not in json.dumps([{k: str(v) for k, v in row.items()} for row in certificates(world)])


def test_a_name_by_which_another_object_would_be_read_is_missing_unless_it_is_left_out(world: World) -> None:
    """Its announcement goes to the error table, and no listing opens it."""
    read(world, "s3://landing/in/a", allowedPrefixes="s3://landing/in/")

    def put(name: str, body: bytes) -> None:
        (world.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (world.folder / name).write_bytes(body)

    manifest = f"file://{world.folder}/{write_inventory(put, [Entry('in/a'), Entry('in/../b')])}"
    where = ("s3://landing/in/", "--inventory", manifest)
    assert counts(found(*where, "--option", "pathGlobFilter=a")) == {"published": 1, "left_out": 1}
    told = found(*where, "--send", world.queue_url, code=1)
    assert (counts(told), told["unpublished"]) == (
        {"published": 1, "missing": 1},
        {"missing": ["s3://landing/in/../b"]},
    )
    read(world, allowedPrefixes="s3://landing/in/")
    with world.store() as store:
        assert [row["cause"] for row in rows(store, "errors")] == ["malformed-message"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_inventory_is_compared_up_to_its_time_and_agrees_with_a_listing(
    world: World, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    keys = [f"in/{i:03} ü+" for i in range(250)]
    read(world, *(f"s3://landing/{key}" for key in keys[:240]), "s3://landing/in/young")
    young = Entry("in/young", modified=CREATED - timedelta(minutes=9))
    entries = [*(Entry(key) for key in keys), Entry("out/other"), Entry("in/_hidden"), young]

    def put(name: str, body: bytes) -> None:
        path = world.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    manifest = f"file://{world.folder}/{write_inventory(put, entries, format=format, per_file=100)}"
    where = ("s3://landing/in/", "--inventory", manifest)
    told = found(*where, "--certify", code=1)
    assert counts(told) == {"published": 240, "missing": 10, "left_out": 1}
    assert (told["evidence"], told["outside_of_the_period"]) == (manifest, 1)
    assert told["modified_before"] == "2026-11-20T23:50:00Z"
    assert "is after 2026-11-21T00:00:00Z" in run(*where, "--until", "2026-11-21T00:01Z", code=2).stderr
    assert "name prefixes of that bucket" in run("s3://other/", "--inventory", manifest, code=2).stderr
    listed = [ListedObject(f"s3://landing/{e.key}", 10, e.etag, e.modified) for e in reversed(entries)]
    monkeypatch.setattr(
        "queue_source.commands.reconcile.open_bucket", lambda prefix, storage: OneBucket(listed, prefix)
    )
    again = found("--certificate", str(told["certificate"]), code=1)
    assert (again["evidence"], again["digest"]) == ("listing", told["digest"])
    assert again["compared_with"]["same"]
    damaged = next((world.folder / "daily").rglob("2.*"))
    damaged.write_bytes(b"another")
    assert "corrupt-object" in run(*where, "--certify", "--send", world.queue_url, code=1).stderr
    assert len(certificates(world)) == 1


class OneBucket:
    """All objects in one page."""

    def __init__(self, listed: list[ListedObject], prefix: str) -> None:
        self._listed = [one for one in listed if one.uri.startswith(prefix)]

    def page(self, prefix: str, cursor: str | None = None, *, versions: bool = False) -> Page:
        return Page(self._listed, None, datetime.now(timezone.utc))

    def close(self) -> None:
        pass


@pytest.fixture
def bucket(ministack_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    s3, name = client(ministack_url, "s3"), new_name("bucket")
    s3.create_bucket(Bucket=name)
    yield s3, name
    s3.close()


def _s3(url: str) -> tuple[str, ...]:
    return ("--endpoint-url", url, "--option", "aws.region=us-east-1", "--grace", "0s")


def _complete(expected: int, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Times of S3 are whole seconds: what was written in this one is not before now."""
    for _ in range(50):
        told: dict[str, Any] = json.loads(CliRunner().invoke(app, ["reconcile", *arguments, "--json"]).stdout)
        if told["prefixes"][0]["outside_of_the_period"] == 0 and told["prefixes"][0]["objects"] == expected:
            break
        time.sleep(0.1)
    assert told["complete"] is (code == 0)
    return dict(told["prefixes"][0])


@pytest.mark.parametrize("overwrites", [False, True])
def test_on_s3_what_is_missing_is_announced_with_its_identity(
    world: World, bucket: tuple[Any, str], ministack_url: str, overwrites: bool
) -> None:
    s3, name = bucket
    if overwrites:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    keys = ["in/a b+c", "in/ü%20", "in/x" * 20, "in/_hidden", "in/folder/"]
    for key in keys:
        s3.put_object(Bucket=name, Key=key, Body=b"" if key.endswith("/") else BODY)
    where = (f"s3://{name}/in/", *_s3(ministack_url), "--source", "files")
    options: dict[str, Any] = {"allowedPrefixes": f"s3://{name}/in/", "allowOverwrites": str(overwrites).lower()}
    where = (*where, "--option", f"allowOverwrites={overwrites}")
    with world.loop(**options) as loop:
        loop.batch()  # the source is known
    told = _complete(3, *where, "--send", world.queue_url, code=1)
    assert (counts(told), told["announced"]) == ({"missing": 3, "left_out": 2}, 3)
    read(world, **options)
    first = _complete(3, *where, "--certify")
    assert counts(first) == {"published": 3, "left_out": 2}
    s3.put_object(Bucket=name, Key="in/a b+c", Body=b'{"id": 2}\n')
    second = _complete(3, *where, code=1)
    assert counts(second) == {"published": 2, "missing" if overwrites else "changed": 1, "left_out": 2}
    if overwrites:
        run(*where, "--send", world.queue_url, code=1)
        read(world, **options)
        assert counts(found(*where)) == {"published": 3, "left_out": 2}


def test_a_missing_bucket_is_an_error(world: World, bucket: tuple[Any, str], ministack_url: str) -> None:
    with world.loop() as loop:
        loop.batch()
    told = run("s3://no-such-bucket-at-all/", *_s3(ministack_url), "--certify", code=1)
    assert "no-such-bucket-at-all" in told.stderr
    assert certificates(world) == []


def test_what_cannot_be_listed_is_told_and_never_certified(world: World) -> None:
    read(world, *put(world, "a"))
    (Path(os.fsdecode(os.fsencode(world.folder / "in") + b"/\xff.json"))).write_bytes(BODY)
    one = found(prefix(world), "--certify", code=1)
    assert (one["verdict"], one["not_listed"], one["certificate"]) == ("unlisted", 1, None)
    assert "1 folders or names could not be listed" in one["says"]
    assert certificates(world) == []
