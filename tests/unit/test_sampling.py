"""Where the columns of a stream come from when nobody declared them, and what that does to the queue: nothing."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, OptionError, QueueUnavailable, SchemaChanged
from queue_source.options import parse_reader_options
from queue_source.queues import Depth, open_queue
from queue_source.queues.sql import SqlQueue
from queue_source.read.partitions import whole_pieces
from queue_source.read.task import Work, read_pieces
from queue_source.schema.columns import format_columns, parse_columns
from queue_source.schema.location import SchemaLocation
from queue_source.schema.sampling import inferred_schema
from shard_store.model import (
    BEGINNING,
    Content,
    ErrorRecord,
    Payload,
    PlanIdentity,
    PublishToken,
    Range,
    end_at,
    position_at,
    shard_key,
)
from shard_store.store import open_store
from support.reading import plan_store
from support.servers.ministack import KEYS, new_queue

IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)


class Place:
    """A folder with objects, a queue, a store and a schema location."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.queue = f"sql+sqlite:///{root}/queue.db?queue=files"
        self.given: dict[str, str] = {
            "queueUrl": self.queue,
            "store": f"sqlite:///{root}/store.db",
            "fileFormat": "json",
            "allowedPrefixes": f"file://{root}/",
            "schemaLocation": str(root / "schemas"),
            "waitTime": "1s",
        }

    def put(self, name: str, *records: dict[str, Any]) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        return path.as_uri()

    def publish(self, *items: Any) -> None:
        with open_queue(self.queue) as queue:
            queue.publish(items)

    def columns(self, **options: str | None) -> str:
        given = {**self.given, **options}
        parsed = parse_reader_options({name: text for name, text in given.items() if text is not None})
        return format_columns(inferred_schema(parsed)).replace("`", "")

    def work(self, contents: Sequence[Content], **options: str) -> Work:
        parsed = parse_reader_options({**self.given, **options})
        ranges = [Range(shard_key("files", one.shard_id), one, BEGINNING, end_at(10)) for one in contents]
        return Work(IDENTITY, whole_pieces(ranges), parsed.content, plan_store(parsed))

    def kept(self) -> str:
        parsed = parse_reader_options(self.given).content
        latest = SchemaLocation(self.given["schemaLocation"], parsed.storage).latest()
        assert latest is not None
        return f"{latest.version}: {format_columns(latest.schema)}".replace("`", "")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_the_queue_announces_is_looked_at_and_stays_there(place: Place) -> None:
    place.publish(place.put("1.json", {"id": 1}), place.put("2.json", {"id": 2, "name": "x"}))
    assert place.columns() == "id BIGINT, name STRING, _rescued_data STRING"
    with open_queue(place.queue) as queue:
        assert queue.depth().ready == 2
        messages = queue.receive(10, 60, 0)
        assert [message.receive_count for message in messages] == [1, 1]
        queue.acknowledge([message.receipt for message in messages])
    place.put("1.json", {"other": 1})
    assert place.columns() == "id BIGINT, name STRING, _rescued_data STRING"  # kept: the queue is not asked again
    assert place.columns(schemaEvolutionMode="none") == "id BIGINT, name STRING"
    assert place.columns(rescuedDataColumn="rest") == "id BIGINT, name STRING, rest STRING"
    assert place.columns(schemaHints="id STRING, more.x INT").startswith("id STRING, name STRING, more STRUCT<x: INT>")


def test_a_queue_that_has_nothing_is_waited_for_and_then_the_store_is_asked(place: Place) -> None:
    with pytest.raises(OptionError, match=r"(?s)schemaLocation.*is empty.*schemaSample"):
        place.columns(waitTime="0s")
    uri = place.put("seen.json", {"id": 1})
    token = PublishToken("p", 1)
    with open_store(place.given["store"]) as store:
        token = store.start("files", "p").token
        key = next(iter(store.open_shards(token, "files", [Content(uri, uri, 10)])))
        store.advance(token, snapshot=(1, [Range(key, Content(uri, uri, 10), BEGINNING, end_at(10))]))
        store.publish([store.plan(token, 0, 1).identity], [])
    assert place.columns(waitTime="0s") == "id BIGINT, _rescued_data STRING"


