"""What is small as an object and large as rows ends as a bad object, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.hostile.typed import objects

_MEMORY = (512 + 280) << 20
"""Bytes of a process that reads one of them: the limit, what the process has by itself, and rows that are held."""


def test_each_hostile_object_is_refused_with_its_cause_or_read_in_bounded_memory(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    found: dict[str, tuple[str, bool, bool]] = {}
    expected: dict[str, tuple[str, bool, bool]] = {}
    for hostile in objects(tmp_path):
        path = tmp_path / hostile.name
        path.write_bytes(hostile.data)
        command = [sys.executable, "-m", "support.hostile.reading_typed", str(path), hostile.file_format]
        done = subprocess.run(
            [*command, hostile.options["schema"], hostile.options["maxDecodeMemory"]], capture_output=True, text=True,
            cwd=Path(__file__).parents[2], check=True, timeout=120,
        )  # fmt: skip
        cause, rows, memory, _ = done.stdout.removesuffix("\n").split("\t")
        found[hostile.name] = (cause, rows == "0", int(memory) < _MEMORY)
        expected[hostile.name] = (hostile.cause, bool(hostile.cause), True)
    assert found == expected
    assert len(found) == 18
