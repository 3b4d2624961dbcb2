"""What hostile objects leave behind in a process harms no honest object after them, and lets no other take more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc

from queue_source.formats.base import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.schema.columns import parse_columns
from queue_source.storage.memory import LEAST
from support.hostile.typed import objects

_ROWS = 500_000
_MEMORY = (512 + 280) << 20
"""Bytes of a process that reads one of them: the limit, what the process has by itself, and rows that are held."""
_UNFAIR = "no fair trial"
_READ = """
import json
import sys
from pathlib import Path
from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.schema.columns import parse_columns

found = []
for name, ddl in json.loads(sys.argv[1]) * 2:
    options = FormatOptions(name.rpartition(".")[2], max_decode_memory=384 << 20)
    rows, cause = 0, ""
    try:
        for batch in read_object(f"{sys.argv[2]}/{name}", parse_columns(ddl), options, BadRecords("FAILFAST")):
            rows += batch.num_rows
    except BadObject as error:
        cause = error.cause
    except MemoryError:
        cause = "no fair trial"  # Spark starts another worker
    found.append((name, cause, rows))
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10
print(json.dumps([found, peak]))
"""


def _read(schemas: list[tuple[str, str]], folder: Path) -> tuple[list[list[Any]], int]:
    """Read the objects twice, in a process of its own; return what was found of each, and the process's peak in MB."""
    command = [sys.executable, "-c", _READ, json.dumps(schemas), str(folder)]
    found, peak = json.loads(subprocess.run(command, check=True, timeout=300, capture_output=True).stdout)
    return found, peak


def test_honest_objects_are_read_after_all_hostile_ones_and_memory_does_not_grow(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    table = pa.table({"a": np.arange(_ROWS), "b": [f"{n:020}" for n in range(_ROWS)]})
    pq.write_table(table, tmp_path / "honest.parquet")
    orc.write_table(table, tmp_path / "honest.orc")
    schemas, causes = [], {"honest.parquet": "", "honest.orc": ""}
    for one in objects(tmp_path):
        if one.cause and one.cause != "kills-its-reader":
            (tmp_path / one.name).write_bytes(one.data)
            schemas.append((one.name, one.options["schema"]))
            causes[one.name] = one.cause
    schemas += [("honest.parquet", "a BIGINT, b STRING"), ("honest.orc", "a BIGINT, b STRING")]
    found, peak = _read(schemas, tmp_path)
    first, again = found[: len(schemas)], found[len(schemas) :]
    unfair = [schema for schema, (_, cause, _) in zip(schemas, first, strict=True) if cause == _UNFAIR]
    assert len(unfair) <= 2, unfair  # what the process freed is in pieces: of which size, its threads decide
    for schema in unfair:  # as Spark does, which starts another worker
        (anew, _), _ = _read([schema], tmp_path)
        first[schemas.index(schema)] = anew
    assert {name: (cause, rows) for name, cause, rows in first} == {
        name: (cause, 0 if cause else _ROWS) for name, cause in causes.items()
    }
    assert [(bool(cause), rows) for _, cause, rows in again] == [(bool(cause), rows) for _, cause, rows in first]
    assert peak < 2 * 384 + 256, peak


def test_what_is_large_and_good_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Each in a process of its own: all of them together are more than one worker may have."""
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    every = objects(tmp_path)
    good = [hostile for hostile in every if not hostile.cause]
    assert (len(good), len(every)) == (3, 18)
    for hostile in good:
        path = tmp_path / hostile.name
        path.write_bytes(hostile.data)
        command = [sys.executable, "-m", "support.hostile.reading_typed", str(path), hostile.file_format]
        done = subprocess.run(
            [*command, hostile.options["schema"], hostile.options["maxDecodeMemory"]], capture_output=True, text=True,
            cwd=Path(__file__).parents[1], check=True, timeout=120,
        )  # fmt: skip
        cause, rows, memory, _ = done.stdout.removesuffix("\n").split("\t")
        assert (cause, int(rows) > 0, int(memory) < _MEMORY) == ("", True, True), hostile.name


@pytest.mark.parametrize("file_format", ["parquet", "orc", "csv"])
def test_an_honest_file_of_two_million_rows_is_read_within_the_smallest_limit(file_format: str, tmp_path: Path) -> None:
    rows = 2_000_000
    numbers = pa.array(np.arange(rows))
    table = pa.table({"a": numbers, "b": pc.binary_join_element_wise("name", numbers.cast(pa.string()), " ")})
    path = tmp_path / f"honest.{file_format}"
    if file_format == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif file_format == "orc":
        orc.write_table(table, path)
    else:
        csv.write_csv(table, path, csv.WriteOptions(include_header=False))
    options = FormatOptions(file_format, max_decode_memory=LEAST)
    batches = read_object(str(path), parse_columns("a BIGINT, b STRING"), options, BadRecords("FAILFAST"))
    assert sum(batch.num_rows for batch in batches) == rows