def test_samples_may_be_named_and_bad_ones_do_not_matter(place: Place) -> None:
    good, gone = place.put("good.json", {"id": 1}), (place.root / "gone.json").as_uri()
    elsewhere = {"allowedPrefixes": f"file://{place.root}/landing/"}  # of what is announced
    assert place.columns(schemaSample=f"{gone},{good}", **elsewhere) == "id BIGINT, _rescued_data STRING"
    with pytest.raises(OptionError, match="missing-object"):
        place.columns(schemaSample=gone, schemaLocation=str(place.root / "other"))


@pytest.mark.parametrize(
    "objects", [["a\n2024-01-02\n2024-01-02 03:04:05\n"], ["a\n2024-01-02\n", "a\n2024-01-02T03:04Z\n"]]
)
def test_days_and_times_in_a_column_of_csv_are_times_in_one_object_as_in_two(place: Place, objects: list[str]) -> None:
    for number, text in enumerate(objects):
        (place.root / f"{number}.csv").write_text(text)
        place.publish((place.root / f"{number}.csv").as_uri())
    given = {"fileFormat": "csv", "header": "true", "inferColumnTypes": "true"}
    assert place.columns(**given) == "a TIMESTAMP, _rescued_data STRING"


def test_columns_of_the_path_are_added_with_their_types(place: Place) -> None:
    place.publish(place.put("day=2020-01-01/n=7/1.json", {"id": 1, "n": "of the record"}))
    assert place.columns(partitionColumns="day,n") == "id BIGINT, day DATE, n BIGINT, _rescued_data STRING"


def test_columns_of_the_path_do_not_depend_on_the_day_or_the_order_of_the_samples(place: Place) -> None:
    typed = {"fileFormat": "parquet"}
    folders = ["day=09/n=__HIVE_DEFAULT_PARTITION__/code=7", "day=10/n=1/code=eu", "day=08/n=2.5/code=1"]
    uris = []
    for folder in folders:
        path = place.root / "landing" / folder / "1.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), path)
        uris.append(path.as_uri())
    for number, order in enumerate(itertools.permutations(uris)):
        found = place.columns(
            partitionColumns="day,n,code", schemaSample=",".join(order), schemaLocation=str(place.root / f"{number}"),
            **typed,
        )  # fmt: skip
        assert found.removesuffix(", _rescued_data STRING") == "id BIGINT, day BIGINT, n DOUBLE, code STRING"


def test_names_of_our_own_columns_in_the_data_stop_no_stream(place: Place) -> None:
    """As where such a column comes later. Kept in schemaLocation, it would end each start."""
    ours = {"_metadata": {"bundled": []}, "_Rescued_data": 2, "_corrupt_record": 3}
    place.publish(place.put("in/1.json", {"id": 1, **ours}))
    assert place.columns() == "id BIGINT, _rescued_data STRING"
    hinted = place.columns(schemaLocation=f"{place.root}/other", schemaHints="_metadata STRUCT<file_path: STRING>")
    assert hinted == "id BIGINT, _metadata STRUCT<file_path: STRING>, _rescued_data STRING"


def test_messages_are_samples_of_themselves(place: Place) -> None:
    place.publish({"id": 1}, b"no JSON", {"at": {"x": 1.5}})
    columns = place.columns(content="message", allowedPrefixes=None)
    assert columns == "id BIGINT, at STRUCT<x: DOUBLE>, _rescued_data STRING"


def test_without_a_place_to_keep_it_nothing_is_inferred_but_what_is_always_the_same(place: Place) -> None:
    with pytest.raises(OptionError, match=r"schemaLocation.*declare them with \.schema"):
        place.columns(schemaLocation=None)
    assert place.columns(schemaLocation=None, fileFormat="text") == "value STRING"
    binary = place.columns(schemaLocation=None, fileFormat="binaryFile", partitionColumns="day", schemaHints="day DATE")
    assert binary == "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY, day DATE"


def test_modes_that_contradict_the_other_options_are_refused(place: Place) -> None:
    for mode in ("addNewColumns", "addNewColumnsWithTypeWidening"):
        with pytest.raises(OptionError, match=f"schemaEvolutionMode.*{mode} widens an inferred schema"):
            place.columns(schemaLocation=None, schemaEvolutionMode=mode)


SCHEMA = pa.schema([("id", pa.int64()), ("_rescued_data", pa.string())])


def read(task: Work, schema: pa.Schema = SCHEMA) -> tuple[list[dict[str, Any]], list[ErrorRecord]]:
    reported: list[ErrorRecord] = []
    rows = [row for batch in read_pieces(task, schema, reported.extend) for row in batch.to_pylist()]
    return rows, reported


