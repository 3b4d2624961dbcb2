"""The store of one busy pipeline after a year, written by the database itself; what a batch does with it, step by step.

`landing` publishes a micro-batch of 12 objects as one data file every 30 seconds, and one object in 1,000 is bad: a
million objects a month, which is the window, and a million data files a year. Beside it is what others leave: pipelines
that ran on one day each, a pipeline without an error queue, shards of messages that were thrown away, marks of reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import sqlalchemy as sa

from shard_store.completeness.listing import Found
from shard_store.error_table.search import Criteria
from shard_store.error_table.search import pages as error_pages
from shard_store.model import ALONE, BEGINNING, LISTING, Content, ErrorRecord, Range, ReadMark, Split, end_at, shard_key
from shard_store.operators.views import VIEWS
from shard_store.sql.schema import metadata, pipelines
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy

SOURCE, PIPELINE = "year", "landing"
BATCHES_A_YEAR = 365 * 24 * 120
_OBJECTS = 12  # of a batch
_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class _Sql:
    """`series` has the numbers 1 to {n} as `i`; `key` and `hex` make 32 bytes and 64 digits of `i`, `text` its text."""

    series: str
    key: str
    hex: str
    text: str
    quote: str = '"'
    before: str = "SELECT 1"


_RECURSIVE = "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT i FROM s) AS s"
_MYSQL = _Sql(
    _RECURSIVE,
    "UNHEX(SHA2(CONCAT('{salt}', i), 256))",
    "LPAD(i, 64, '0')",
    "CONCAT('{0}', i)",
    quote="`",
    before="SET SESSION max_recursive_iterations = 100000000",
)
_SQL = {
    "sqlite": _Sql(_RECURSIVE, "randomblob(32)", f"substr('{'0' * 64}' || i, -64)", "'{0}' || i"),
    "postgresql": _Sql(
        "generate_series(1, CAST({n} AS bigint)) AS s(i)",
        "sha256(('{salt}' || i)::bytea)",
        "lpad(i::text, 64, '0')",
        "'{0}' || i",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}


def fill(store: ShardStore, part: float = 1.0) -> None:
    """A year's rows, or a part of them, of the past as the database's clock has it; then the planner's statistics."""
    sql = _SQL[store.database.dialect.name]
    batches = round(BATCHES_A_YEAR * part)
    now = store.database.read(lambda t: int(t.execute(sa.select(t.now())).scalar_one()))
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(sql.before)
        for table, count, columns in _rows(sql, batches, now):
            names = ", ".join(f"{sql.quote}{name}{sql.quote}" for name in columns)
            chosen = f"SELECT {', '.join(columns.values())} FROM {sql.series.format(n=count)}"
            connection.exec_driver_sql(f"INSERT INTO cuesqueue_{table} ({names}) {chosen}")
    start(store, batches)
    analyse(store)


