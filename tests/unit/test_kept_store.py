"""The store that stays open in a process of Spark: the same one, as long as the URL leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shard_store import store as module
from shard_store.errors import StoreConfigurationError, StoreUnavailable
from shard_store.sql.database import Database
from shard_store.sql.schema import applied, version
from shard_store.store import kept_store, open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(found).close()
    return found


def test_a_store_stays_open(url: str) -> None:
    with kept_store(url) as first:
        pass
    with kept_store(url) as second:
        assert second is first
        assert second.store_id()


def test_a_store_that_is_in_use_is_not_lent_twice(url: str) -> None:
    with kept_store(url) as first, kept_store(url) as second:
        assert second is not first
    with kept_store(url) as again:
        assert again.store_id()


def test_after_a_failure_it_is_opened_anew(url: str) -> None:
    with pytest.raises(ZeroDivisionError), kept_store(url) as first:
        raise ZeroDivisionError
    with kept_store(url) as second:
        assert second is not first


def test_another_file_in_its_place_is_another_store(url: str, tmp_path: Path) -> None:
    with kept_store(url) as first:
        before = first.store_id()
    open_store(f"sqlite:///{tmp_path / 'restored.db'}").close()
    for rest in ("-wal", "-shm"):
        (tmp_path / f"store.db{rest}").unlink(missing_ok=True)
    (tmp_path / "restored.db").replace(tmp_path / "store.db")
    with kept_store(url) as second:
        assert second.store_id() != before


def test_a_store_that_is_gone_is_not_there(url: str, tmp_path: Path) -> None:
    with kept_store(url):
        pass
    (tmp_path / "store.db").unlink()
    with pytest.raises(StoreConfigurationError, match="no such file"), kept_store(url):
        pass


def test_a_newer_schema_is_refused_also_when_the_store_was_open(url: str) -> None:
    with kept_store(url) as first:
        pass
    with open_store(url) as other:
        for table in (applied, version):
            statement = table.update().values(version_num="9999")
            other.database.write(lambda t, statement=statement: t.execute(statement))  # type: ignore[misc]
    with pytest.raises(StoreConfigurationError, match="9999"), kept_store(url):
        pass
    assert first.database._closed


def test_a_database_that_does_not_answer_is_waited_for_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_store(url):
        pass
    waits: list[str] = []

    def ensure(database: Database, *, create: bool) -> None:
        waits.append(database.name)
        raise StoreUnavailable("it does not answer")

    monkeypatch.setattr(module, "ensure", ensure)
    monkeypatch.setattr("shard_store.sql.install.ensure", ensure)
    with pytest.raises(StoreUnavailable), kept_store(url):
        pass
    assert len(waits) == 1


def test_few_stores_are_kept(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(7)]
    stores = []
    for url in urls:
        open_store(url).close()
        with kept_store(url) as store:
            stores.append(store)
    closed = [store.database._closed for store in stores]
    assert closed == [True] * (7 - module._MOST_STORES) + [False] * module._MOST_STORES


def test_a_forked_process_opens_its_own(url: str) -> None:
    with kept_store(url) as mine:
        pass
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with kept_store(url) as theirs:
                os.write(writing, b"same" if theirs is mine else b"own!")
        finally:
            os._exit(0)  # it must not go on with pytest
    os.waitpid(child, 0)
    assert os.read(reading, 4) == b"own!"
