"""Contract: files that are joined change no view, of now or of the past, and no reader that has begun before."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from shard_store.errors import StoreConfigurationError
from shard_store.model import Split, shard_key, split_key
from shard_store.operators import views
from shard_store.operators.views import AsOf, DataFiles
from shard_store.shards.changes import Audit
from shard_store.sql.schema import metadata, splits
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import SERVERS, Pipeline, StoreBackend

SMALL = 100
Rows = Mapping[str, frozenset[str]]


class World:
    """A store whose file `/a+b` has the rows of the files `/a` and `/b`: so what a view has is what their names say."""

    def __init__(self, backend: StoreBackend) -> None:
        self.backend, self.store = backend, backend.open()
        self.pipelines: dict[str, Pipeline] = {}

    def publish(self, *names: str, pipeline: str = "p") -> str:
        us = self.pipelines.get(pipeline) or self.pipelines.setdefault(pipeline, Pipeline.start(self.store, pipeline))
        plan = us.planned(*names)
        us.publish(plan, *(Split(f"/{name}", 1, 1) for name in names))
        us.confirm()
        return plan.identity.delivery_hash

    def now(self) -> datetime:
        return datetime.fromtimestamp(round(self.backend.clock.now, 6), timezone.utc)

    def small(self, pipeline: str = "p") -> list[str]:
        return [file.path[1:] for file in self.store.small_files(pipeline, SMALL)]

    def join(self, *names: str, pipeline: str = "p") -> bool:
        """Put the file `/a+b` in the place of `/a` and `/b`."""
        files = {file.path[1:]: file for file in self.store.small_files(pipeline, SMALL)}
        joined = Split("/" + "+".join(names), sum(files[name].rows for name in names), len(names))
        return self.store.replace_files(pipeline, [files[name] for name in names], joined)

    def shown(self, files: DataFiles | None = None, **as_of: Any) -> list[str]:
        """The original files whose rows are shown, each as often as they are."""
        paths = self.store.paths(files or self.store.published_files(as_of=AsOf(**as_of)))
        return sorted(name for path in paths for name in path[1:].split("+"))

    def forget(self, age: timedelta = timedelta(0)) -> None:
        before = self.store.database_time() + 1 - age // timedelta(microseconds=1)
        while self.store.forget_replaced(before):
            pass


@pytest.fixture
def world(backend: StoreBackend) -> World:
    return World(backend)


def moments(world: World) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Files of two pipelines, some joined twice: ways to ask for each past, and what was there."""
    asked: dict[str, dict[str, Any]] = {}
    was: dict[str, list[str]] = {}
    so_far: list[str] = []
    steps: list[Any] = [
        *(("a", "p"), ("b", "q"), ("c", "p"), ["a", "c"], ("d", "p"), ("e", "p"), ["a+c", "d"], ("f", "q")),
        *(("g", "p"), ["a+c+d", "e", "g"], ("h", "p")),
    ]
    for number, step in enumerate(steps):
        world.backend.clock.advance(60)
        if isinstance(step, list):
            assert world.join(*step)
        else:
            name, pipeline = step
            asked[f"attempt of {name}"] = {"attempt": world.publish(name, pipeline=pipeline)}
            so_far.append(name)
            was[f"attempt of {name}"] = sorted(so_far)
        asked[f"after {number}"] = {"time": world.now()}
        was[f"after {number}"] = sorted(so_far)
    return asked, was


def test_each_past_shows_the_same_rows_after_files_were_joined_and_joined_again(world: World) -> None:
    asked, was = moments(world)
    assert {name: world.shown(**how) for name, how in asked.items()} == was
    assert world.shown() == list("abcdefgh")
    assert world.small() == ["a+c+d+e+g", "h"]
    paths = [row[0] for page in world.store.pages("splits") for row in page]
    assert paths == ["/b", "/f", "/a+c+d+e+g", "/h"]


