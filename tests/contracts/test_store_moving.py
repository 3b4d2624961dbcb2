"""Contract: a source goes from one store to another with all that is known of it, and is in one of them at any time."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_source.admin import moving as moving_files
from queue_source.admin.moving import check, export, import_file
from queue_source.errors import OptionError
from shard_store.error_table import search
from shard_store.error_table.search import Criteria
from shard_store.errors import PipelineTakenOver, ShardStoreError, StoreConfigurationError
from shard_store.model import BEGINNING, Content, ErrorRecord, Reference, Split, shard_key
from shard_store.operators import moving
from shard_store.operators.status import DEAD, STOPPED
from shard_store.shards.changes import Audit
from shard_store.sql.schema import (
    AnyText,
    AsContent,
    AsReference,
    metadata,
    pipelines,
    read_marks,
    shards,
    sources,
)
from shard_store.store import ShardStore, open_store
from support.store_backends import Pipeline, StoreBackend, rows

HOSTILE = '"a\0b\ud800\udc00\ud800"\\u0041\n\u2028'
"""What JSON or a database would change: NUL, halves of characters (also two that make a whole one), a leading quote."""


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """Another store, in a SQLite file."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.cuesqueue"


def sample(column: sa.Column[Any], number: int) -> object:
    """A value of the column's type; of a digest all kinds of bytes."""
    kind = column.type
    if isinstance(kind, AsContent):
        return Content(HOSTILE, HOSTILE, reference=Reference(tag=HOSTILE))
    if isinstance(kind, AsReference):
        return Reference(*[None] * len(Reference._fields))._replace(tag=HOSTILE)
    if isinstance(kind, AnyText):
        return f"{HOSTILE}{column.name}"
    if isinstance(kind, sa.LargeBinary):
        return bytes((number * 7 + place) % 256 for place in range(32))
    if isinstance(kind, sa.Integer):
        return number if column.name in ("receive_count", "chunk", "task", "unended", "attempts") else 2**50 + number
    return f"{column.name} {number}"[: getattr(kind, "length", None) or 1000]


def filled(store: ShardStore, source: str, first: int = 0) -> None:
    """Three rows in each table of the source, with a value in each column."""
    with store.database.engine.begin() as connection:
        for table in moving.TABLES:
            for number in range(first, first + (1 if table is sources else 3)):
                values = {column.name: sample(column, number) for column in table.columns if column.name != "id"}
                values |= {"source": source} if "source" in table.c else {}
                if "pipeline" in table.c:
                    values["pipeline"] = f"{source} p{number}"
                if table is pipelines:
                    values["stores"] = '{"an id": 3}'
                if table is sources:
                    values |= {"moves": None, "moved_to": None, "moved_to_id": None, "import_id": None}
                if table is read_marks:
                    values["delivery_hash"] = sample(pipelines.c.plan_hash, number)
                connection.execute(table.insert().values(values))