def test_new_columns_of_all_that_a_task_reads_are_kept_at_once(place: Place) -> None:
    uris = [place.put(f"{number}.json", {"id": number, f"c{number}": "x"}) for number in range(3)]
    task = place.work([Content(uri, uri) for uri in uris])
    for _ in range(2):  # tasks are tried again, and many of them meet the same
        with pytest.raises(SchemaChanged, match=r"c0 STRING, c1 STRING, c2 STRING; version 0 in .* start the query"):
            read(task)
    assert place.kept() == "0: id BIGINT, c0 STRING, c1 STRING, c2 STRING"


def test_messages_with_new_columns_widen_the_schema_too(place: Place) -> None:
    bodies = [b'{"id": 1}', b'{"id": 2, "new": 1}', b'{"id": 2, "new": 1.5, "other": true}']
    contents = [
        Content(f"m{at}", "message:", message_id=f"m{at}", payload=Payload(body, f"m{at}"))
        for at, body in enumerate(bodies)
    ]
    with pytest.raises(SchemaChanged, match="new DOUBLE, other BOOLEAN; version 0"):
        read(place.work(contents, content="message"))
    assert place.kept() == "0: id BIGINT, new DOUBLE, other BOOLEAN"


def test_fail_on_new_columns_keeps_nothing_and_the_other_modes_go_on(place: Place) -> None:
    uri = place.put("1.json", {"id": 1, "new": 5})
    with pytest.raises(SchemaChanged, match="new BIGINT; schemaEvolutionMode is failOnNewColumns"):
        read(place.work([Content(uri, uri)], schemaEvolutionMode="failOnNewColumns"))
    assert not (place.root / "schemas").exists()
    ((row,), errors) = read(place.work([Content(uri, uri)], schemaEvolutionMode="rescue"))
    assert json.loads(row["_rescued_data"]) == {"new": 5, "_file_path": uri}
    ((row,), _) = read(place.work([Content(uri, uri)], schemaEvolutionMode="none"), pa.schema([SCHEMA.field(0)]))
    assert (row, errors) == ({"id": 1}, [])


WIDENING = {"schemaEvolutionMode": "addNewColumnsWithTypeWidening"}


def put_table(place: Place, name: str, table: pa.Table) -> Content:
    path = place.root / name
    pq.write_table(table, path)
    return Content(path.as_uri(), path.as_uri())


def declared(place: Place, **options: str) -> pa.Schema:
    return parse_columns(place.columns(**options))


def test_wider_types_of_files_are_kept_and_read_after_a_restart(place: Place) -> None:
    options = {**WIDENING, "fileFormat": "parquet"}
    narrow = pa.table(
        {"id": pa.array([1], pa.int32()), "d": pa.array([1], pa.date32()), "f": pa.array([0.5], pa.float32())}
    )
    first = put_table(place, "1.parquet", narrow)
    place.publish(first.uri)
    schema = declared(place, **options)
    assert read(place.work([first], **options), schema)[0] == narrow.to_pylist()
    wide = pa.table({"id": [1 << 40], "d": pa.array([1], pa.timestamp("us")), "f": [0.1], "new": ["x"]})
    second = put_table(place, "2.parquet", wide)
    for _ in range(2):
        with pytest.raises(SchemaChanged, match="id BIGINT, d TIMESTAMP_NTZ, f DOUBLE, new STRING"):
            read(place.work([first, second], **options), schema)
    schema = declared(place, **options)
    assert format_columns(schema).replace("`", "") == "id BIGINT, d TIMESTAMP_NTZ, f DOUBLE, new STRING"
    (before, after), errors = read(place.work([first, second], **options), schema)
    assert (after, errors) == (wide.to_pylist()[0], [])
    assert (before["id"], before["d"], before["f"]) == (1, datetime(1970, 1, 2), 0.5)
    # whatever the mode is from then on
    assert declared(place, fileFormat="parquet", rescuedDataColumn="r").field("id").type == pa.int64()


