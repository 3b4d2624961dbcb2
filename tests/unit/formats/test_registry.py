"""There is one registry of formats, and nothing else asks for a format's name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from queue_source.formats import base
from queue_source.formats.base import Format, format_named, halves, read_in_pieces
from queue_source.options.content import FILE_FORMATS, LINE_FORMATS

SOURCE = Path(base.__file__).parents[1]


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_a_format_is_found_by_its_own_name(name: str) -> None:
    format = format_named(name)
    assert isinstance(format, Format)
    assert format.name == name
    assert format is format_named(name)


@pytest.mark.parametrize("name", LINE_FORMATS)
def test_a_format_loads_no_library_of_another(name: str) -> None:
    code = (
        f"from queue_source.formats.base import format_named; format_named({name!r}); import sys; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow.parquet", "pyarrow.orc", "fastavro"} & set(loaded)


def test_no_module_above_the_options_compares_the_name_of_a_format() -> None:
    def compares(node: ast.AST) -> bool:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        return any(isinstance(side, ast.Attribute) and side.attr == "file_format" for side in sides)

    paths = [path for path in SOURCE.rglob("*.py") if path.parent.name != "options"]
    assert not [path for path in paths if any(map(compares, ast.walk(ast.parse(path.read_text("utf-8")))))]


@pytest.mark.parametrize("unusual", [set(), {0}, {7}, {3, 4}, set(range(10))])
def test_reading_in_pieces_leaves_only_what_is_unusual_and_keeps_the_order(unusual: set[int]) -> None:
    def read(numbers: list[int]) -> list[int] | None:
        return None if unusual.intersection(numbers) else numbers

    found = list(read_in_pieces(list(range(10)), read, halves, lambda one: one))  # type: ignore[arg-type]
    alone = [one for one in found if isinstance(one, int)]
    together = [number for one in found if isinstance(one, list) for number in one]
    assert set(alone) == unusual
    assert sorted(alone + together) == list(range(10))
    assert [one[0] if isinstance(one, list) else one for one in found] == sorted(
        one[0] if isinstance(one, list) else one for one in found
    )