def test_after_vacuum_a_past_is_the_same_or_refused_and_never_another(world: World) -> None:
    asked, was = moments(world)
    world.forget()
    refused = set()
    for name, how in asked.items():
        try:
            past = world.shown(**how)
        except StoreConfigurationError:
            refused.add(name)
        else:
            assert past == was[name]
    assert refused >= {"after 0", "attempt of a", "attempt of g", "after 8"}
    assert refused.isdisjoint({"after 9", "after 10", "attempt of h"})
    assert world.shown() == list("abcdefgh")
    world.publish("i")
    assert world.shown(time=world.now()) == list("abcdefghi")


def test_what_vacuum_has_not_come_to_can_be_read(world: World) -> None:
    asked, was = moments(world)
    world.forget(timedelta(minutes=3))  # the last files to be joined are kept, and the file that was joined before
    kept = {name: how for name, how in asked.items() if name in ("after 6", "after 8", "attempt of g", "after 10")}
    assert {name: world.shown(**how) for name, how in kept.items()} == {name: was[name] for name in kept}
    with pytest.raises(StoreConfigurationError, match=r"joined by `cuesqueue compact`.* or was at 20.* or later"):
        world.shown(**asked["after 4"])


def test_an_attempt_without_files_of_its_own_shows_what_was_there_or_is_refused(world: World) -> None:
    world.publish("a")
    world.backend.clock.advance(60)
    world.publish("b")
    world.backend.clock.advance(60)
    us = world.pipelines["p"]
    empty = us.planned("nothing")
    us.publish(empty)
    us.confirm()
    world.backend.clock.advance(60)
    world.join("a", "b")
    assert world.shown(attempt=empty.identity.delivery_hash) == ["a", "b"]
    world.forget()
    with pytest.raises(StoreConfigurationError, match="joined by"):
        world.shown(attempt=empty.identity.delivery_hash)
    world.backend.clock.advance(60)
    later = us.planned("nothing either")
    us.publish(later)
    assert world.shown(attempt=later.identity.delivery_hash) == ["a", "b"]


def test_an_attempt_of_whose_files_some_were_joined_is_refused_once_these_are_gone(world: World) -> None:
    first = world.publish("a", "b")
    world.backend.clock.advance(60)
    world.publish("c")
    world.join("b", "c")
    assert world.shown(attempt=first) == ["a", "b"]
    world.forget()
    with pytest.raises(StoreConfigurationError, match="joined by"):
        world.shown(attempt=first)


@pytest.mark.parametrize("by", ["now", "time", "attempt"])
def test_a_reader_that_has_begun_lists_the_same_files_whatever_is_joined_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    digest = ""
    for name in "abcdef":
        world.backend.clock.advance(60)
        digest = world.publish(name)
    world.join("a", "b")
    chosen = {"now": AsOf(), "time": AsOf(world.now() + timedelta(days=1)), "attempt": AsOf(attempt=digest)}[by]
    files = world.store.published_files(as_of=chosen)
    parts = world.store.data_files(views.OPENING * 2, as_of=chosen)
    listed = world.store.paths(files)
    pages = world.store.pages("splits", as_of=chosen)
    beginning = [next(listed), *(row[0] for row in next(pages))]
    world.backend.clock.advance(60)
    world.join("c", "d", "e")
    world.publish("g")
    world.join("a+b", "f", "g")
    was = sorted("abcdef")
    assert sorted(name for path in [beginning[0], *listed] for name in path[1:].split("+")) == was
    rest_of_view = [row[0] for page in pages for row in page]
    assert sorted(name for path in [*beginning[1:], *rest_of_view] for name in path[1:].split("+")) == was
    assert sorted(name for part in parts for name in world.shown(part)) == was
    world.forget()
    with pytest.raises(StoreConfigurationError, match="joined by"):
        world.shown(files)
    with pytest.raises(StoreConfigurationError, match="joined by"):
        [world.shown(part) for part in parts]


def test_only_what_is_there_and_current_is_replaced_and_a_repeated_commit_is_one(world: World) -> None:
    world.publish("a", "b", "c", "d")
    files = {file.path[1:]: file for file in world.store.small_files("p", SMALL)}
    for _ in range(2):  # as when the connection is lost at the commit
        assert world.store.replace_files("p", [files["a"], files["b"]], Split("/a+b", 2, 2))
    assert not world.store.replace_files("p", [files["b"], files["c"]], Split("/b+c", 2, 2))
    world.store.prune(RetentionPolicy(data=timedelta(days=1)), world.now() + timedelta(days=2))
    assert not world.store.replace_files("p", [files["c"], files["d"]], Split("/c+d", 2, 2))
    assert world.shown() == []


