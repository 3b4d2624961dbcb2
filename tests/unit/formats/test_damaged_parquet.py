"""A Parquet object with a damaged footer is refused at once: it never ends the process that reads it.

Other processes read these, since one that ends would take all the tests with it.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject
from queue_source.formats import parquet as parquet_reader
from queue_source.formats.base import BadRecords, OpenObject, Part, format_of
from queue_source.options.content import FormatOptions
from queue_source.storage.open_files import InMemory, ObjectFile

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
TABLE = pa.table({"a": list(range(50)), "b": [f"text {i}" for i in range(50)]}, schema=SCHEMA)
FATAL = [
    (19, 36), (19, 38), (20, 0), (20, 3), (20, 18), (26, 0), (27, 36), (27, 38), (28, 0), (28, 3), (28, 18),
    (60, 3), (60, 18), (161, 3), (161, 18), (218, 9), (60, 9), (161, 9), (60, 0xFF), (161, 0xFF),
]  # fmt: skip
"""Places in the footer, and bytes there, with which an accessor of pyarrow 26 ends its process: levels that the
histograms do not fit, and codecs that there are not."""


def written(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, write_page_checksum=True, **options)
    return sink.getvalue()


def footer_of(data: bytes) -> int:
    """Where it begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def main() -> None:
    """What became of the object of these options with each damage: the cause of its refusal, or `rows`."""
    given = json.load(sys.stdin)
    parquet_reader.SMALL = given["small"]
    good = written(**given["options"])
    damaged = (good[:place] + bytes([byte]) + good[place + 1 :] for place, byte in given["damages"])
    json.dump([_read(data) for data in damaged], sys.stdout)


def _read(data: bytes) -> str:
    options = FormatOptions("parquet")
    source = OpenObject("", ObjectFile("", InMemory(data)), len(data))
    half = len(data) // 2
    try:
        format_of(options).infer(source, options, 0, types=True)
        for part in (Part(), Part(0, half), Part(half, None)):
            for table in format_of(options).open(source, part, SCHEMA, options, BadRecords("FAILFAST")).rows:
                table.validate(full=True)
    except BadObject as error:
        return error.cause
    return "rows"


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"compression": {"a": "gzip", "b": "zstd"}, "row_group_size": 20}])
def test_a_damaged_footer_is_refused_or_read_but_never_ends_the_process(options: dict[str, Any], small: int) -> None:
    good = written(**options)
    start = footer_of(good)
    random_ones = random.Random(20)
    damages = [(start + place, byte) for place, byte in FATAL]
    damages += [(random_ones.randrange(start, len(good)), random_ones.randrange(256)) for _ in range(400)]
    code = f"from {__name__} import main; main()"
    given = json.dumps({"options": options, "small": small, "damages": damages})
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, timeout=300, check=False,
        cwd=Path(__file__).parents[__name__.count(".")],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-300:]
    found = Counter(json.loads(done.stdout))
    assert set(found) <= {"rows", "corrupt-object", "wrong-columns"}
    assert found["corrupt-object"] > 200
    assert found["rows"] > 10
