"""What differs between the databases, as data: nothing else in this package asks which one it talks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import Insert, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite


class Trouble(Enum):
    """What a database's error means for the caller."""

    RETRY = "the same transaction may succeed in a moment"
    CONFIGURATION = "nothing helps but another URL, driver or permission"
    OTHER = "neither is known"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database. `now` is its clock as microseconds since 1970 UTC."""

    name: str
    now: str
    extra: str | None  # the extra of our package that brings the driver
    insert_if_absent: Callable[[Table], Insert]
    trouble: Callable[[BaseException], Trouble]
    isolation_level: str | None = None
    begin_write: str | None = None  # the statement that takes the write lock at once, where locks are of the whole file
    begin_read: str | None = None
    on_connect: tuple[str, ...] = ()
    trusts_rowcount: bool = True


def _sqlite_trouble(error: BaseException) -> Trouble:
    text = str(error)
    if "locked" in text or "busy" in text:
        return Trouble.RETRY
    if any(t in text for t in ("unable to open", "readonly database", "not a database", "malformed")):
        return Trouble.CONFIGURATION
    return Trouble.OTHER


def _postgresql_trouble(error: BaseException) -> Trouble:
    state = getattr(error, "sqlstate", None)
    text = str(error)
    if state is None:  # no server said it: the connection itself failed, and only the text tells why
        wrong = ("authentication failed", "does not exist", "no pg_hba.conf entry", "could not translate host name")
        return Trouble.CONFIGURATION if any(t in text for t in wrong) else Trouble.RETRY
    if state in ("40001", "40P01", "55P03") or state[:2] in ("08", "57", "53"):
        return Trouble.RETRY
    if state[:2] in ("28", "3D") or state in ("42501", "25006"):
        return Trouble.CONFIGURATION
    return Trouble.OTHER


_MYSQL_RETRY = {1205, 1213, 1040, 1053, 1158, 1159, 1160, 1161, 2003, 2006, 2013, 2014, 2055, 4031, 0}
_MYSQL_CONFIGURATION = {1044, 1045, 1049, 1142, 1143, 1227, 1290, 1698, 1792, 1836, 2005}


def _mysql_trouble(error: BaseException) -> Trouble:
    code = error.args[0] if error.args else None
    if code in _MYSQL_RETRY:
        return Trouble.RETRY
    return Trouble.CONFIGURATION if code in _MYSQL_CONFIGURATION else Trouble.OTHER


DIALECTS: dict[str, Dialect] = {
    d.name: d
    for d in (
        Dialect(
            name="sqlite",
            now="CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
            extra=None,
            insert_if_absent=lambda t: sqlite.insert(t).on_conflict_do_nothing(),
            trouble=_sqlite_trouble,
            begin_write="BEGIN IMMEDIATE",
            begin_read="BEGIN",
            # FULL: a message is acknowledged after the commit, so the commit must survive a power cut (invariant 1)
            on_connect=("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA busy_timeout=30000"),
        ),
        Dialect(
            name="postgresql",
            now="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
            extra="postgres",
            insert_if_absent=lambda t: postgresql.insert(t).on_conflict_do_nothing(),
            trouble=_postgresql_trouble,
            isolation_level="READ COMMITTED",
        ),
        Dialect(
            name="mysql",
            now="CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)",
            extra="mysql",
            insert_if_absent=lambda t: mysql.insert(t).prefix_with("IGNORE"),
            trouble=_mysql_trouble,
            # the default, REPEATABLE READ, would show a transaction rows as they were before it had its locks
            isolation_level="READ COMMITTED",
        ),
    )
}
DIALECTS["mariadb"] = DIALECTS["mysql"]
