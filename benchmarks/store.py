"""The shard store: messages a second through open, snapshot, plan, publish and confirm, beside the bare floor.

The floor is the same rows in a table of the same columns, inserted, selected and updated by the driver itself with
plain statements, in three transactions: no fencing, no snapshot, no plan, no attempt, no SQLAlchemy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa

from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from shard_store.batches import publishing
from shard_store.model import BEGINNING, Content, Range, ShardKey, Split, end_at, shard_key
from shard_store.sql.schema import shards
from shard_store.store import ShardStore, open_store

POSTGRES = "CUESQUEUE_BENCH_POSTGRES"
"""Names a server to measure with (an empty database); otherwise the one that the tests use is started."""
_COLUMNS = [column.name for column in shards.columns]


class Batches:
    """One pipeline that runs micro-batches of new shards, each of another size.

    `sent`: whether their messages say when they were sent, as those of every service do.
    """

    def __init__(self, store: ShardStore, pipeline: str = "bench", sent: bool = True) -> None:
        self._store = store
        self._sent = sent
        started = store.start("bench", pipeline)
        self._token, self._seq = started.token, started.last_seq
        self._keys: list[ShardKey] = []
        self._run = uuid.uuid4().hex

    def run(self, count: int) -> None:
        """Open, confirm the batch before and write the snapshot, plan, publish: four transactions."""
        contents = contents_of(self._run, self._seq, count, int(time.time() * 1_000_000) if self._sent else None)
        found = self._store.open_shards(self._token, "bench", contents)
        ranges = [Range(s.key, s.content, BEGINNING, end_at(s.content.size or 0)) for s in found.values()]
        before = self._seq or None
        self._store.advance(self._token, confirm=before, keys=self._keys, snapshot=(self._seq + 1, ranges))
        plan = self._store.plan(self._token, self._seq, self._seq + 1)
        self._seq += 1
        self._keys = list(found)
        self._store.publish([plan.identity], [Split(f"/split-{self._seq}", count, 1)], batch_id=self._seq)


class Floor:
    """The same rows by the driver itself."""

    def __init__(self, store: ShardStore) -> None:
        self._engine = store.database.engine
        self._mark = "?" if store.database.dialect.one_writer else "%s"
        self._table = sa.Table("bench_floor", sa.MetaData(), *(sa.Column(c.name, c.type) for c in shards.columns))
        with self._engine.begin() as connection:
            self._table.drop(connection, checkfirst=True)
            self._table.create(connection)
            connection.exec_driver_sql("CREATE UNIQUE INDEX bench_floor_key ON bench_floor (shard_key)")
        self._run, self._number = uuid.uuid4().hex, 0

    def run(self, count: int) -> None:
        self._number += 1
        contents = contents_of(self._run, self._number, count, int(time.time() * 1_000_000))
        rows = [_as_row(content) for content in contents]
        keys = [row[0] for row in rows]
        self._in_transaction(lambda cursor: cursor.executemany(self._insert(), rows))
        self._in_transaction(lambda cursor: self._select(cursor, keys))
        update = f"UPDATE bench_floor SET position = {self._mark}, state = 'done' WHERE shard_key = {self._mark}"
        ends = [(end_at(content.size or 0), key) for content, key in zip(contents, keys, strict=True)]
        self._in_transaction(lambda cursor: cursor.executemany(update, ends))

    def _insert(self) -> str:
        return f"INSERT INTO bench_floor ({', '.join(_COLUMNS)}) VALUES ({', '.join([self._mark] * len(_COLUMNS))})"

    def _select(self, cursor: Any, keys: Sequence[object]) -> None:
        if self._mark == "?":
            cursor.execute(f"SELECT * FROM bench_floor WHERE shard_key IN ({', '.join('?' * len(keys))})", keys)
        else:
            cursor.execute("SELECT * FROM bench_floor WHERE shard_key = ANY(%s)", [list(keys)])
        assert len(cursor.fetchall()) == len(keys)

    def _in_transaction(self, work: Callable[[Any], object]) -> None:
        with self._engine.begin() as connection:
            raw = connection.connection.dbapi_connection
            assert raw is not None
            cursor = raw.cursor()
            work(cursor)
            cursor.close()


def contents_of(run: str, number: int, count: int, sent_at: int | None = None) -> list[Content]:
    uris = (f"s3://bucket/landing/{run}/{number}/part-{i:05}.parquet" for i in range(count))
    return [
        Content(uri, uri, 1000 + i, f"etag-{i}", "sqs://landing", f"{i:032x}", sent_at=sent_at)
        for i, uri in enumerate(uris)
    ]


def _as_row(content: Content) -> tuple[object, ...]:
    values = {
        "shard_key": shard_key("bench", content.shard_id),
        "source": "bench",
        "shard_id": content.shard_id,
        "size": content.size,
        "etag": content.etag,
        "queue": content.queue,
        "message_id": content.message_id,
        "receive_count": 1,
        "position": "",
        "state": "open",
        "owner": "bench",
        "incarnation": 1,
        "opened_at": 0,
        "sent_at": content.sent_at,
    }
    return tuple(values.get(name) for name in _COLUMNS)


def _timed(run: Callable[[int], None], count: int, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        run(count)
    return time.perf_counter() - began


@benchmark("store")
def store_rates(settings: Settings) -> Iterator[Measurement]:
    """Messages a second through the shard store, beside the same rows by plain statements."""
    for name, url in databases(settings.folder):
        with url as address, open_store(address) as store:
            ours, floor = Batches(store), Floor(store)
            for count in (10, 100, 1000):
                times = max(2, (200 if settings.quick else 4000) // count // (1 if count > 10 else 4))
                both = [partial(_timed, ours.run, count, times), partial(_timed, floor.run, count, times)]
                found = alternate(both, settings.repetitions)
                yield Measurement(
                    f"{name}, batches of {count}",
                    found[0],
                    count * times,
                    "messages",
                    "floor",
                    found[1],
                    reference_role=Role.FLOOR,
                )


@benchmark("store-recording")
def store_recording(settings: Settings) -> Iterator[Measurement]:
    """What is recorded for operators (when messages were sent, amounts, lags), against the same without it"""
    for name, url in databases(settings.folder):
        with url as address, open_store(address) as store:
            recorded, bare = Batches(store, "recorded"), Batches(store, "bare", sent=False)
            for count in (10, 100, 1000):
                times = max(2, (200 if settings.quick else 2000) // count // (1 if count > 10 else 4))
                both = [partial(_timed, recorded.run, count, times), partial(_unrecorded, bare.run, count, times)]
                found = alternate(both, settings.repetitions * (1 if settings.quick else _TURNS))
                yield Measurement(
                    f"{name}, batches of {count}",
                    found[0],
                    count * times,
                    "messages",
                    "nothing recorded",
                    found[1],
                    reference_role=Role.BASELINE,
                )


_TURNS = 8
"""Times as many as usual: what is looked for is a few hundredths."""


def _unrecorded(run: Callable[[int], None], count: int, times: int) -> float:
    """The time of batches after which the pipeline's row is left as it is."""
    with mock.patch.object(publishing, "counted", return_value={}):
        return _timed(run, count, times)


