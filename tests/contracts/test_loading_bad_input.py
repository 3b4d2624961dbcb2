"""Loading what goes wrong: targets that fail, overwritten objects, changed rows, drivers that were replaced."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import ObjectStoreError, OptionError, SchemaChanged
from queue_source.options import parse_reader_options
from queue_source.read.fixed_rows import REFERENCE_SCHEMA, reference_value
from queue_source.schema import sampling
from queue_source.sinks.base import Batch
from queue_source.sinks.splits import SplitSink
from shard_store.errors import PipelineTakenOver
from shard_store.model import Content, Range, Reading, ReadMark, Reference, end_at
from support.iceberg_tables import Lake, failing_at
from support.registering import Loading
from support.sessions import LEAST
from support.store_backends import STALE, StoreBackend


@pytest.fixture(params=["path"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
    """A folder, or a table whose catalog is another database than the store."""
    backend, reading = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}"), {"type": "sql"}
    options = {"store": backend.url}
    if request.param == "path":
        options["path"] = str(tmp_path / "out")
    else:
        reading["uri"] = f"sqlite:///{tmp_path / 'catalog.db'}"
        options |= {"table": "db.events", "warehouse": str(tmp_path / "warehouse")}
        options |= {f"catalog.{key}": value for key, value in reading.items()}
    yield Lake(backend.open(), options, reading)
    backend.close()


def reference_rows(contents: Sequence[Content]) -> pa.Table:
    """The rows of the reader."""
    columns = [pa.array([reference_value(f.name, one) for one in contents], f.type) for f in REFERENCE_SCHEMA]
    return pa.Table.from_arrays(columns, schema=REFERENCE_SCHEMA)


elsewhere = pytest.mark.parametrize("lake", ["elsewhere"], indirect=True)


def written(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def objects(folder: Path, *ids: int) -> list[Path]:
    return [written(folder / "in" / f"{id}.json", {"id": id, "name": f"n{id}"}) for id in ids]


@pytest.mark.parametrize("task", [0, -1], ids=["beside others", "alone"])
def test_a_target_that_fails_is_no_death_of_the_objects(
    lake: Lake, tmp_path: Path, task: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is kept, with all that it refers to, as by a worker that reports it and ends.

    Objects that were suspects are cleared of that: they have been read alone.
    """
    paths = objects(tmp_path, 1, 2)
    query = Loading(lake)
    query.announce(*paths)
    query.written(query.references(paths))
    assert query.plan is not None
    identity = query.plan.identity
    if task:
        lake.store.begin_read(identity, ReadMark(0, 2, 0))
    query.restart()

    def full(sink: SplitSink, batches: Iterator[Any], *_: object) -> None:
        next(batches)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SplitSink, "write", full)
    with pytest.raises(OSError, match="No space left") as kept:
        query.written(query.references(paths))
    assert lake.store.read_marks(identity) == []
    assert kept.value.errno == errno.ENOSPC


def test_an_object_that_is_announced_again_in_another_version_before_its_batch_is_loaded_with_the_next_one(
    lake: Lake, tmp_path: Path
) -> None:
    (one,) = objects(tmp_path, 1)
    query, uri = Loading(lake), f"file://{one}"
    query.announce(one)
    written(one, {"id": 1, "name": "a longer name"})
    size = one.stat().st_size
    again = Content(uri, uri, size, None, "q", "another message", reference=Reference())
    query.pipeline.store.open_shards(query.pipeline.token, query.pipeline.source, [again])
    query.attempt(query.references([one]))
    query.end()
    assert (query.ids(), query.states()) == ([], {"1.json": "open"})
    query.announced[uri] = size
    (shard,) = query.pipeline.look(uri).values()
    query.batch_id += 1
    query.pipeline.write(Range(shard.key, shard.content, shard.position, end_at(size)))
    query.attempt(query.references([one]))
    query.end()
    assert query.rows() == [{"id": 1, "name": "a longer name"}]
    assert query.states() == {"1.json": "done"}