def test_a_joined_file_is_pruned_by_the_age_of_its_newest_rows_and_after_what_it_replaced(world: World) -> None:
    for name in "abc":
        world.publish(name)
        world.backend.clock.advance(86400)
    world.join("a", "b")

    def prune(days: int) -> list[str]:
        world.store.prune(RetentionPolicy(data=timedelta(days=days)), world.now())
        return world.shown()

    assert prune(3) == prune(2) == ["a", "b", "c"]
    (page,) = world.store.pages("splits", columns=["path", "published_at"])
    assert page[1] == ("/a+b", round((world.backend.clock.now - 2 * 86400) * 1_000_000))
    world.backend.clock.advance(1)
    assert prune(2) == ["c"]


def test_the_numbers_of_files_are_those_of_the_view_whatever_happens(world: World) -> None:
    def numbers() -> tuple[int | None, int | None]:
        (status,) = world.store.status(pipeline="p")
        return status.data_files, status.data_bytes

    world.publish("x", pipeline="q")
    world.pipelines["p"] = Pipeline.start(world.store)
    assert numbers() == (None, None)
    world.publish("a", "b", "c")
    assert numbers() == (3, 3)
    world.backend.clock.advance(86400)
    world.join("a", "b")
    world.publish("d")
    assert numbers() == (3, 4)
    world.store.prune(RetentionPolicy(data=timedelta(hours=1)), world.now())
    assert numbers() == (1, 1)
    world.store.retire(world.pipelines["p"].token)
    world.store.retire(world.pipelines["q"].token)
    assert world.store.reset(["s"], Audit.of_user("test"), message_uri="message:").files == 1
    assert (numbers(), world.shown()) == ((None, None), [])


def test_the_files_of_an_attempt_and_of_an_object_are_those_that_have_their_rows_alone(world: World) -> None:
    def known(name: str) -> tuple[Any, ...]:
        pages = world.store.pages("files_state", columns=["path", "split", "batch_splits"])
        (state,) = [row[1:] for page in pages for row in page if row[0] == name]
        return (*state, world.store.shard_story(shard_key("s", name)).attempts[-1].files)

    world.publish("a")
    world.publish("b", "c")
    assert known("a") == ("/a", 1, ("/a",))
    world.join("b", "c")
    assert known("b") == (None, 2, ("/b+c",))
    world.join("a", "b+c")
    assert known("a") == (None, 1, ())
    (page,) = world.store.pages("splits", columns=["path", "delivery_hash"])
    assert page == [("/a+b+c", None)]


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_publish_under_way_is_waited_for_and_one_that_comes_meanwhile_waits(backend: StoreBackend) -> None:
    world = World(backend)
    world.publish("a", "b")
    us, other = world.pipelines["p"], World(backend)
    plan = us.planned("c")
    with world.store.database.begin() as connection:
        us.publish(plan, Split("/c", 1, 1), connection=connection)
        joining = threading.Thread(target=other.join, args=("a", "b"))
        joining.start()
        joining.join(0.5)
        assert joining.is_alive()
        connection.commit()
    joining.join(30)
    us.confirm()
    world.publish("d")
    assert (world.shown(), world.small()) == (list("abcd"), ["c", "a+b", "d"])
    (status,) = world.store.status()
    assert (status.data_files, status.data_bytes, status.incarnation) == (3, 4, 1)