def test_a_wider_type_alone_is_noticed_in_any_depth(place: Place) -> None:
    options = {**WIDENING, "fileFormat": "parquet"}
    narrow, wide = (
        pa.struct([("l", pa.list_(kind)), ("m", pa.map_(pa.string(), kind))]) for kind in (pa.int16(), pa.int32())
    )
    row = [{"l": [7], "m": [("k", 8)]}]
    first = put_table(place, "1.parquet", pa.table({"s": pa.array(row, narrow)}))
    place.publish(first.uri)
    schema = declared(place, **options)
    second = put_table(place, "2.parquet", pa.table({"s": pa.array(row, wide)}))
    with pytest.raises(SchemaChanged, match=r"s\.l\.element INT, s\.m\.value INT; version 1"):
        read(place.work([second], **options), schema)
    rows, errors = read(place.work([first, second], **options), declared(place, **options))
    assert (rows, errors) == ([{"s": row[0]}] * 2, [])


@pytest.mark.parametrize(
    ("value", "column"),
    [(1.5, "n DOUBLE"), (1 << 31, "n BIGINT"), (-(1 << 31) - 1, "n BIGINT"), (1 << 63, "n DECIMAL(38, 0)")],
)
def test_a_number_alone_is_noticed(place: Place, value: float, column: str) -> None:
    options = {**WIDENING, "schemaHints": "n INT"}
    place.publish(place.put("1.json", {"n": 1}))
    schema = declared(place, **options)
    uri = place.put("2.json", {"n": value})
    with pytest.raises(SchemaChanged, match=f"{re.escape(column)}; version 1"):
        read(place.work([Content(uri, uri)], **options), schema)
    ((row,), errors) = read(place.work([Content(uri, uri)], **options), declared(place, **options))
    assert (row["n"], errors) == (value, [])


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ({"s": {"x": 1}}, {"s": [{"y": 1}]}, {"schemaEvolutionMode": "addNewColumns"}),
        ({"s": {"x": 1}}, {"s": {"x": 2}, "S": {"y": 1}}, {"schemaEvolutionMode": "addNewColumns"}),
        ({"n": 1}, {"n": [1 << 63]}, WIDENING),
        ({"n": [1]}, {"n": [1 << 63, 1.5]}, WIDENING),
        ({"l": [{"n": 1}]}, {"l": [{"n": 1 << 63}, {"n": "x"}]}, WIDENING),
    ],
)
def test_a_value_that_no_wider_schema_has_room_for_does_not_end_each_start(
    place: Place, first: dict[str, Any], second: dict[str, Any], options: dict[str, str]
) -> None:
    place.publish(place.put("1.json", first))
    schema = declared(place, **options)
    uri = place.put("2.json", second)
    ((row,), _) = read(place.work([Content(uri, uri)], **options), schema)
    assert json.loads(row["_rescued_data"])["_file_path"] == uri


@pytest.mark.parametrize("mode", ["rescue", "addNewColumns", "addNewColumnsWithTypeWidening"])
def test_a_name_that_is_no_text_is_rescued_as_it_was_written(place: Place, mode: str) -> None:
    path = place.root / "1.json"
    path.write_text('{"id": 1, "\\ud800": 5}\n{"id": 2}\n')
    rows, errors = read(place.work([Content(path.as_uri(), path.as_uri())], schemaEvolutionMode=mode))
    assert [row["id"] for row in rows] == [1, 2]
    assert (json.loads(rows[0]["_rescued_data"])["\ud800"], errors) == (5, [])


def test_a_column_without_a_name_is_kept_and_read(place: Place) -> None:
    place.publish(place.put("1.json", {"id": 1}))
    declared(place)
    uri = place.put("2.json", {"id": 2, "": {"": 5}})
    with pytest.raises(SchemaChanged, match="version 1"):
        read(place.work([Content(uri, uri)]))
    schema = inferred_schema(parse_reader_options(place.given))
    assert format_columns(schema) == "`id` BIGINT, `` STRUCT<``: BIGINT>, `_rescued_data` STRING"
    ((row,), errors) = read(place.work([Content(uri, uri)]), schema)
    assert (row[""], errors) == ({"": 5}, [])


