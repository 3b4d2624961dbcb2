"""What an object decodes to is counted table by table, and rows of text are handed on before they are too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject
from queue_source.formats import typed as typed_tables
from queue_source.formats.base import BadRecords
from queue_source.formats.text import records
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv import CsvReader
from queue_source.formats.text.json import JsonReader
from queue_source.formats.typed import Batches, Limits
from queue_source.options.content import FormatOptions

ROWS = 10_000
TABLE = pa.table({"a": pa.array(range(ROWS), pa.int64())})


def refused_after(tables: list[pa.Table]) -> int | None:
    """How many tables were let through, or None where all were."""
    counted = Limits(size=1, expansion=1)
    for place, table in enumerate(tables):
        try:
            assert counted.counted(table) is table
        except BadObject:
            return place
    return None


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_a_small_first_table_counts_as_all_others_do(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_tables, "_SMALL", small)
    monkeypatch.setattr(typed_tables, "ALWAYS_ALLOWED", 3 * TABLE.nbytes)
    assert refused_after([TABLE] * 3) is None
    assert refused_after([TABLE] * 4) == 3
    monkeypatch.setattr(typed_tables, "ALWAYS_ALLOWED", 1 << 30)
    monkeypatch.setattr(typed_tables, "ALWAYS_ALLOWED_ROWS", ROWS)
    assert refused_after([TABLE]) is None
    assert refused_after([TABLE, TABLE]) == 1
    monkeypatch.setattr(typed_tables, "ALWAYS_ALLOWED_ROWS", ROWS - 1)
    assert refused_after([TABLE]) == 0


def test_of_a_small_first_table_only_its_buffers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    nulls = pa.table({"a": pa.nulls(ROWS, pa.int64())})
    counted = Limits(size=1, expansion=1)
    counted.counted(nulls)
    assert (counted.rows, counted.decoded) == (ROWS, nulls.get_total_buffer_size())
    counted.counted(nulls)  # one that is not the first: nulls are no bytes
    assert (counted.rows, counted.decoded) == (2 * ROWS, nulls.get_total_buffer_size())
    monkeypatch.setattr(typed_tables, "_SMALL", nulls.get_total_buffer_size())
    counted = Limits(size=1, expansion=1)
    counted.counted(nulls)  # nor of a first one that is large
    assert (counted.rows, counted.decoded) == (ROWS, 0)


@pytest.mark.parametrize("row_size", [1, 100_000])
@pytest.mark.parametrize("room", [1, 700, 5_000, ROWS])
def test_where_memory_ends_batches_have_fewer_rows_and_each_row_comes_once(row_size: int, room: int) -> None:
    calls: list[int] = []

    def read(rows: int) -> Iterator[pa.Table]:
        calls.append(rows)
        for batch in TABLE.to_batches(max_chunksize=rows):
            if batch.num_rows > (room if batch["a"][0].as_py() else ROWS // 3):  # the first one is smaller
                raise MemoryError
            yield pa.Table.from_batches([batch])

    batches = Batches()
    for _ in range(2):
        found = list(batches.of(read, ROWS, row_size))
        assert pa.concat_tables(found).equals(TABLE)
    assert calls[-1] == calls[-2]  # what was learned is kept


def test_after_a_large_table_there_are_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_tables, "_LARGE", TABLE.nbytes // 3)
    monkeypatch.setattr(typed_tables, "ROWS", ROWS // 2)
    calls: list[int] = []

    def read(rows: int) -> Iterator[pa.Table]:
        calls.append(rows)
        for start in range(0, ROWS, rows):
            yield pa.table({"a": pa.array(range(start, min(start + rows, ROWS)), pa.int64())})

    found = list(Batches().of(read, ROWS, 1))
    assert pa.concat_tables(found).equals(TABLE)
    assert calls == [ROWS // 2, ROWS // 32]
    monkeypatch.setattr(typed_tables, "ROWS", ROWS)
    calls.clear()
    assert len(list(Batches().of(read, ROWS, 1))) == 1
    assert calls == [ROWS]  # none is left for fewer


def test_a_row_that_is_too_large_by_itself_is_for_no_batch() -> None:
    def read(rows: int) -> Iterator[pa.Table]:
        calls.append(rows)
        if rows:
            raise MemoryError
        yield TABLE

    calls: list[int] = []
    with pytest.raises(MemoryError):
        list(Batches().of(read, 100_000, 1))
    assert calls == [65_536, 4_096, 256, 16, 1]


SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize("reader", [CsvReader, JsonReader])
def test_rows_that_are_read_one_by_one_are_handed_on_before_they_are_too_many(
    reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "csv" if reader is CsvReader else "json"
    line = b"%d,x\n" if name == "csv" else b'{"a":%d,"b":"x"}\n'
    data = b"".join(line % n for n in range(10))
    for cells, sizes in ((9, [3, 3, 3, 1]), (10, [4, 4, 2]), (1 << 20, [10])):
        monkeypatch.setattr(records, "MAX_CELLS", cells)
        tables = list(reader(SCHEMA, FormatOptions(name), BadRecords("PERMISSIVE"), "uri").read_slowly(Block(0, data)))
        assert [table.num_rows for table in tables] == sizes
        assert pa.concat_tables(tables)["a"].to_pylist() == list(range(10))


def test_items_of_a_large_document_are_handed_on_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_CELLS", 9)
    monkeypatch.setattr(JsonReader, "_read_items_quickly", lambda *_: None)
    data = b"[" + b",".join(b'{"a":%d,"b":"x"}' % n for n in range(10)) + b"]"
    reader = JsonReader(SCHEMA, FormatOptions("json", multi_line=True), BadRecords("PERMISSIVE"), "uri")
    tables = reader._read_items(Block(0, data), data[1:-1].replace(b"},{", b"}\n{"))
    assert [table.num_rows for table in tables] == [3, 3, 3, 1]
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(10))
