"""Reads one object in a process of its own: prints cause, rows, the most memory that it took, and the reason."""

from __future__ import annotations

import sys
from pathlib import Path

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.options.types import parse_size
from queue_source.read.objects import read_object
from queue_source.schema.columns import parse_columns


def main(path: str, file_format: str, ddl: str, memory: str) -> None:
    rows, cause, detail = 0, "", ""
    options = FormatOptions(file_format, max_decode_memory=parse_size(memory))
    try:
        for batch in read_object(path, parse_columns(ddl), options, BadRecords("PERMISSIVE")):
            rows += batch.num_rows
    except BadObject as error:
        cause, detail = error.cause, " ".join(error.detail.split())
    # not `ru_maxrss`, which begins with that of the process that started this one
    status = Path("/proc/self/status").read_text(encoding="ascii")
    most = int(status.partition("VmHWM:")[2].split()[0]) << 10
    sys.stdout.write(f"{cause}\t{rows}\t{most}\t{detail}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
