"""What hostile objects leave behind in a process harms no honest object after them, and lets no other take more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc

from queue_source.formats.bad_records import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.schema.ddl import parse_columns
from queue_source.storage.memory import LEAST
from support.hostile.typed import objects

_ROWS = 500_000
_READ = """
import json
import sys
from pathlib import Path
from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.schema.ddl import parse_columns

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


def test_honest_objects_are_read_after_all_hostile_ones_and_memory_does_not_grow(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    table = pa.table({"a": np.arange(_ROWS), "b": [f"{n:020}" for n in range(_ROWS)]})
    pq.write_table(table, tmp_path / "honest.parquet")
    orc.write_table(table, tmp_path / "honest.orc")
    schemas = []
    for one in objects(tmp_path):
        if one.cause:
            (tmp_path / one.name).write_bytes(one.data)
            schemas.append((one.name, one.options["schema"]))
    schemas += [("honest.parquet", "a BIGINT, b STRING"), ("honest.orc", "a BIGINT, b STRING")]
    done = subprocess.run(
        [sys.executable, "-c", _READ, json.dumps(schemas), str(tmp_path)], check=True, timeout=300, capture_output=True
    )
    found, peak = json.loads(done.stdout)
    assert "no fair trial" not in [cause for _, cause, _ in found[: len(schemas)]]
    for name, cause, rows in found:
        honest = name.startswith("honest")
        assert (cause == "", rows) == (honest, _ROWS if honest else 0), (name, cause)
    assert peak < 2 * 384 + 256, peak


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