def kept(store: ShardStore, source: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the source as our code reads them, without what moving changes."""
    changed = {"id", "incarnation", "driver", "moves", "moved_to", "moved_to_id", "import_id", "stores"}

    def read(t: Any) -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for table in moving.TABLES:
            columns = [c for c in table.columns if not (c.name in changed and table in (sources, pipelines))]
            rows = t.execute(sa.select(*columns).where(moving._of(table, source))).mappings()
            found[table.name] = sorted(
                (tuple(value for name, value in row.items() if name != "id") for row in rows), key=repr
            )
        return found

    return store.database.read(read)


def test_every_table_travels_or_is_left_out_with_a_reason() -> None:
    assert set(metadata.sorted_tables) == {*moving.TABLES, *moving.LEFT_OUT}


@pytest.mark.parametrize("back", [False, True], ids=["to-sqlite", "from-sqlite"])
def test_every_column_of_every_table_arrives_as_it_was(
    backend: StoreBackend, other: ShardStore, file: Path, back: bool
) -> None:
    origin, target = (other, backend.open()) if back else (backend.open(), other)
    filled(origin, "s")
    filled(origin, "another", 100)
    before, beside = kept(origin, "s"), kept(origin, "another")
    done: list[tuple[int, int]] = []
    written = export(origin, "s", file, to=target, progress=lambda *now: done.append(now))
    assert all(written.rows.values())
    assert done[-1] == (sum(written.rows.values()),) * 2
    assert import_file(target, file).rows == written.rows == check(file).rows
    assert kept(target, "s") == before
    assert kept(origin, "another") == beside
    assert not any(kept(target, "another").values())


def test_a_pipeline_goes_on_in_the_other_store_where_it_was(store: ShardStore, other: ShardStore, file: Path) -> None:
    us = Pipeline.start(store)
    us.deliver("a", "b")
    plan = us.planned("c", "d")
    us.open("waiting")
    export(store, "s", file, to=other)
    import_file(other, file)
    again = Pipeline.start(other)
    assert again.token.incarnation > us.token.incarnation
    assert (again.confirmed, again.seq) == (1, 2)
    made = again.plan()
    assert made.identity.delivery_hash == plan.identity.delivery_hash
    assert made.attempt == 2
    again.publish(made, Split("/c-and-d", 2, 1))
    again.confirm()
    assert {row["shard_id"]: row["state"] for row in rows(other, "shards")} == {
        **dict.fromkeys("abcd", "done"),
        "waiting": "open",
    }
    assert [row["path"] for row in rows(other, "splits")] == ["/split-1", "/c-and-d"]
    again.deliver("waiting")


@pytest.mark.parametrize("copied", [False, True])
def test_what_was_imported_is_not_dead_before_it_was_started(
    store: ShardStore, other: ShardStore, file: Path, copied: bool
) -> None:
    def late() -> str:
        with other.database.engine.begin() as connection:
            connection.execute(pipelines.update().values(stale_at=1))
        (found,) = other.status()
        return found.state

    Pipeline.start(store, driver="here").deliver("a")
    export(store, "s", file, to=None if copied else other)
    import_file(other, file)
    assert late() == STOPPED
    Pipeline.start(other, driver="there")
    assert late() == DEAD


def test_a_plan_that_was_published_before_the_move_is_not_published_after_it(
    store: ShardStore, other: ShardStore, file: Path
) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, Split("/a", 1, 1))  # and no confirm: Spark repeats it
    export(store, "s", file, to=other)
    import_file(other, file)
    again = Pipeline.start(other)
    assert again.confirmed == 1
    repeated = other.plan(again.token, 0, 1)
    assert repeated.published
    assert again.publish(repeated, Split("/a-again", 1, 1)).already
    assert [row["path"] for row in rows(other, "splits")] == ["/a"]


def refused(work: Callable[[], object]) -> str:
    with pytest.raises((PipelineTakenOver, StoreConfigurationError)) as caught:
        work()
    return str(caught.value)


def test_whoever_runs_on_the_old_store_is_refused_with_the_name_of_the_new_one(
    backend: StoreBackend, other: ShardStore, file: Path
) -> None:
    store = backend.open()
    us = Pipeline.start(store, driver="d")
    plan = us.planned("a")
    stranger = Pipeline.start(store, "x", "another")
    export(store, "s", file, to=other)
    works: list[Callable[[], object]] = [
        lambda: us.publish(plan, Split("/a", 1, 1)),
        lambda: us.confirm(),
        lambda: us.open("b"),
        lambda: us.plan(),
        lambda: store.heartbeat(us.token, 60.0),
        lambda: store.current_plan("p"),
        lambda: store.current_plan("p", "d"),
        lambda: Pipeline.start(store),
        lambda: Pipeline.start(store, "new"),
        lambda: store.adopt("s", [], "read"),
    ]
    for work in works:
        assert "other.db" in refused(work)
    assert rows(store, "splits") == []
    assert {row["pipeline"] for row in rows(store, "attempts")} == set()
    stranger.deliver("c")


def test_what_people_change_in_the_old_store_is_refused_and_nothing_is_changed(
    store: ShardStore, other: ShardStore, file: Path
) -> None:
    us = Pipeline.start(store)
    us.deliver("done")
    plan = us.planned("bad")
    bad = ErrorRecord("object", "why", "", "bad", plan.identity.delivery_hash, BEGINNING)
    store.record_errors("s", "p", [bad])
    us.publish(plan)
    us.open("open")
    ((error,),) = search.pages(store.database, Criteria())
    export(store, "s", file, to=other)
    before = kept(store, "s")
    keys = {name: [shard_key("s", name)] for name in ("done", "bad", "open")}
    by = Audit("me@here")
    works: list[Callable[[], object]] = [
        lambda: store.quarantine(keys["open"], by),
        lambda: store.put_back(keys["bad"], by, message_uri=""),
        lambda: store.forget(keys["done"], by),
        lambda: store.reopen([error], audit=by),
    ]
    for work in works:
        assert "other.db" in refused(work)
    assert kept(store, "s") == before


def test_a_batch_without_input_is_not_published_in_the_old_store_after_the_move(
    store: ShardStore, other: ShardStore, file: Path
) -> None:
    """As of a query with state: its sink asks for the plan after the reader has brought nothing new."""
    us = Pipeline.start(store, driver="d")
    us.deliver("a")
    seen = store.current_plan("p", "d")
    export(store, "s", file, to=other)
    assert "other.db" in refused(lambda: store.publish([seen], [Split("/state", 1, 1)], batch_id=7))
    assert [row["path"] for row in rows(store, "splits")] == ["/split-1"]


def test_a_copy_changes_nothing_in_its_store(store: ShardStore, other: ShardStore, file: Path) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    export(store, "s", file, to=None)
    us.deliver("b")
    import_file(other, file)
    again = Pipeline.start(other)
    assert (again.seq, list(again.look("a", "b"))) == (1, ["a"])
    again.deliver("c")
    assert import_file(other, file).already
    assert {row["shard_id"] for row in rows(other, "shards")} == {"a", "c"}
    assert {row["shard_id"] for row in rows(store, "shards")} == {"a", "b"}


def test_a_copy_of_a_running_source_is_of_one_moment(
    backend: StoreBackend, other: ShardStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    read = moving.rows
    delivered: list[object] = []

    def rows_and_a_batch(t: Any, table: sa.Table, source: str) -> Any:
        if table is shards and not delivered:
            delivered.append(us.deliver("b"))
        return read(t, table, source)

    monkeypatch.setattr(moving, "rows", rows_and_a_batch)
    export(store, "s", file, to=None)
    import_file(other, file)
    assert delivered
    assert [row["shard_id"] for row in rows(other, "shards")] == ["a"]
    assert [row["end_seq"] for row in rows(other, "attempts")] == [1]


def test_an_import_is_refused_where_the_source_or_one_of_its_pipelines_is(
    store: ShardStore, other: ShardStore, file: Path, tmp_path: Path
) -> None:
    Pipeline.start(store).deliver("a")
    export(store, "s", file, to=None)
    Pipeline.start(other)
    assert "has a source 's' already" in refused(lambda: import_file(other, file))
    with open_store(f"sqlite:///{tmp_path}/third.db") as third:
        Pipeline.start(third, "p", "another")
        assert "has a pipeline 'p' of the source 'another'" in refused(lambda: import_file(third, file))
        assert rows(third, "shards") == []
    assert rows(other, "shards") == []
    moved = tmp_path / "moved"
    assert "has a source 's' already" in refused(lambda: export(store, "s", moved, to=other))
    assert store.moved_sources() == {}  # it was asked before anything was changed


def test_a_file_arrives_only_in_the_store_that_it_is_for_and_there_once(
    store: ShardStore, other: ShardStore, file: Path, tmp_path: Path
) -> None:
    Pipeline.start(store).deliver("a")
    export(store, "s", file, to=other)
    with open_store(f"sqlite:///{tmp_path}/third.db") as third:
        assert "is for another store" in refused(lambda: import_file(third, file))
        assert "was moved from" in refused(lambda: export(store, "s", tmp_path / "again", to=third))
        assert "was moved from" in refused(lambda: export(store, "s", tmp_path / "copy", to=None))
    assert not import_file(other, file).already
    Pipeline.start(other).deliver("b")
    assert import_file(other, file).already
    assert {row["shard_id"] for row in rows(other, "shards")} == {"a", "b"}


def test_a_source_comes_back_and_an_older_file_does_not(
    store: ShardStore, other: ShardStore, file: Path, tmp_path: Path
) -> None:
    Pipeline.start(store).deliver("a")
    export(store, "s", file, to=other)
    import_file(other, file)
    Pipeline.start(other).deliver("b")
    back = tmp_path / "back"
    export(other, "s", back, to=store)
    import_file(store, back)
    assert "was moved from" in refused(lambda: Pipeline.start(other))
    assert store.moved_sources() == {}
    assert "was moved from" in refused(lambda: import_file(other, file))
    Pipeline.start(store).deliver("c")
    assert {row["shard_id"] for row in rows(store, "shards")} == {"a", "b", "c"}
    third = tmp_path / "again"
    export(store, "s", third, to=other)
    assert "was moved from" in refused(lambda: import_file(store, back))
    import_file(other, third)
    Pipeline.start(other).deliver("d")
    assert {row["shard_id"] for row in rows(other, "shards")} == set("abcd")


def test_a_copy_of_a_store_is_no_other_store(backend: StoreBackend, tmp_path: Path, file: Path) -> None:
    if backend.name != "sqlite":
        pytest.skip("a file is copied")
    store = backend.open()
    Pipeline.start(store).deliver("a")
    store.close()
    copied = tmp_path / "copied.db"
    copied.write_bytes((tmp_path / "store.db").read_bytes())
    with open_store(backend.url) as origin, open_store(f"sqlite:///{copied}") as target:
        origin.database.write(lambda t: [t.execute(table.delete()) for table in moving.TABLES])
        filled(target, "x")
        assert "are one store, or copies" in refused(lambda: export(target, "x", file, to=origin))


def content_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines(keepends=True)


def test_a_file_that_is_cut_off_or_changed_is_refused_and_nothing_of_it_is_there(
    store: ShardStore, other: ShardStore, file: Path, tmp_path: Path
) -> None:
    Pipeline.start(store).deliver(*(f"shard {number}" for number in range(50)))
    export(store, "s", file, to=other)
    whole, lines = file.read_bytes(), content_of(file)
    place = next(number for number, line in enumerate(lines) if "shard 7" in line and "[" in line)
    swapped = [line.replace("shard 7", "shard 8") if number == place else line for number, line in enumerate(lines)]

    def zipped(given: list[str]) -> bytes:
        return gzip.compress("".join(given).encode())

    damaged = {
        "half": whole[: len(whole) // 2],
        "no-end-of-gzip": whole[:-4],
        "no-last-line": zipped(lines[:-1]),
        "a-row-less": zipped(lines[:place] + lines[place + 1 :]),
        "changed": zipped(swapped),
        "other-counts": zipped([*lines[:-1], lines[-1].replace('"cuesqueue_shards":50', '"cuesqueue_shards":49')]),
        "longer": zipped([*lines, "[1]\n"]),
        "text": b"not one of ours",
        "other-json": zipped(["[1, 2]\n"]),
        "empty": b"",
        "newer": zipped([json.dumps({**json.loads(lines[0]), "format": 2}) + "\n", *lines[1:]]),
    }
    for name, content in damaged.items():
        bad = tmp_path / name
        bad.write_bytes(content)
        with pytest.raises(OptionError, match=name):
            import_file(other, bad)
        assert rows(other, "shards") == [], name
    import_file(other, file)
    assert len(rows(other, "shards")) == 50


def signed(lines: list[Any]) -> bytes:
    """The lines as a file whose checksum and numbers of rows are right: made by hand, to do harm or by mistake."""
    rows, table, digest, content = dict[str, int](), "", hashlib.sha256(), b""
    for line in lines:
        if isinstance(line, dict) and "table" in line:
            table = str(line["table"])
            rows[table] = 0
        elif isinstance(line, list):
            rows[table] = rows.get(table, 0) + 1
    for line in [*lines, None]:
        value = {"end": rows, "sha256": digest.hexdigest()} if line is None else line
        text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        digest.update(text)
        content += text
    return gzip.compress(content)


def test_a_file_that_is_whole_and_senseless_is_refused_and_nothing_of_it_is_there(
    store: ShardStore, other: ShardStore, file: Path, tmp_path: Path
) -> None:
    Pipeline.start(store).deliver("a", "b")
    export(store, "s", file, to=other)
    lines = [json.loads(line) for line in content_of(file)[:-1]]
    head = next(n for n, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == "cuesqueue_shards")
    names, row = lines[head]["columns"], lines[head + 1]

    def with_line(place: int, line: object) -> list[Any]:
        return [*lines[:place], line, *lines[place + 1 :]]

    def with_value(column: str, value: object) -> list[Any]:
        return with_line(head + 1, [value if name == column else old for name, old in zip(names, row, strict=True)])

    senseless = {
        **{f"no-{name}": with_line(0, {k: v for k, v in lines[0].items() if k != name}) for name in lines[0]},
        "revision": with_line(0, {**lines[0], "revision": {}}),
        "source": with_line(0, {**lines[0], "source": None}),
        "no-columns": with_line(head, {"table": "cuesqueue_shards"}),
        "columns-no-names": with_line(head, {"table": "cuesqueue_shards", "columns": [["x"]] * len(names)}),
        "column-twice": with_line(head, {**lines[head], "columns": [names[0], *names[:-1]]}),
        "table-no-name": with_line(head, {**lines[head], "table": ["cuesqueue_shards"]}),
        "table-twice": [*lines[:head], lines[head], *lines[head:]],
        "row-first": [lines[0], [], *lines[1:]],
        "another-source": with_value("source", "another"),
        "bytes-no-base64": with_value("shard_key", {"b": "!"}),
        "bytes-no-text": with_value("shard_key", {"b": 5}),
        "object": with_value("shard_key", {"x": 1}),
        "fraction": with_value("size", 1.5),
        "truth": with_value("size", True),
        "list": with_value("size", [1]),
        "large": with_value("size", 2**70),
        "half-a-character": with_value("shard_id", "\ud800"),
    }
    damaged = {name: signed(given) for name, given in senseless.items()}
    damaged["deep"] = gzip.compress(b"[" * 200_000)
    for name, content in damaged.items():
        bad = tmp_path / name
        bad.write_bytes(content)
        with pytest.raises((OptionError, ShardStoreError)):
            import_file(other, bad)
        assert rows(other, "shards") == [], name
    (tmp_path / "good").write_bytes(signed(lines))
    assert import_file(other, tmp_path / "good").rows["cuesqueue_shards"] == 2


def test_a_line_without_end_is_not_read_into_memory(
    other: ShardStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving_files, "_LONGEST_LINE", 1000)
    file.write_bytes(gzip.compress(b'"' + b"x" * 2000 + b'"\n'))
    with pytest.raises(OptionError, match="a line has more than 1,000 bytes"):
        import_file(other, file)


def test_of_a_file_that_cannot_be_written_nothing_leaves(store: ShardStore, other: ShardStore, tmp_path: Path) -> None:
    us = Pipeline.start(store)
    with pytest.raises(FileNotFoundError):
        export(store, "s", tmp_path / "no-folder" / "file", to=other)
    us.deliver("a")


def test_a_file_of_a_newer_schema_or_with_unknown_columns_is_refused(
    store: ShardStore, other: ShardStore, file: Path
) -> None:
    Pipeline.start(store).deliver("a")
    export(store, "s", file, to=other)
    cargo = store.database.read(lambda t: moving.cargo(t, "s", None))[0]
    newer = moving.Cargo(**{**{name: getattr(cargo, name) for name in cargo.__dataclass_fields__}, "revision": "9999"})
    assert "newer cuesqueue" in refused(lambda: other.database.write(lambda t: moving.arrive(t, newer)))
    names = moving.columns(shards)
    moving.check_columns(shards, [name for name in names if name != "sent_at"])  # as of before 0008
    assert "unknown ['colour']" in refused(lambda: moving.check_columns(shards, [*names, "colour"]))
    assert "missing ['state']" in refused(
        lambda: moving.check_columns(shards, [name for name in names if name != "state"])
    )


def test_a_file_is_its_owners_alone_and_replaces_none(store: ShardStore, other: ShardStore, file: Path) -> None:
    Pipeline.start(store).deliver("a")
    export(store, "s", file, to=None)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OptionError, match="is there already"):
        export(store, "s", file, to=other)
    assert store.moved_sources() == {}
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(f".{file.name}")] == []


def test_a_source_that_is_not_there_is_named_with_those_that_are(store: ShardStore, file: Path) -> None:
    Pipeline.start(store)
    assert "there is no source 'x'" in refused(lambda: export(store, "x", file, to=None))
    assert "there is 's'" in refused(lambda: export(store, "x", file, to=None))
    assert not file.exists()