@pytest.mark.parametrize(
    ("first", "second", "other", "options"),
    [
        ({"s": {"x": 1}}, {"s": {"y": 1}}, {"s": "text"}, {"schemaEvolutionMode": "addNewColumns"}),
        ({"n": 1}, {"n": 1 << 63}, {"n": 2}, {**WIDENING, "inferColumnTypes": "false", "schemaHints": "n BIGINT"}),
        ({"s": {"x": 1}}, {"s": {"x": 1, "y": 1}}, {"x": 1}, {"schemaHints": "s STRUCT<x: INT>"}),
        ({"x": 1}, {"s": {"y": 1}}, {"x": 2}, {"inferColumnTypes": "false", "schemaHints": "s STRUCT<x: INT>"}),
    ],
)
def test_the_next_start_has_room_for_what_was_noticed(
    place: Place, first: dict[str, Any], second: dict[str, Any], other: dict[str, Any], options: dict[str, str]
) -> None:
    place.publish(place.put("1.json", first))
    contents = [Content(uri, uri) for uri in (place.put("2.json", second), place.put("3.json", other))]
    with pytest.raises(SchemaChanged, match=r"lacks: \S.*; version 1"):
        read(place.work(contents, **options), declared(place, **options))
    rows, _ = read(place.work(contents, **options), declared(place, **options))
    assert len(rows) == 2


def test_a_file_whose_columns_differ_in_case_alone_is_bad_and_ends_no_start(place: Place) -> None:
    options = {**WIDENING, "fileFormat": "parquet"}
    place.publish(put_table(place, "1.parquet", pa.table({"id": pa.array([1], pa.int32())})).uri)
    schema = declared(place, **options)
    second = put_table(place, "2.parquet", pa.table({"Id": pa.array([1], pa.int32()), "ID": [1 << 40]}))
    rows, (error,) = read(place.work([second], **options), schema)
    assert (rows, error.cause) == ([], "wrong-columns")


def test_keys_of_maps_do_not_become_wider(place: Place) -> None:
    options = {**WIDENING, "fileFormat": "parquet"}
    narrow, wide = (pa.map_(kind, pa.int64()) for kind in (pa.int32(), pa.int64()))
    place.publish(put_table(place, "1.parquet", pa.table({"m": pa.array([[(1, 1)]], narrow)})).uri)
    second = put_table(place, "2.parquet", pa.table({"m": pa.array([[(2, 2)]], wide)}))
    rows, errors = read(place.work([second], **options), declared(place, **options))
    assert (rows, errors) == ([{"m": [(2, 2)]}], [])