@pytest.mark.parametrize("larger", [0, 5], ids=["of one size", "of two sizes"])
def test_two_versions_of_an_object_without_etags_are_no_repeated_row(lake: Lake, tmp_path: Path, larger: int) -> None:
    """In stores whose versions have numbers; each has a task of its own."""
    (one,) = objects(tmp_path, 1)
    query, uri, size = Loading(lake), f"file://{one}", one.stat().st_size
    query.batch_id += 1
    versions = {"7": size + larger, "8": size}
    contents = [
        Content(f"{uri}#{version}", uri, bytes_, None, "q", f"m{version}", reference=Reference(version))
        for version, bytes_ in versions.items()
    ]
    shards = query.pipeline.store.open_shards(query.pipeline.token, query.pipeline.source, contents).values()
    query.pipeline.write(*[Range(s.key, s.content, s.position, end_at(s.content.size or 0)) for s in shards])
    query.attempt(*[reference_rows([content]) for content in contents])
    query.end()
    assert query.ids() == ([1] if larger else [1, 1])
    assert sorted(query.states().values()) == ["done", "quarantined" if larger else "done"]


@pytest.mark.parametrize("own", ["text", {"file_block_start": "0", "file_block_length": "x"}], ids=["text", "texts"])
def test_a_column_metadata_of_the_users_own_names_no_parts(lake: Lake, tmp_path: Path, own: object) -> None:
    paths = objects(tmp_path, 1)
    query = Loading(lake)
    query.announce(*paths)
    query.attempt(query.references(paths).append_column("_metadata", pa.array([own])))
    query.end()
    assert query.ids() == [1]


def test_a_driver_that_was_replaced_before_its_commit_records_no_verdict(lake: Lake, tmp_path: Path) -> None:
    """The object is there by now, and the next driver has read it."""
    one = tmp_path / "in" / "1.json"
    query = Loading(lake)
    query.announce(one)
    of_replaced = query.written(query.references([one]))
    query.restart()
    objects(tmp_path, 1)
    of_next = query.written(query.references([one]))
    with pytest.raises(PipelineTakenOver):
        query.commit(*of_replaced)
    query.commit(*of_next)
    query.end()
    assert (query.ids(), query.causes(), query.states()) == ([1], {}, {"1.json": "done"})


