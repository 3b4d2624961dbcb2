"""What is small as an object and large as rows ends as a bad object, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.hostile.typed import objects

_MEMORY = 450 << 20
"""Bytes of a process that reads one of them; a worker of Spark has about 100 MB more for Spark itself."""


def test_each_hostile_object_is_refused_with_its_cause_in_bounded_memory(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    found: dict[str, tuple[str, int, bool]] = {}
    for hostile in objects(tmp_path):
        path = tmp_path / hostile.name
        path.write_bytes(hostile.data)
        command = [sys.executable, "-m", "support.hostile.reading_typed", str(path), hostile.file_format]
        done = subprocess.run(
            [*command, hostile.options["schema"]], capture_output=True, text=True, cwd=Path(__file__).parents[2],
            check=True, timeout=120,
        )  # fmt: skip
        cause, rows, memory, _ = done.stdout.strip().split("\t")
        found[hostile.name] = (cause, int(rows), int(memory) < _MEMORY)
    assert found == dict.fromkeys(found, ("corrupt-object", 0, True))
    assert len(found) == 17