@pytest.mark.parametrize("backend", ["sqlite", *SERVERS], indirect=True)
def test_two_that_join_the_same_files_at_once_replace_each_once(backend: StoreBackend) -> None:
    world = World(backend)
    names = [f"f{number}" for number in range(60)]
    world.publish(*names)
    files = {file.path[1:]: file for file in world.store.small_files("p", SMALL)}

    def joined(size: int) -> Iterator[bool]:
        store = backend.open()
        for place in range(0, len(names), size):
            some = names[place : place + size]
            yield store.replace_files("p", [files[name] for name in some], Split("/" + "+".join(some), size, size))

    results: dict[int, list[bool]] = {}
    threads = [threading.Thread(target=lambda size=size: results.update({size: [*joined(size)]})) for size in (4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert world.shown() == sorted(names)
    assert any(results[4] + results[6])
    (status,) = world.store.status()
    assert status.data_files == len(world.small())


def test_a_clock_that_goes_back_changes_no_past(world: World) -> None:
    world.backend.clock.advance(1000)
    world.publish("a", "b", "c")
    before = world.now()
    world.backend.clock.advance(-500)
    world.join("a", "b")
    world.backend.clock.advance(-200)
    world.join("a+b", "c")
    assert world.shown(time=before) == list("abc")
    assert world.shown(time=before - timedelta(seconds=1)) == []
    assert world.shown() == list("abc")


def forgotten_by_reset(world: World) -> None:
    del world.pipelines["p"]
    world.backend.clock.advance(3600)
    world.store.reset(["s"], Audit.of_user("test"), message_uri="message:")


def forgotten_by_pruning(world: World) -> None:
    world.store.prune(RetentionPolicy(data=timedelta(days=1)), world.now() + timedelta(days=2))


def forgotten_by_vacuum(world: World) -> None:
    """The file with the highest id is one of those that were replaced, by a run that had written its own before."""
    with world.store.database.engine.begin() as connection:
        connection.execute(splits.update().values(replaced_by=99, replaced_at=0))
    world.forget()


FORGETTING = [forgotten_by_reset, forgotten_by_pruning, forgotten_by_vacuum]


@pytest.mark.parametrize("forget", FORGETTING)
def test_what_was_read_before_its_rows_were_forgotten_takes_the_place_of_nothing(world: World, forget: Any) -> None:
    """A new file had the id of one that compact was reading: its rows were replaced by old ones."""
    world.publish("a", "b")
    read_before = list(world.store.small_files("p", SMALL))
    forget(world)
    world.publish("c", "d")
    assert not world.store.replace_files("p", read_before, Split("/a+b", 2, 2))
    assert world.shown() == ["c", "d"]


@pytest.mark.parametrize("forget", FORGETTING)
def test_a_reader_that_has_begun_never_shows_what_was_published_after_its_files_were_forgotten(
    world: World, forget: Any
) -> None:
    digest = world.publish("a", "b")
    files = world.store.published_files()
    parts = world.store.data_files(1)
    forget(world)
    world.publish("c", "d")
    assert world.shown(files) == []
    assert [world.shown(part) for part in parts] == [[], []]
    with pytest.raises(StoreConfigurationError, match="has no attempt"):
        world.shown(attempt="0" * len(digest))


def test_a_store_that_was_put_back_gives_ids_again_and_still_nothing_is_replaced_by_another_file(world: World) -> None:
    world.publish("a", "b")
    read_before = list(world.store.small_files("p", SMALL))
    with world.store.database.engine.begin() as connection:  # as after a restore: other files have those ids
        for file in read_before:
            renamed = {"path": f"{file.path}-new", "name_key": split_key(f"{file.path}-new")}
            connection.execute(splits.update().where(splits.c.path == file.path).values(renamed))
    assert not world.store.replace_files("p", read_before, Split("/a+b", 2, 2))
    assert world.shown() == ["a-new", "b-new"]


@pytest.mark.parametrize("table", [table for table in metadata.sorted_tables if table.autoincrement_column is not None])
def test_an_id_that_the_database_counts_up_is_never_given_twice(backend: StoreBackend, table: sa.Table) -> None:
    store, (key,) = backend.open(), table.primary_key.columns
    given: list[int] = []
    for _ in range(3):
        values = {c.name: value_of(c) for c in table.columns if c is not key and not c.nullable}
        with store.database.engine.begin() as connection:
            given.extend(connection.execute(table.insert().values(values)).inserted_primary_key or ())
            connection.execute(table.delete())
    assert given == sorted(set(given))


def value_of(column: sa.Column[Any]) -> Any:
    if isinstance(column.type, sa.LargeBinary):
        return b"k" * 32
    return 1 if isinstance(column.type, sa.Integer) else "x"