@benchmark("store-growth")
def store_growth(settings: Settings) -> Iterator[Measurement]:
    """Batches of 1,000 with 1,000, 100,000 and 1,000,000 shards in the table, against 1,000; bytes of the table."""
    sizes = (1000, 10_000) if settings.quick else (1000, 100_000, 1_000_000)
    for name, url in databases(settings.folder):
        with url as address, open_store(address) as store:
            seconds: dict[int, list[float]] = {}
            for size in sizes:
                fill(store, size)
                ours = Batches(store)
                _timed(ours.run, 1000, 2)
                seconds[size] = [_timed(ours.run, 1000, 3) for _ in range(settings.repetitions)]
                there, used = table_size(store)
                case = f"{name}, {size:,} shards in the table ({used / there * 1e6 / 2**20:,.0f} MiB a million)"
                few = f"with {sizes[0]:,}", seconds[sizes[0]]
                yield Measurement(case, seconds[size], 3000, "messages", *few, reference_role=Role.BASELINE)


@benchmark("store-pipelines")
def store_pipelines(settings: Settings) -> Iterator[Measurement]:
    """Four competing pipelines on one PostgreSQL: messages a second of all together."""
    times = 4 if settings.quick else 30
    for name, url in databases(settings.folder):
        if not name.startswith("PostgreSQL"):
            continue
        with url as address:
            open_store(address).close()
            seconds = [_four_pipelines(address, times) for _ in range(settings.repetitions)]
            yield Measurement(f"{name}, 4 pipelines, batches of 1000", seconds, 4 * times * 1000, "messages")


