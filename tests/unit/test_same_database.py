"""When two URLs are one database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from shard_store.sql.database import Database
from shard_store.sql.engines import same_database

PG = "postgresql+psycopg://u:secret@host/db"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (PG, True),
        ("postgresql://u:other@HOST:5432/db", True),
        ("postgresql+psycopg2://u@host/db", True),
        ("postgresql://u@host:5433/db", False),
        ("postgresql://u@host/other", False),
        ("postgresql://v@host/db", False),
        ("postgresql://u@host/db?options=-csearch_path%3Dother", False),
        ("mysql://u@host/db", False),
    ],
)
def test_servers_are_compared_by_all_that_leads_to_tables(other: str, same: bool) -> None:
    assert same_database(make_url(PG), make_url(other)) is same


def test_mariadb_is_a_mysql_by_another_name() -> None:
    assert same_database(make_url("mariadb+pymysql://u@h/d"), make_url("mysql://u@h:3306/d"))


def test_a_database_keeps_its_file_whoever_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    database = Database("sqlite:///a.db")
    monkeypatch.chdir("later")
    database.write(lambda transaction: None)
    database.close()
    assert database.file() == tmp_path / "a.db"
    assert sorted(path.name for path in tmp_path.rglob("*.db")) == ["a.db"]
    assert (tmp_path / "a.db").exists()
    assert database.name == "sqlite:///a.db"


def test_files_are_compared_by_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    one = make_url(f"sqlite:///{tmp_path}/a.db")
    for name in ("a.db", "./link/a.db", f"{tmp_path}/link/../a.db"):
        assert same_database(one, make_url(f"sqlite+pysqlite:///{name}")), name
    assert not same_database(one, make_url(f"sqlite:///{tmp_path}/../a.db"))
    assert not same_database(one, make_url("sqlite:///b.db"))
    uri = make_url("sqlite:///file:a.db?uri=true")
    assert not same_database(one, uri)
    assert same_database(uri, uri)