def test_types_stay_without_the_mode_that_widens_them(place: Place) -> None:
    first = put_table(place, "1.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    place.publish(first.uri)
    schema = declared(place, fileFormat="parquet")
    second = put_table(place, "2.parquet", pa.table({"id": [1 << 40]}))
    assert [error.cause for error in read(place.work([second], fileFormat="parquet"), schema)[1]] == ["corrupt-object"]


def test_numbers_of_json_widen_from_where_hints_let_them_begin(place: Place) -> None:
    options = {**WIDENING, "schemaHints": "n INT, s.n SMALLINT, l ARRAY<INT>, f INT"}
    place.publish(place.put("1.json", {"n": 1, "id": 1}))
    schema = declared(place, **options)
    assert str(schema.field("n").type) == "int32"
    fits, wide = (
        place.put("2.json", {"n": 2, "l": [5], "f": 1}),
        place.put("3.json", {"n": 1 << 40, "id": 1 << 70, "s": {"n": 40_000}, "l": [1, 1 << 33], "f": 1.5}),
    )
    contents = [Content(uri, uri) for uri in (fits, wide)]
    with pytest.raises(SchemaChanged, match="n BIGINT, id DECIMAL"):
        read(place.work(contents, **options), schema)
    schema = declared(place, **options)
    assert format_columns(schema).replace("`", "") == (
        "n BIGINT, id DECIMAL(38, 0), s STRUCT<n: BIGINT>, l ARRAY<BIGINT>, f DOUBLE, _rescued_data STRING"
    )
    rows, errors = read(place.work(contents, **options), schema)
    assert [(row["n"], row["l"], row["f"]) for row in rows] == [(2, [5], 1.0), (1 << 40, [1, 1 << 33], 1.5)]
    assert (rows[1]["id"], rows[1]["s"], errors) == (1 << 70, {"n": 40_000}, [])


def test_a_number_that_no_wider_type_has_is_rescued_and_ends_nothing(place: Place) -> None:
    place.publish(place.put("1.json", {"id": 1}))
    schema = declared(place, **WIDENING)
    uri = place.put("2.json", {"id": 1.5})
    ((row,), errors) = read(place.work([Content(uri, uri)], **WIDENING), schema)
    assert (row["id"], json.loads(row["_rescued_data"])["id"], errors) == (None, 1.5, [])


def test_what_other_samples_have_does_not_hinder_what_was_noticed(place: Place) -> None:
    """Of all samples together `n` would be a STRING, which BIGINT does not become: each start would end the same."""
    place.publish(place.put("1.json", {"n": 1}))
    schema = declared(place, **WIDENING)
    uris = [place.put("2.json", {"n": 1 << 70}), place.put("3.json", {"n": "text"})]
    contents = [Content(uri, uri) for uri in uris]
    with pytest.raises(SchemaChanged, match="n DECIMAL"):
        read(place.work(contents, **WIDENING), schema)
    rows, errors = read(place.work(contents, **WIDENING), declared(place, **WIDENING))
    assert [row["n"] for row in rows] == [1 << 70, None]
    assert (json.loads(rows[1]["_rescued_data"])["n"], errors) == ("text", [])


def test_a_bad_message_keeps_its_body_in_its_error(place: Place) -> None:
    contents = [
        Content(f"q/m{at}", "message:", queue="q", message_id=f"m{at}", payload=Payload(body, f"m{at}"))
        for at, body in enumerate([b'{"id": 1}', b"no", b'{"id": 2}'])
    ]
    rows, (error,) = read(place.work(contents, content="message", mode="FAILFAST"))
    assert [row["id"] for row in rows] == [1, 2]
    assert (error.scope, error.cause, error.subject, error.message_id, error.input) == (
        "object", "corrupt-object", "q/m1", "m1", b"no",
    )  # fmt: skip
    rows, (error,) = read(place.work(contents, content="message"))
    assert ([row["id"] for row in rows], error.scope, error.input) == ([1, 2], "object", b"no")
    rows, (error,) = read(place.work(contents, content="message", mode="DROPMALFORMED"))
    assert [row["id"] for row in rows] == [1, 2]
    assert (error.scope, error.position, error.input) == ("record", position_at(0), b"no")
    with pytest.raises(BadObject):
        read(place.work(contents, content="message", mode="FAILFAST", onCorruptObject="fail"))


def test_the_first_message_of_a_queue_is_waited_for_and_given_back(place: Place) -> None:
    uri = place.put("1.json", {"id": 1})
    sender = threading.Timer(0.5, place.publish, [uri])
    sender.start()
    assert place.columns(waitTime="30s") == "id BIGINT, _rescued_data STRING"
    sender.join()
    with open_queue(place.queue) as queue:
        assert (queue.depth().ready, queue.depth().in_flight) == (1, 0)


def test_messages_of_sqs_are_back_at_once(place: Place, ministack_url: str) -> None:
    url = new_queue(ministack_url)
    place.given |= {
        "queueUrl": url,
        "sqs.accessKeyId": "test",
        "sqs.secretAccessKey": "test",
        "sqs.region": "us-east-1",
    }
    with open_queue(url, **KEYS) as queue:
        queue.publish([place.put(f"{number}.json", {"id": number}) for number in range(3)])
        assert place.columns(source="files") == "id BIGINT, _rescued_data STRING"
        assert (queue.depth().ready, queue.depth().in_flight) == (3, 0)


def test_what_another_reader_holds_of_sqs_is_counted_where_nothing_is_left_to_infer_from(
    place: Place, ministack_url: str
) -> None:
    """And is a sample as soon as the store knows it, as it does of what a start that failed had opened."""
    url = new_queue(ministack_url)
    place.given |= {"queueUrl": url, "sqs.region": "us-east-1", "source": "files", "waitTime": "0s"}
    place.given |= {"sqs.accessKeyId": "test", "sqs.secretAccessKey": "test"}
    uri = place.put("1.json", {"id": 1})
    with open_queue(url, **KEYS) as queue:
        queue.publish([uri])
        assert len(queue.receive(10, 60, 1)) == 1
        with pytest.raises(OptionError, match=r"1 message\(s\) are in flight.*\(visibilityTimeout, 5m by.*publish a"):
            place.columns()
        with open_store(place.given["store"]) as store:
            store.open_shards(store.start("files", "p").token, "files", [Content(uri, uri, 10)])
        assert place.columns() == "id BIGINT, _rescued_data STRING"


def test_a_queue_that_does_not_say_what_is_in_flight_does_not_hide_what_to_do(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(queue: SqlQueue) -> Depth:
        raise QueueUnavailable("files", "may not be asked for its depth")

    monkeypatch.setattr(SqlQueue, "depth", refused)
    with pytest.raises(OptionError, match=r"nothing to infer the columns from.*: publish a message"):
        place.columns()
