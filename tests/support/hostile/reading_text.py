"""Reads hostile csv, json and text in a process of its own, and prints a line of JSON for each object."""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, check_schema
from queue_source.options import parse_reader_options
from queue_source.read.objects import read_object
from queue_source.schema.columns import parse_columns
from support.hostile.text import objects


def main(folder: Path, only: str) -> None:
    for hostile in objects(folder):
        if only not in hostile.name:
            continue
        path = folder / hostile.name
        path.write_bytes(hostile.data)
        options = {"queueUrl": "sim://q", "fileFormat": hostile.file_format, "allowedPrefixes": "file:///"}
        given = {name: value for name, value in hostile.options.items() if name != "schema"}
        content = parse_reader_options({**options, **given}).content.format
        assert content is not None
        schema = parse_columns(hostile.options["schema"])
        check_schema(schema, content)
        problems = BadRecords(content.mode)
        begun, rows, cause, detail = time.monotonic(), 0, "", ""
        try:
            for batch in read_object(path.as_uri(), schema, content, problems):
                rows += batch.num_rows
            if problems.count:
                cause, detail = "bad-record", problems.reported[0].reason
        except BadObject as error:
            cause, detail = error.cause, error.detail
        taken = time.monotonic() - begun
        path.unlink()
        gc.collect()
        # not `ru_maxrss`, which begins with that of the process that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii")
        peak = int(status.partition("VmHWM:")[2].split()[0]) >> 10
        found = {
            "name": hostile.name, "size": len(hostile.data), "expected": hostile.cause, "cause": cause, "rows": rows,
            "detail": detail[:200], "seconds": round(taken, 1), "peak": peak,
        }  # fmt: skip
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