def _four_pipelines(url: str, times: int) -> float:
    """The time from the moment that all four are ready until the last has published its last batch."""
    command = [sys.executable, "-m", "benchmarks.store", url, str(times)]
    workers = [subprocess.Popen([*command, f"p{i}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for i in range(4)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        began = time.perf_counter()
        for worker in workers:
            worker.communicate(b"go\n")
        assert [worker.returncode for worker in workers] == [0] * 4
        return time.perf_counter() - began
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _one_pipeline(url: str, times: int, name: str) -> None:
    with open_store(url) as store:
        ours = Batches(store, name)
        ours.run(1000)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        _timed(ours.run, 1000, times)


def fill(store: ShardStore, size: int) -> None:
    """Finished shards up to `size`, written by the database itself."""
    with store.database.engine.begin() as connection:
        there = connection.execute(sa.select(sa.func.count()).select_from(shards)).scalar_one()
        series, key = "generate_series(1, {n}) AS s(i)", "sha256(('{run}' || i)::bytea)"
        if store.database.dialect.one_writer:
            series = "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s LIMIT {n}) SELECT i FROM s)"
            key = "randomblob(32)"
        run = uuid.uuid4().hex
        connection.exec_driver_sql(
            "INSERT INTO cuesqueue_shards (shard_key, source, shard_id, size, etag, queue, message_id, receive_count, "
            "position, state, owner, incarnation, end_seq, opened_at, finished_at) "
            f"SELECT {key.format(run=run)}, 'bench', 's3://bucket/landing/{run}/0/part-' || i || '.parquet', i, "
            "'etag-' || i, 'sqs://landing', '00000000000000000000000000000000', 1, '~00000000000000001000', 'done', "
            f"'bench', 1, 1, 0, i FROM {series.format(n=max(0, size - there))}"
        )
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def table_size(store: ShardStore) -> tuple[int, int]:
    """How many shards there are, and the bytes of their table with its indexes."""
    with store.database.engine.connect() as connection:
        there = connection.execute(sa.select(sa.func.count()).select_from(shards)).scalar_one()
        query = (
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            if store.database.dialect.one_writer
            else "SELECT pg_total_relation_size('cuesqueue_shards')"
        )
        return int(there), int(connection.exec_driver_sql(query).scalar_one())


def databases(folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and URL (a context manager) of an empty database of each kind."""

    @contextmanager
    def sqlite() -> Iterator[str]:
        yield f"sqlite:///{folder / 'store.db'}"

    @contextmanager
    def postgres() -> Iterator[str]:
        if os.environ.get(POSTGRES):
            yield os.environ[POSTGRES]
            return
        from support.servers.postgres import new_database, postgres_server

        with postgres_server() as url:
            yield new_database(url)

    yield "SQLite", sqlite()
    yield "PostgreSQL" if os.environ.get(POSTGRES) else "PostgreSQL (fsync off)", postgres()


if __name__ == "__main__":
    _one_pipeline(sys.argv[1], int(sys.argv[2]), sys.argv[3])
