"""Tests share compiled statements between engines that compile alike, and between no others."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from support.compiled_statements import SharedStatements


def key(dialect: Dialect, *rest: Any) -> tuple[Any, ...]:
    return (dialect, *(rest or ("a statement", (), False, False)))


def of_version(*version: int) -> Dialect:
    dialect: Dialect = mysql.dialect()
    dialect.server_version_info = version
    return dialect


def test_another_engine_of_the_same_kind_finds_what_is_compiled() -> None:
    shared = SharedStatements()
    shared[key(sqlite.dialect())] = "compiled"
    assert shared.get(key(sqlite.dialect())) == "compiled"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (key(sqlite.dialect()), key(postgresql.dialect())),  # type: ignore[no-untyped-call]
        (key(of_version(8, 0)), key(of_version(8, 4))),
        (key(sqlite.dialect(paramstyle="qmark")), key(sqlite.dialect(paramstyle="named"))),
        (key(sqlite.dialect()), key(sqlite.dialect(), "a statement", ("column",), False, False)),
    ],
    ids=["dialects", "versions", "parameters", "columns"],
)
def test_what_compiles_to_something_else_is_not_shared(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    shared = SharedStatements()
    shared[first] = "compiled"
    assert shared.get(second) is None


def test_the_engines_of_this_process_share() -> None:
    compiled = []
    table = sa.table("t", sa.column("only_here"))

    @sa.event.listens_for(sa.engine.Engine, "after_execute")
    def note(connection: sa.engine.Connection, statement: Any, *_: Any) -> None:
        compiled.append(connection.get_execution_options()["compiled_cache"])

    try:
        for _ in range(2):
            engine = sa.create_engine("sqlite://")
            with engine.connect() as connection:
                connection.exec_driver_sql("CREATE TABLE t (only_here INTEGER)")
                connection.execute(sa.select(table))
            engine.dispose()
    finally:
        sa.event.remove(sa.engine.Engine, "after_execute", note)
    assert len(compiled) == 2
    assert compiled[0] is compiled[1]
