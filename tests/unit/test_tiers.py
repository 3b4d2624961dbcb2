"""What `make test` runs with a real Spark is there: a renamed test would become thorough, and nobody would see."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.tiers import ALSO_ON_POSTGRESQL, LONG, OF_DOCS, WITH_SPARK

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("file", WITH_SPARK)
def test_every_test_that_make_test_runs_with_spark_is_there(file: str) -> None:
    tree = ast.parse((TESTS / "engine" / file).read_text("utf-8"))
    names = {name.partition("[")[0] for name in WITH_SPARK[file]}
    assert names <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("folder", "files"), [("contracts", ALSO_ON_POSTGRESQL), ("docs", OF_DOCS), *LONG.items()])
def test_the_files_that_are_named_of_a_folder_are_there(folder: str, files: set[str]) -> None:
    assert {path.name for path in (TESTS / folder).glob("test_*.py")} >= files
