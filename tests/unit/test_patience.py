"""For how long a running query waits for its store: at least as long in each of its processes as in the reader's."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from shard_store import store as store_module
from shard_store.errors import StoreUnavailable
from shard_store.sql import database as database_module
from shard_store.sql.database import Database
from shard_store.store import QUERY_PATIENCE, open_store
from support.crash_sweep import run
from support.sweep_sinks import Cell

DEFAULT_STALE_AFTER = 120.0
"""Two times the default of `commitTimeout`: until then nobody else may take over."""


@pytest.mark.parametrize("column", ["path", "Iceberg", "queue", "foreachBatch", "foreign"])
def test_planning_reading_and_publishing_wait_as_long_as_the_reader(
    column: str, tmp_path: Path, iceberg_threads: None
) -> None:
    cell = Cell(column, tmp_path, f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db")
    cell.prepare()
    seen: list[float] = []

    class Recorded(Database):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            seen.append(self.patience)

    with patch.object(store_module, "Database", Recorded):
        assert run(cell).failed is None
    assert len(seen) > 2
    assert min(seen) >= QUERY_PATIENCE >= DEFAULT_STALE_AFTER


def test_a_transaction_of_the_users_waits_for_its_connection(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        connect, failures = store.database._connect, iter(range(2))

        def away(engine: sa.Engine, write: bool) -> sa.Connection:
            for _ in failures:
                raise sa.exc.OperationalError("", {}, Exception("database is locked"))
            return connect(engine, write)

        with patch.object(store.database, "_connect", away), store.database.begin() as connection:
            assert connection.execute(sa.select(1)).scalar() == 1
        store.database.patience = 0.0
        failures = iter(range(1))
        with patch.object(store.database, "_connect", away), pytest.raises(StoreUnavailable):
            store.database.begin()


def test_what_is_waited_for_and_how_long_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "_MOMENT", 0.05)
    with open_store(f"sqlite:///{tmp_path}/store.db", patience=0.5) as store:

        def away(engine: sa.Engine, write: bool) -> sa.Connection:
            raise sa.exc.OperationalError("", {}, Exception("database is locked"))

        with patch.object(store.database, "_connect", away), pytest.raises(StoreUnavailable):
            store.database.begin()
    (line,) = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert line.endswith("store.db' does not answer (database is locked); trying again for up to 0.5 s")