def _rows(sql: _Sql, batches: int, now: int) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Of each table: how many rows, and each column as SQL over `i`."""
    month = batches * 30 // 365
    objects, lost, bad = month * _OBJECTS, month * _OBJECTS // 100, max(1000, month * _OBJECTS // 1000)

    def at(days: int, events: int) -> str:
        """The time of the i-th of so many events, evenly over the last days."""
        return f"{now - days * _DAY} + i * {days * _DAY // (events + 1)}"

    ours = {"source": f"'{SOURCE}'", "pipeline": f"'{PIPELINE}'"}
    shard = {"source": ours["source"], "size": "1000", "queue": "'q'", "message_id": "'m'", "receive_count": "1"}
    yield (
        "shards",
        objects,
        {
            **shard,
            "shard_key": sql.key.format(salt="done"),
            "shard_id": sql.text.format("s3://bucket/landing/"),
            "state": "'done'",
            "owner": ours["pipeline"],
            "incarnation": "1",
            "end_seq": "1",
            "position": f"'{end_at(1000)}'",
            "opened_at": at(29, objects),
            "finished_at": at(29, objects),
        },
    )
    yield (
        "shards",
        lost,
        {
            **shard,
            "shard_key": sql.key.format(salt="thrown away"),
            "shard_id": sql.text.format("s3://bucket/thrown-away/"),
            "state": "'open'",
            "position": "''",
            "opened_at": at(29, lost),
        },
    )
    before = batches - month
    attempt = {"delivery_hash": sql.hex, "lead_hash": sql.hex, **ours, "incarnation": "1", "batch_id": "i"}
    attempt |= {"start_seq": f"{before} + i - 1", "end_seq": f"{before} + i", "kind": "'attempt-output'"}
    attempt |= {"shards": f"{_OBJECTS}", "lost": "0", "errors": "0", "splits": "1", "rows": "100", "bytes": "1000"}
    yield "attempts", month, {**attempt, "published_at": at(29, month)}
    split = {"delivery_hash": sql.hex, **ours, "path": sql.text.format("s3://lake/split-"), "rows": "100"}
    split |= {"name_key": sql.key.format(salt="split"), "bytes": "1000000", "published_at": at(365, batches)}
    yield "splits", batches, split
    texts = ("detail", "subject", "position", "queue", "message_id")
    error = {
        "error_key": sql.key.format(salt="error"),
        "delivery_hash": sql.hex,
        "source": ours["source"],
        "pipeline": "'no error queue'",
    }
    error |= {"scope": "'record'", "cause": "'bad-record'", **dict.fromkeys(texts, "''"), "occurred_at": at(29, bad)}
    yield "errors", bad, error
    counts = dict.fromkeys(("incarnation", "last_seq", "confirmed_seq", "begun_seq"), "9")
    once = {"pipeline": sql.text.format("of one day "), "source": ours["source"], "driver": "''", **counts}
    once |= {"semantics": "'exactly-once'", "created_at": "0", "heartbeat_at": at(300, 300), "stale_at": at(300, 300)}
    yield "pipelines", 300, once
    kept = {**once, "pipeline": sql.text.format("with data files "), "heartbeat_at": f"{now - 400 * _DAY}"}
    yield "pipelines", 5, kept
    yield "splits", 5, {**split, "pipeline": kept["pipeline"], "name_key": sql.key.format(salt="kept")}
    places = {"task": "0", "first_place": "i", "end_place": "i", "unended": "1", "began_at": at(29, 1000)}
    yield "read_marks", 1000, {"delivery_hash": sql.hex, **places}
    changes = {"shard_key": sql.key.format(salt="done"), "source": ours["source"]}
    changes |= {"shard_id": sql.text.format("s3://bucket/landing/"), "action": "'quarantine'", "actor": "'me@here'"}
    changes |= {"reason": "''", "before": "'{}'", "changed_at": at(29, 1000)}
    yield "shard_changes", 1000, changes
    cleaned = {"shard_key": sql.key.format(salt="done"), "source": ours["source"]}
    cleaned |= {"uri": sql.text.format("s3://bucket/landing/"), "action": "'delete'", "attempts": "1"}
    cleaned |= dict.fromkeys(("opened_at", "read_at", "planned_at", "due_at", "ended_at"), at(29, objects))
    yield "cleanings", objects, {**cleaned, "outcome": "'cleaned'"}
    hour = {
        "pipeline": ours["pipeline"],
        "hour": at(89, 2136),
        "source": ours["source"],
        "causes": "'{}'",
        "lags": "'{}'",
    }
    yield "history", 2136, hour | dict.fromkeys(("batches", "objects", "messages", "errors"), "1")
    yield "leases", 50, {"name": sql.text.format("of a source "), "holder": "''", "until": at(29, 50)}


def start(store: ShardStore, batches: int = 0) -> None:
    """`landing` is there, with so many batches behind it; and the pipeline without an error queue, alive."""
    store.start(SOURCE, "no error queue", stale_after=86_400.0)
    store.start(SOURCE, PIPELINE)
    done = dict.fromkeys(("last_seq", "confirmed_seq", "begun_seq"), batches)
    this = pipelines.update().where(pipelines.c.pipeline == PIPELINE)
    store.database.write(lambda t: t.execute(this.values(**done)))


def vacuum(store: ShardStore) -> None:
    """PostgreSQL: rows that were replaced are gone, and are not read again beside those that are left."""
    if store.database.dialect.name == "postgresql":
        with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM")


def analyse(store: ShardStore) -> None:
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for name in metadata.tables:
            connection.exec_driver_sql(
                f"ANALYZE {'TABLE ' if store.database.dialect.name in ('mysql', 'mariadb') else ''}{name}"
            )


Step = Callable[[], object]


@dataclass
class Life:
    """The steps of a running pipeline over a store, by name; each can be run again and again, in this order."""

    store: ShardStore
    number: int = 0

    def steps(self) -> Iterator[tuple[str, Step]]:
        yield "start", self._start
        yield "heartbeat", lambda: self.store.heartbeat(self._token, 120.0)
        yield "open", self._open
        yield "snapshot", lambda: self.store.advance(self._token, snapshot=(self._seq + 1, self._ranges))
        yield "plan", self._plan
        yield "read", self._read
        yield "publish", self._publish
        yield "confirm", self._confirm
        yield "errors", self._send_errors
        yield "ownership", self._ownership
        yield "listing", self._list
        yield "prune", lambda: self.store.prune(RetentionPolicy(source=SOURCE), time_out=600.0)
        yield "lookups", self._look_up
        yield "views", self._views
        yield "status", self._status

    def _start(self) -> None:
        started = self.store.start(SOURCE, PIPELINE)
        self._token, self._seq = started.token, started.last_seq
        self.store.name_error_queue(self._token, "errors")
        assert self.store.undelivered_errors(self._token, SOURCE) == []

    def _open(self) -> None:
        self.number += 1
        names = [f"s3://bucket/new/{self.number}/{i}" for i in range(_OBJECTS)]
        contents = [Content(name, name, 10, None, "sqs://landing", name, sent_at=1) for name in names]
        found = self.store.open_shards(self._token, SOURCE, contents)
        assert len(self.store.look(found)) == _OBJECTS
        self._ranges = [Range(s.key, s.content, BEGINNING, end_at(10)) for s in found.values()]
        self._keys = list(found)

    def _plan(self) -> None:
        self._identity = self.store.plan(self._token, self._seq, self._seq + 1).identity
        assert self.store.current_plan(PIPELINE) == self._identity

    def _read(self) -> None:
        mark = ReadMark(0, 1, ALONE)
        self.store.begin_read(self._identity, mark)
        self.store.read_marks(self._identity)
        self.store.end_read(self._identity, mark)
        bad = ErrorRecord(
            "object", "corrupt-object", "", self._ranges[0].content.shard_id, self._identity.delivery_hash
        )
        self.store.record_errors(SOURCE, PIPELINE, [bad])
        assert len(self.store.found_bad(self._identity)) == 1

    def _publish(self) -> None:
        name = f"s3://lake/new-split-{self._token.incarnation}-{self._seq}"
        published = self.store.publish([self._identity], [Split(name, 1, 1)], batch_id=self._seq)
        assert (published.shards, published.quarantined) == (_OBJECTS, 1)
        assert self.store.delivered([self._identity], self._seq).already

    def _confirm(self) -> None:
        confirmed = self.store.advance(self._token, confirm=self._seq + 1, keys=self._keys)
        assert len(confirmed.finished) == _OBJECTS

    def _send_errors(self) -> None:
        found = self.store.undelivered_errors(self._token, SOURCE, others=False)
        assert [error.pipeline for error in found] == [PIPELINE]
        self.store.mark_delivered(self._token, [error.key for error in found], "errors")
        assert self.store.undelivered_errors(self._token, SOURCE, others=False) == []

    def _list(self) -> None:
        """A page of objects that are done, one that is new, and one whose plan has found it bad."""
        claim = self.store.claim_listing(self._token, SOURCE, "s3://bucket/", 3600.0, at_once=True)
        assert claim is not None
        names = [*(entry.content.shard_id for entry in self._ranges), f"s3://bucket/listed/{self.number}"]
        now = self.store.database.read(lambda t: int(t.execute(sa.select(t.now())).scalar_one()))
        found = [Found(Content(name, name, 10, None, LISTING, f"listed {self.number}"), now) for name in names]
        compared = self.store.compare_listed(
            self._token, claim, found, objects=len(found), cursor=None, grace=0.0, clock=lambda: now
        )
        assert compared is not None
        assert compared.opened == 1
        self.store.release(self._token, [shard.key for shard in compared.shards])
        assert self.store.claim_listing(self._token, SOURCE, "s3://bucket/", 3600.0) is None
        abandoned = self.store.abandoned(SOURCE, 1000)
        assert [shard.key for shard in abandoned] == [shard.key for shard in compared.shards]
        self.store.acquire(self._token, {shard.key: None for shard in abandoned})
        assert self.store.abandoned(SOURCE, 1000) == []
        self.store.leave_existing(self._token, SOURCE)
        self.store.let_go_of_listings(self._token, SOURCE, ["s3://bucket/"])

    def _ownership(self) -> None:
        opened = self.store.open_shards(self._token, SOURCE, [Content(f"given up {self.number}", "u")])
        self.store.release(self._token, list(opened))
        assert self.store.acquire(self._token, dict.fromkeys(opened)) == set(opened)
        self.store.release(self._token, list(opened))
        self.store.win_interval(f"prune {SOURCE}", 0.0)

    def _status(self) -> None:
        found = {one.pipeline: one for one in self.store.status()}
        assert found[PIPELINE].total.objects > 0
        assert self.store.hours(since=datetime.now(timezone.utc) - timedelta(hours=2))

    def _views(self) -> None:
        """What each view costs before it shows its rows, and its first page."""
        for view in VIEWS:
            next(self.store.pages(view), None)
            next(self.store.pages(view, source=SOURCE), None)
        next(error_pages(self.store.database, Criteria(), limit=1), None)

    def _look_up(self) -> None:
        self.store.row_schema()
        self.store.published_names(["s3://lake/split-1", "s3://lake/split-x"])
        self.store.look([shard_key(SOURCE, "s3://bucket/landing/1")])
        self.store.retire(self._token)
