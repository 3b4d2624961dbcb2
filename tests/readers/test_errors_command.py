"""`cuesqueue errors` on a real store and real queues: what is repaired is published, and once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.announcements.contents import OBJECT_VERSION
from queue_source.commands import errors as commands
from queue_source.commands.main import app
from queue_source.errors import QueueError
from queue_source.messages import Received, kept_message
from queue_source.queues import open_queue
from queue_source.queues.base import send_possible
from shard_store.error_table import search
from shard_store.error_table.search import Criteria
from shard_store.model import LISTING, ErrorRecord, Plan, shard_key
from shard_store.sql.schema import errors as error_table
from shard_store.sql.schema import pipelines, shards
from support.coordinator_world import EMPTY, World, patiently, uris
from support.driver_loop import DriverLoop, published, states, until
from support.store_backends import rows


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    return world


def errors(*arguments: str, code: int = 0) -> dict[str, Any]:
    done: Result = CliRunner().invoke(app, ["errors", *arguments, "--json"])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def waiting(url: str) -> list[Received]:
    with open_queue(url) as queue:
        return queue.peek(1000)  # type: ignore[attr-defined, no-any-return]


def run_with(world: World, loop: DriverLoop, bad: dict[str, str], **more: Any) -> Plan:
    """One batch, in which shards have errors of these scopes; its split lists those that are good."""
    end = loop.latest(0)
    plan = loop.coordinator.plan(0, end)
    found = [
        ErrorRecord(
            scope, f"corrupt-{scope}", "why", r.content.shard_id, plan.identity.delivery_hash, r.start,
            r.content.queue, r.content.message_id, **more,
        )
        for r in plan.ranges if (scope := bad.get(r.content.shard_id))
    ]  # fmt: skip
    with world.store() as store:
        store.record_errors("files", "files", found)
        good = [r for r in plan.ranges if bad.get(r.content.shard_id) != "object"]
    loop._deliver(Plan(plan.identity, tuple(good)), 0)
    loop._write("offsets", 0, {"start": 0, "end": end})
    loop._write("commits", 0, {})
    loop._log[0], loop._done[0], loop._start = {"start": 0, "end": end}, {}, end
    loop.batch()
    return plan


def test_a_quarantined_object_is_read_again_once_after_its_requeue(world: World) -> None:
    world.publish(*uris(3))
    with world.loop() as loop:
        run_with(world, loop, {uris(3)[0]: "object"})
        assert world.depth() == EMPTY
        assert errors("requeue", "--match", "s3://bucket/*", "--dry-run") == {
            "errors": 1, "messages": 1, "refused": {}, "dry_run": True,
        }  # fmt: skip
        assert world.depth() == EMPTY
        assert errors("requeue", "--scope", "object")["messages"] == 1
        assert errors("requeue", "--scope", "object")["errors"] == 0, "what was requeued is not requeued again"
        assert errors("requeue", "--state", "requeued")["messages"] == 1, "unless it is named, which doubles nothing"
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert states(store) == {"done": 3}
            assert published(store) == dict.fromkeys(uris(3), 1)
    refused = errors("requeue", "--all", "--state", "requeued", code=1)["refused"]
    assert list(refused.values()) == ["its object is done by now: a new reading would double its rows"]


def test_a_local_file_is_announced_again_by_the_name_that_it_has(world: World) -> None:
    """In the URI of a file percent-encoded characters are decoded, and these are no such characters."""
    folder = world.folder / "in"
    folder.mkdir()
    (folder / "a%20b.json").write_bytes(b"{}")
    world.publish(f"{folder}/a%20b.json")
    with world.loop(allowedPrefixes=f"file://{folder}/") as loop:
        run_with(world, loop, {f"file://{folder}/a%20b.json": "object"})
        assert errors("requeue", "--all")["messages"] == 1
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert published(store) == {f"file://{folder}/a%20b.json": 1}


def test_an_object_whose_id_holds_a_version_is_announced_with_it(world: World) -> None:
    record = {"eventName": "ObjectCreated:Put", "eventSource": "aws:s3",
              "s3": {"bucket": {"name": "bucket"}, "object": {"key": "k", "size": 1, "versionId": "v1"}}}  # fmt: skip
    world.publish(json.dumps({"Records": [record]}))
    with world.loop(allowOverwrites="true") as loop:
        run_with(world, loop, {"s3://bucket/k#v1": "object"})
        errors("requeue", "--all")
        [message] = waiting(world.queue_url)
        assert message.body == b"s3://bucket/k"
        assert message.headers == {OBJECT_VERSION: "v1", "Object-Size": "1"}, "which a later reset would forget"
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert published(store) == {"s3://bucket/k#v1": 1}


def test_a_bad_message_goes_back_as_it_came(world: World) -> None:
    with open_queue(world.queue_url) as queue:
        queue.publish([b"\xff no notification"], tag="a.b", headers={"trace": "7"}, group="g")
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert errors("requeue", "--scope", "message")["messages"] == 1
    [message] = waiting(world.queue_url)
    assert (message.body, message.tag, message.headers, message.group) == (
        b"\xff no notification", "a.b", {"trace": "7"}, "g",
    )  # fmt: skip
    other = f"sql+sqlite:///{world.folder}/queue.db?queue=other"
    assert errors("requeue", "--state", "requeued", "--to", other, "--tag", "x")["messages"] == 1
    assert [m.tag for m in waiting(other)] == ["x"]
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    told = sorted(error["state"] for error in errors("list")["errors"])
    assert told == ["recorded", "requeued"], "the copy is a message of its own"


def test_a_record_of_a_published_object_is_refused_without_another_queue(world: World) -> None:
    world.publish(*uris(1))
    with world.loop() as loop:
        run_with(world, loop, {uris(1)[0]: "record"}, input=b"{bad}")
    [why] = errors("requeue", "--all", code=1)["refused"].values()
    assert "whose other rows are published" in why
    assert "--to" in why
    repairs = f"sql+sqlite:///{world.folder}/queue.db?queue=repairs"
    assert errors("requeue", "--all", "--to", repairs)["messages"] == 1
    assert [m.body for m in waiting(repairs)] == [b"{bad}"]


def test_a_bad_record_of_a_message_goes_back_to_its_queue_and_a_rejected_row_does_not(world: World) -> None:
    with world.store() as store:
        for scope in ("record", "row"):
            one = ErrorRecord(scope, scope, "", f"{world.queue_url}#id#1", queue=world.queue_url, message_id="id")
            store.record_errors("files", "files", [replace(one, input=scope.encode())])
    with open_queue(world.queue_url) as queue:
        queue.create()  # type: ignore[attr-defined]
    done = errors("requeue", "--all", code=1)
    assert (done["messages"], len(done["refused"])) == (1, 1)
    assert [m.body for m in waiting(world.queue_url)] == [b"record"]


def test_a_message_that_was_bad_as_a_whole_goes_back_as_another_shard(world: World) -> None:
    with world.store() as store:
        kept = kept_message(b"\xff", "a.b", (("trace", "7"),), "g")
        one = ErrorRecord(
            "object", "corrupt-object", "", f"{world.queue_url}#id", queue=world.queue_url, message_id="id"
        )
        store.record_errors("files", "files", [replace(one, **kept)])
    with open_queue(world.queue_url) as queue:
        queue.create()  # type: ignore[attr-defined]
    assert errors("requeue", "--all")["messages"] == 1
    [message] = waiting(world.queue_url)
    assert (message.body, message.tag, message.group) == (b"\xff", "a.b", "g")
    assert message.headers == {"trace": "7", "Republish-Count": "1"}


def test_what_the_table_does_not_hold_whole_and_queues_that_are_not_there_are_refused(world: World) -> None:
    with world.store() as store:
        cut = ErrorRecord("message", "c", "", "cut", queue=world.queue_url, input=b"ab", input_size=9)
        hidden = ErrorRecord("message", "c", "", "hidden", queue="amqp://u:***@h/v?source=s", input=b"ab")
        store.record_errors("files", "files", [cut, hidden])
        refused = errors("requeue", "--all", code=1)["refused"]
        assert sorted(why.split(";")[0] for why in refused.values()) == [
            "the error table keeps 2 of its 9 bytes",
            "the password of its queue amqp://u:***@h/v?source=s is not in the store",
        ]
        missing = ErrorRecord("message", "c", "", "x", queue="sql+sqlite:///absent.db?queue=q", input=b"ab")
        store.record_errors("files", "files", [missing])
    done = CliRunner().invoke(app, ["errors", "requeue", "--match", "x"])
    assert (done.exit_code, "no file 'absent.db'" in done.stderr) == (2, True)


def test_errors_are_listed_shown_and_dropped(world: World) -> None:
    with world.store() as store:
        records = [ErrorRecord("message", "c", "why", f"m{i}", queue="q", input=b"text") for i in range(5)]
        store.record_errors("files", "files", records)
    listed = errors("list", "--limit", "3")
    assert (len(listed["errors"]), listed["more"]) == (3, True)
    assert len(errors("list", "--older-than", "1h")["errors"]) == 0
    assert len(errors("list", "--since", "1h")["errors"]) == 5
    table = CliRunner().invoke(app, ["errors", "list", "--limit", "3"], env={"COLUMNS": "200"})
    assert listed["errors"][0]["error_id"][:12] in table.stdout
    assert "there are more" in table.stderr
    shown = errors("show", listed["errors"][0]["error_id"][:10])
    assert (shown["input"], shown["input_bytes"], shown["state"], shown["headers"]) == ("text", 4, "recorded", {})
    table = CliRunner().invoke(app, ["errors", "show", listed["errors"][0]["error_id"]], env={"COLUMNS": "200"})
    assert "recorded" in table.stdout
    assert "unknown" not in table.stdout, "what has not happened is not shown as unknown"
    assert errors("drop", "--match", "m[0-2]", "--dry-run") == {"errors": 3, "pending": 0, "dry_run": True}
    assert errors("drop", "--match", "m[0-2]")["errors"] == 3
    assert {error["message_id"] or error["queue"] for error in errors("list")["errors"]} == {"q"}
    with world.store() as store:
        assert sorted(row["subject"] for row in rows(store, "errors")) == ["m3", "m4"]


def test_errors_are_listed_by_cause_one_line_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    why = "there is no such object in the bucket, which is often so when it was deleted before it was read"
    long_name = f"s3://bucket/{'folder/' * 20}part-1.json"
    with world.store() as store:
        missing = [ErrorRecord("object", "missing-object", why, name) for name in ("s3://bucket/a", long_name)]
        store.record_errors("files", "files", [ErrorRecord("message", "malformed-message", "no JSON", "m1"), *missing])
    done = CliRunner().invoke(app, ["errors", "list"])
    lines = done.stdout.splitlines()
    assert lines[0] == "missing-object (object): 2 errors"
    assert lines[1].startswith("  there is no such object in the bucket")
    assert {line.rpartition("/")[2] for line in lines[2:4]} == {"a", "part-1.json"}
    assert lines[4:6] == ["malformed-message (message): 1 error", "  no JSON"]
    assert len(lines) == 7
    assert max(map(len, lines)) <= 80
    long = CliRunner().invoke(app, ["errors", "list", "--long", "--cause", "missing-object"]).stdout
    assert f"  {long_name}\n" in long, "in one piece, to be copied"
    assert "was deleted\n  before it was read" in long


def test_each_text_of_a_cause_stands_above_the_errors_that_have_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = {"garbage": "not JSON", "cut.gz": "gzip: the stream is\ncut off", "short.gz": "gzip: the stream is cut off"}
    with world.store() as store:
        bad = [ErrorRecord("object", "corrupt-object", why, name) for name, why in texts.items()]
        store.record_errors("files", "files", bad)
    lines = [line.split()[-1] for line in CliRunner().invoke(app, ["errors", "list"]).stdout.splitlines()]
    assert [lines[0], lines[1], *sorted(lines[2:4]), *lines[4:]] == [
        *("errors", "off", "cut.gz", "short.gz"),
        *("JSON", "garbage"),
    ]


def test_a_requeue_of_nothing_says_why(world: World) -> None:
    with world.store() as store:
        store.record_errors("files", "files", [ErrorRecord("message", "malformed-message", "why", "m")])
    requeue = ["errors", "requeue", "--scope"]
    assert CliRunner().invoke(app, [*requeue, "object"]).stderr == "no error is like these\n"
    with world.store() as store:
        store.mark_requeued([bytes.fromhex(row["error_id"]) for row in rows(store, "errors")])
    said = CliRunner().invoke(app, [*requeue, "message"]).stderr
    assert said == "1 error like these had been requeued before; --state requeued does it once more\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["requeue"], "write --all for everything"),
        (["drop"], "write --all for everything"),
        (["list", "xyz"], "is not an id"),
        (["list", "--older-than", "5"], "has no unit"),
        (["list", "--match", "[a"], "not closed"),
        (["show", "abcd"], "has no error whose id begins with abcd"),
        (["list", "--scope", "mess"], "Invalid value for '--scope'"),
    ],
)
def test_wrong_use_is_told_and_ends_with_2(world: World, arguments: list[str], says: str) -> None:
    world.store().__enter__().close()
    done = CliRunner().invoke(app, ["errors", *arguments])
    assert done.exit_code == 2
    assert says in done.stderr


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202etxt.exe"


def record_hostile(world: World, queue: str) -> None:
    """An error as whoever may write to the store, or send a message, could have it."""
    record = ErrorRecord("message", "malformed-message", HOSTILE, HOSTILE, queue=queue, message_id="m",
                         **kept_message(b"\x1b[2Jbody", HOSTILE, (), None))  # fmt: skip
    with world.store() as store:
        store.record_errors("files", "files", [record])


@pytest.mark.parametrize("arguments", [("list",), ("show", "m")])
def test_errors_give_no_orders_to_the_terminal(world: World, arguments: tuple[str, ...]) -> None:
    record_hostile(world, world.queue_url)
    if arguments[0] == "show":
        with world.store() as store:
            arguments = ("show", rows(store, "errors")[0]["error_id"])
    done = CliRunner().invoke(app, ["errors", *arguments], env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)
    assert "owned" in done.output


@pytest.mark.parametrize("queue", ["os:system?;touch {0}", "subprocess:getoutput?touch {0}", "builtins:open?file={0}"])
def test_a_queue_that_the_store_names_runs_no_code(world: World, queue: str) -> None:
    mark = world.folder / "made"
    record_hostile(world, queue.format(mark))
    done = CliRunner().invoke(app, ["errors", "requeue", "--all", "--json"])
    assert done.exit_code != 0, done.output
    assert not mark.exists()


# --- a page is requeued whole, or can be gone on with ---


def of_each_kind(world: World, loop: DriverLoop) -> None:
    """Three quarantined objects: two of a listing, one of a queue."""
    run_with(world, loop, dict.fromkeys(uris(3), "object"))
    with world.store() as store, store.database.engine.begin() as connection:
        for table in (shards, error_table):
            of_listing = table.c.shard_key.in_([shard_key("files", uri) for uri in uris(2)])
            connection.execute(table.update().where(of_listing).values(queue=LISTING, message_id="listed"))
    assert states_by_uri(world) == dict.fromkeys(uris(3), "quarantined")


def states_by_uri(world: World) -> dict[str, str]:
    with world.store() as store:
        return {row["shard_id"]: row["state"] for row in rows(store, "shards")}


def test_objects_that_a_listing_found_are_requeued_without_a_message(world: World) -> None:
    """Their queue has no URL: the command ended with 2 when it had released the whole page."""
    world.publish(*uris(3))
    with world.loop() as loop:
        of_each_kind(world, loop)
        assert errors("requeue", "--all", "--dry-run")["messages"] == 1
        assert errors("requeue", "--all") == {"errors": 3, "messages": 1, "refused": {}, "dry_run": False}
        until(lambda: set(states_by_uri(world).values()) == {"done"} and world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert published(store) == dict.fromkeys(uris(3), 1)


def test_objects_of_a_listing_are_announced_where_a_queue_is_named(world: World) -> None:
    world.publish(*uris(3))
    with world.loop() as loop:
        of_each_kind(world, loop)
        assert errors("requeue", "--all", "--to", world.queue_url)["messages"] == 3
        until(lambda: set(states_by_uri(world).values()) == {"done"} and world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert published(store) == dict.fromkeys(uris(3), 1)


def test_an_object_of_a_listing_that_the_store_has_forgotten_needs_a_queue(world: World) -> None:
    with world.store() as store:
        one = ErrorRecord("object", "corrupt-object", "", "s3://bucket/x", queue=LISTING, message_id="listed")
        store.record_errors("files", "files", [one])
    with open_queue(world.queue_url) as queue:
        queue.create()  # type: ignore[attr-defined]
    [why] = errors("requeue", "--all", code=1)["refused"].values()
    assert "--to" in why
    assert errors("requeue", "--all", "--to", world.queue_url)["messages"] == 1


@pytest.mark.parametrize(
    ("queue", "arguments"),
    [
        ("nonsense://x", ()),
        ("sql+sqlite:///absent.db?queue=q", ()),
        ("amqp://127.0.0.1:1/v?source=s&nonsense=1", ()),
        ("", ("--notification", "s3")),
    ],
    ids=["no such kind", "no such file", "wrong parameter", "no event for such a name"],
)
def test_a_queue_that_cannot_be_opened_releases_nothing(world: World, queue: str, arguments: tuple[str, ...]) -> None:
    name = uris(1)[0] if queue else f"file://{world.folder}/in/x.json"
    (world.folder / "in").mkdir()
    (world.folder / "in" / "x.json").write_bytes(b"{}")
    world.publish(name, uris(2)[1])
    with world.loop(allowedPrefixes=f"s3://bucket/,file://{world.folder}/in/") as loop:
        run_with(world, loop, dict.fromkeys((name, uris(2)[1]), "object"))
    if queue:
        with world.store() as store, store.database.engine.begin() as connection:
            connection.execute(shards.update().where(shards.c.shard_id == name).values(queue=queue))
    done = CliRunner().invoke(app, ["errors", "requeue", "--all", *arguments])
    assert done.exit_code == 2, done.output
    assert states_by_uri(world) == dict.fromkeys((name, uris(2)[1]), "quarantined")
    assert world.depth() == EMPTY
    assert {error["state"] for error in errors("list")["errors"]} == {"recorded"}


def test_what_its_queue_cannot_carry_is_refused_and_the_others_are_requeued(world: World) -> None:
    sim = f"sim://q?dir={world.folder}/sim"
    with open_queue(sim) as queue:
        queue.create()  # type: ignore[attr-defined]
    with world.store() as store:
        good = [ErrorRecord("message", "c", "", f"m{i}", queue=sim, input=b"ab", message_id=f"{i}") for i in range(3)]
        odd = replace(good[1], **kept_message(b"ab", "a" * 300, (), None))
        store.record_errors("files", "files", [good[0], odd, good[2]])
    [why] = errors("requeue", "--all", code=1)["refused"].values()
    assert "its queue cannot carry it" in why
    assert len(waiting(sim)) == 2
    assert sorted(error["state"] for error in errors("list")["errors"]) == ["recorded", "requeued", "requeued"]


def test_a_queue_that_fails_leaves_the_others_done_and_the_next_call_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent to another queue before is not sent again: as data, it would be there twice."""
    queues = [f"sql+sqlite:///{world.folder}/queue.db?queue={name}" for name in ("one", "two")]
    with world.store() as store:
        records = [ErrorRecord("message", "c", "", q, queue=q, input=b"ab", message_id="m") for q in queues]
        store.record_errors("files", "files", records)
    for url in queues:
        with open_queue(url) as queue:
            queue.create()  # type: ignore[attr-defined]
    failing, send = [True], send_possible

    def fails(queue: Any, messages: Any) -> dict[int, str]:
        if failing.pop() if failing and queue.name.endswith("queue=two") else False:
            raise QueueError(queue.name, "is away")
        return send(queue, messages)

    monkeypatch.setattr(commands, "send_possible", fails)
    assert CliRunner().invoke(app, ["errors", "requeue", "--all"]).exit_code == 1
    assert errors("requeue", "--all")["messages"] in (1, 2)
    assert [[m.body for m in waiting(url)] for url in queues] == [[b"ab"], [b"ab"]]


@pytest.mark.parametrize("dies", ["opened", "stopped"])
def test_an_object_that_is_open_without_a_message_is_mended_by_reopening_it(world: World, dies: str) -> None:
    """As version 0.4 left it, when it had released a page and could not send."""
    world.publish(*uris(1))
    with world.loop() as loop:
        if dies == "opened":
            run_with(world, loop, {uris(1)[0]: "object"})
            with world.store() as store:
                [page] = search.pages(store.database, Criteria())
                store.reopen(page)
                store.drop_errors([error.key for error in page])
        else:
            loop.latest(0)
    with open_queue(world.queue_url) as queue:
        queue.purge()  # type: ignore[attr-defined]
    if dies == "stopped":
        with world.store() as store, store.database.engine.begin() as connection:
            connection.execute(pipelines.update().values(stale_at=0))
    done = CliRunner().invoke(app, ["shards", "reopen", "--all", "--json"])
    assert json.loads(done.stdout)["shards"] == 1, done.output
    with world.loop() as loop:
        until(lambda: states_by_uri(world) == {uris(1)[0]: "done"}, patiently(loop))
        with world.store() as store:
            assert published(store) == dict.fromkeys(uris(1), 1)