@elsewhere
@pytest.mark.parametrize("tries", [1, 2], ids=["the task that gives it up", "the try after it"])
def test_what_kills_its_task_after_its_rows_were_shown_is_published_as_the_table_has_it(
    lake: Lake, tmp_path: Path, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog elsewhere has the rows of the first attempt, which found nothing bad: that is what its mark says."""
    paths = objects(tmp_path, 1, 2)
    query = Loading(lake, options={"maxAttempts": "2"})
    query.announce(*paths)
    rows_of_reader = query.references(paths)
    with failing_at(monkeypatch, "table-committed"):
        query.attempt(rows_of_reader)
    assert query.plan is not None
    query.restart()
    query.pipeline.plan()
    lake.store.begin_read(query.plan.identity, ReadMark(1, 2, -1, 2))  # two readers have died at it
    query.restart()
    query.plan = query.pipeline.plan()
    sink = query.sink()
    sink.prepare(lake.store, rows_of_reader.schema, (query.plan.identity,))
    for number in range(tries):
        batch = Batch((query.plan.identity,), reading=Reading(1, 0, number, repeated=number > 0))
        loaded = sink.write(iter(rows_of_reader.to_batches()), rows_of_reader.schema, batch)
    query.commit(Batch((query.plan.identity,), winners=frozenset({tries - 1})), [loaded])
    query.end()
    assert (query.ids(), query.causes(), query.states()) == ([1, 2], {}, {"1.json": "done", "2.json": "done"})


@pytest.mark.parametrize("first", ["empty", "missing", "corrupt"])
def test_a_first_batch_without_columns_does_not_stop_the_stream(lake: Lake, tmp_path: Path, first: str) -> None:
    query = inferring(lake, tmp_path)
    one = tmp_path / "in" / "first.json"
    if first != "missing":
        written(one).write_text("" if first == "empty" else "no json")
    query.objects([one])
    query.objects(objects(tmp_path, 1))
    assert query.ids() == [1]
    causes = {"empty": {}, "missing": {"first.json": "missing-object"}, "corrupt": {"first.json": "corrupt-object"}}
    assert query.causes() == causes[first]
    assert query.states()["first.json"] == ("done" if first == "empty" else "quarantined")


def test_columns_are_inferred_from_further_objects_where_the_first_ones_have_none(lake: Lake, tmp_path: Path) -> None:
    query = inferring(lake, tmp_path)
    query.objects([tmp_path / "in" / "missing.json", *objects(tmp_path, 1)])
    assert query.ids() == [1]


def test_where_the_target_refuses_inferred_columns_the_error_says_where_they_are_kept(
    lake: Lake, tmp_path: Path
) -> None:
    target = {"delta": str(tmp_path / "table"), "schemaLocation": str(tmp_path / "schemas")}
    query = Loading(Lake(lake.store, {"store": lake.options["store"], **target}, {}))
    del query.options["schema"]
    query.announce(one := written(tmp_path / "in" / "1.json", {"a b": 1}))
    with pytest.raises(OptionError, match=r"'a b' has ' ' in its name.*are kept in .*/schemas: .* remove that folder"):
        query.attempt(query.references([one]))


def test_rows_without_columns_are_not_taken_for_nothing(lake: Lake, tmp_path: Path) -> None:
    query = inferring(lake, tmp_path)
    query.announce(one := written(tmp_path / "in" / "1.json", {}))
    with pytest.raises(OptionError, match="no object of this batch has columns to infer"):
        query.attempt(query.references([one]))


def test_objects_that_were_unreadable_only_while_columns_were_inferred_are_not_lost(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, paths = inferring(lake, tmp_path), objects(tmp_path, 1)
    query.announce(*paths)

    def fail(items: Sequence[Content], *_: object) -> Iterator[ObjectStoreError]:
        return (ObjectStoreError("the store does not answer") for _ in items)

    with monkeypatch.context() as patch:
        patch.setattr(sampling, "infer_each", fail)
        with pytest.raises(SchemaChanged):
            query.attempt(query.references(paths))
    query.restart()
    query.attempt(query.references(paths))
    assert query.ids() == [1]


def inferring(lake: Lake, folder: Path) -> Loading:
    query = Loading(lake, options={"schemaLocation": str(folder / "schemas"), "schemaSampleFiles": "1"})
    del query.options["schema"]
    return query


def started_with(query: Loading, **options: str) -> None:
    """The pipeline's reader, with these options."""
    parsed = parse_reader_options({**LEAST, "content": "reference", "store": query.lake.options["store"], **options})
    settings = parsed.settings
    source = query.pipeline.source
    started = query.lake.store.start(source, query.name, driver="", stale_after=STALE, settings=settings)
    query.pipeline.token = started.token


@pytest.mark.parametrize(
    ("of_reader", "of_sink", "message"),
    [
        ({"fileFormat": "csv"}, {}, "option 'load': is 'json' for this sink, and fileFormat is 'csv' for its reader"),
        ({"fileFormat": "json"}, {"lineSep": ";"}, "option 'lineSep': is ';' for this sink, and lineSep is '' for"),
        ({"fileFormat": "json", "multiLine": "true"}, {}, "option 'multiLine': is 'false' for this sink"),
        ({"fileFormat": "json"}, {"recordsPath": "Records"}, "option 'recordsPath': is 'Records' for this sink"),
    ],
)
def test_a_sink_that_ends_records_elsewhere_than_its_reader_cuts_objects_is_refused(
    lake: Lake, tmp_path: Path, of_reader: dict[str, str], of_sink: dict[str, str], message: str
) -> None:
    query, paths = Loading(lake, options=of_sink), objects(tmp_path, 1)
    started_with(query, **of_reader)
    query.announce(*paths)
    with pytest.raises(OptionError, match=message):
        query.attempt(query.references(paths))


def test_objects_are_read_only_where_the_prefixes_of_the_reader_lead(lake: Lake, tmp_path: Path) -> None:
    """A link is followed by no way out of them."""
    inside, outside = objects(tmp_path, 1, 2)
    beside = written(tmp_path / "beside" / "3.json", {"id": 3, "name": "n3"})
    link = tmp_path / "in" / "link.json"
    secret = written(tmp_path / "secret.json", {"id": 9, "name": "secret"})
    link.symlink_to(secret)
    query = Loading(lake)
    started_with(query, fileFormat="json", allowedPrefixes=f"{tmp_path}/in/,s3://bucket/,{tmp_path}/beside/")
    query.objects([inside, outside, beside, link, secret])
    assert query.ids() == [1, 2, 3]
    assert query.causes() == {"link.json": "forbidden-object", "secret.json": "forbidden-object"}


def test_rows_that_a_query_has_kept_for_a_later_batch_are_refused(lake: Lake, tmp_path: Path) -> None:
    """Their objects count as left out since the first one. The later batch has no new input here."""
    one, kept = objects(tmp_path, 1, 2)
    query = Loading(lake)
    query.announce(one, kept)
    query.attempt(query.references([one]))
    query.end()
    query.batch_id += 1
    with pytest.raises(OptionError, match=r"2.json', which is no object of this batch .* none of them for a later"):
        query.attempt(query.references([kept]))
