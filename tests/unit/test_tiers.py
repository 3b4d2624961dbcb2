"""What `make test` runs with a real Spark is there: a renamed test would become thorough, and nobody would see."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.tiers import ALSO_ON_POSTGRESQL, WITH_SPARK

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("file", WITH_SPARK)
def test_every_test_that_make_test_runs_with_spark_is_there(file: str) -> None:
    tree = ast.parse((TESTS / "engine" / file).read_text("utf-8"))
    assert WITH_SPARK[file] <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_contracts_that_run_on_postgresql_too_are_there() -> None:
    assert {path.name for path in (TESTS / "contracts").glob("test_*.py")} >= ALSO_ON_POSTGRESQL
