"""Contract: what a running pipeline does costs the same after a year: no statement of it reads a whole table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.sql.database import Database
from support import store_year
from support.store_backends import StoreBackend
from support.store_year import Life

PART = 0.02
"""Of the year: 21,000 data files and 20,000 shards, enough for every planner to prefer an index where it has one."""
SMALL = {
    "cuesqueue_pipelines": "one row for each pipeline that ran within a year",
    "cuesqueue_leases": "one row for each source",
    "cuesqueue_alembic_version": "one row",
    "cuesqueue_schema": "one row",
    "cuesqueue_store": "one row",
    "cuesqueue_snapshots": "what is not confirmed",
    "cuesqueue_certificates": "one row for each prefix that is certified on a day",
    "cuesqueue_sources": "one row for each source",
    "cuesqueue_listings": "one row for each prefix that is listed",
}
PAGES = "a page of a view, which ends when it is full; the query continues after its last key"
ALLOWED = {("views", table): PAGES for table in ("shards", "attempts", "splits", "errors", "cleanings")}
ALLOWED["start", "errors"] = "once in a start: the errors of all pipelines that ran before, of which MariaDB reads most"
ALLOWED["start", "attempts"] = ALLOWED["start", "errors"]
"""(step, table) -> why a scan is right there."""

Statement = tuple[str, Any]


@contextmanager
def noting(database: Database, statements: list[Statement]) -> Iterator[None]:
    """Every statement that runs meanwhile, with its parameters (of many rows, the first)."""

    def note(_c: object, _cursor: object, text: str, parameters: Any, _context: object, many: bool) -> None:
        statements.append((text, parameters[0] if many else parameters))

    sa.event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", note)


def scanned(connection: Connection, text: str, parameters: Any) -> set[str]:
    """The tables that the database means to read from one end to the other for this statement."""
    if connection.dialect.name == "sqlite":
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters).all()
        scans = [re.match(r"SCAN (\w+)( USING (COVERING )?INDEX)?", row[3]) for row in plan]
        names = {scan[1] for scan in scans if scan is not None}
        return {real for name in names for real in [_real(text, name)] if real}
    if connection.dialect.name == "postgresql":
        (plan,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}", parameters).scalar_one()
        return set(_sequential(plan["Plan"]))
    if text.startswith("INSERT") and "SELECT" not in text:
        return set()  # MariaDB says ALL of what reads nothing
    rows = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).mappings().all()
    names = {row["table"] for row in rows if row["type"] in ("ALL", "index") and row["table"]}
    return {real for name in names for real in [_real(text, name)] if real}


def _real(text: str, name: str) -> str | None:
    """The table behind an alias, None for a derived one."""
    if name.startswith("cuesqueue_"):
        return name
    found = re.search(rf"(cuesqueue_\w+) AS {name}\b", text)
    return None if found is None else found[1]


def _sequential(node: dict[str, Any]) -> Iterator[str]:
    whole = node["Node Type"] == "Seq Scan"
    # an index that is read without a condition is read from one end to the other
    whole = whole or (node["Node Type"].startswith("Index") and "Index Cond" not in node)
    if whole and node.get("Relation Name", "").startswith("cuesqueue_"):
        yield node["Relation Name"]
    for child in node.get("Plans", ()):
        yield from _sequential(child)


def test_no_statement_of_a_running_pipeline_reads_a_whole_table(backend: StoreBackend) -> None:
    store = backend.open(clock=None)
    store_year.fill(store, PART)
    found: dict[tuple[str, str], str] = {}
    seen = 0
    for step, work in Life(store).steps():
        statements: list[Statement] = []
        with noting(store.database, statements):
            work()
        with store.database.begin() as connection:
            for text, parameters in statements:
                if "cuesqueue_" in text and text.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"):
                    seen += 1
                    for table in scanned(connection, text, parameters):
                        found[step, table] = text
    assert seen > 60
    left = {key: text for key, text in found.items() if key[1] not in SMALL}
    left = {key: text for key, text in left.items() if (key[0], key[1].removeprefix("cuesqueue_")) not in ALLOWED}
    assert left == {}, json.dumps({f"{step}: {table}": text for (step, table), text in left.items()}, indent=1)


# --- the work itself, counted and not timed ---


@contextmanager
def counted(database: Database, work: list[int]) -> Iterator[None]:
    """Instructions of SQLite's virtual machine; rows and index entries that PostgreSQL has read."""
    if database.dialect.name == "sqlite":
        with database.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
        steps = [0]

        def step() -> int:
            steps[0] += 1
            return 0

        raw.set_progress_handler(step, 10)
        yield
        raw.set_progress_handler(None, 0)
        work.append(steps[0] * 10)
        return
    before = _rows_read(database)
    yield
    work.append(_rows_read(database) - before)


def _rows_read(database: Database) -> int:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with database.engine.begin() as connection:
        tables = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
        entries = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
        return sum(int(connection.exec_driver_sql(query).scalar_one()) for query in (tables, entries))


def lived(backend: StoreBackend, part: float) -> dict[str, int]:
    """The work of each step, when everything is warm."""
    store = backend.open(clock=None)
    if part:
        store_year.fill(store, part)
    else:
        store_year.start(store)
    life = Life(store)
    for _, work in life.steps():
        work()
    store_year.analyse(store)
    found: dict[str, int] = {}
    for step, work in life.steps():
        amounts: list[int] = []
        store_year.vacuum(store)
        with counted(store.database, amounts):
            work()
        found[step] = amounts[0]
    return found


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
def test_after_a_year_each_step_of_a_pipeline_is_no_more_than_twice_the_work_of_an_empty_store(
    backend: StoreBackend,
) -> None:
    empty = lived(backend, 0)
    backend.wipe()
    year = lived(backend, PART)
    del empty["views"], year["views"]  # their first page is full after a year, and empty before
    few = 50 * 300  # rows or instructions, where the 300 pipelines are looked at that ran for a day: in one statement
    # PostgreSQL reads the 150 leases, one a source, as a whole: the table is one of `SMALL`
    slack = {"start": few, "prune": few, "lookups": few, "listing": few, "ownership": 150}
    slack["status"] = 3 * few  # it shows each of them, with its oldest object and that of its source
    more = {step: (empty[step], year[step]) for step in year if year[step] > 2 * empty[step] + slack.get(step, 0)}
    assert more == {}
