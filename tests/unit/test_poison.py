"""The poison corpus, in every mode: nothing crashes, every fault is told, and good neighbours are read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.formats import compression
from queue_source.options import parse_reader_options
from queue_source.read.partitions import PlanStore, whole_pieces
from queue_source.read.task import Work, read_pieces
from shard_store.model import BEGINNING, Content, ErrorRecord, PlanIdentity, PublishToken, Range, end_at, shard_key
from support.poison import BOMB, SCHEMA, Poison, corpus, good
from support.sessions import LEAST

IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)


@cache
def poisons() -> dict[str, Poison]:
    return {f"{poison.file_format}: {poison.name}": poison for poison in corpus()}


def read(paths: list[Path], file_format: str, mode: str) -> tuple[list[dict[str, object]], list[ErrorRecord]]:
    modes = {} if file_format in ("parquet", "orc", "avro") else {"mode": mode}
    parsed = parse_reader_options({**LEAST, "fileFormat": file_format, **modes})
    ranges = []
    for path in paths:
        size = path.stat().st_size
        content = Content(str(path), str(path), size)
        ranges.append(Range(shard_key("files", str(path)), content, BEGINNING, end_at(size)))
    errors: list[ErrorRecord] = []
    schema = pa.schema([("value", pa.string())]) if file_format == "text" else SCHEMA
    work = Work(IDENTITY, whole_pieces(ranges), parsed.content, PlanStore(parsed.store, "never opened"))
    batches = list(read_pieces(work, schema, errors.extend))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()], errors


@pytest.mark.parametrize("name", poisons())
def test_a_bad_object_is_told_in_every_mode_and_its_neighbours_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", BOMB // 2)
    poison = poisons()[name]
    first, bad, last = (tmp_path / f"{place} {poison.name}" for place in ("1", "2", "3"))
    for path in (first, last):  # under names that say nothing of a codec
        path.with_suffix("").write_bytes(good(poison.file_format))
    bad.write_bytes(poison.data)
    neighbour = {"value": "good"} if poison.file_format == "text" else {"id": 7, "name": "good"}
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        rows, errors = read([first.with_suffix(""), bad, last.with_suffix("")], poison.file_format, mode)
        assert (rows[0], rows[-1]) == (neighbour, neighbour)
        assert {error.subject for error in errors} <= {str(bad)}
        whole = [error for error in errors if error.scope == "object"]
        if poison.verdict == "fine":
            assert not errors, errors[0].detail
        elif poison.verdict == "object" or mode == "FAILFAST" or (poison.verdict, mode) == ("no records", "PERMISSIVE"):
            assert len(whole) == 1
            assert len(rows) == 2
        else:
            assert errors
            assert not whole, whole[0].detail
        if poison.verdict != "fine":
            assert all(error.detail for error in errors)


def test_the_corpus_is_large_and_of_all_formats() -> None:
    assert len(poisons()) >= 60
    assert {poison.file_format for poison in poisons().values()} == {"csv", "json", "text", "parquet", "orc", "avro"}
