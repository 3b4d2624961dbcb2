"""What goes on around a query of the time sweep: its servers, and what is wrong with them for a while.

All of it is real: the server is stopped, the lock is held, the disk is full. Only what must happen inside the query's
process (slow statements of SQLite, a clock that is wrong) is in `time_sweep`.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from queue_source.queues import open_queue
from support.servers.ministack import KEYS, REGION, ministack_server, new_queue
from support.servers.postgres import PostgresServer, new_database, postgres
from support.servers.proxy import FailingProxy, SlowProxy, failing_proxy, slow_proxy
from support.servers.rabbitmq import RabbitServer, rabbitmq_server
from support.sweep_sinks import Cell, database

DISK = 6 << 20
"""Bytes of the disks that become full."""


@dataclass(frozen=True)
class Times:
    """How long everything takes, in seconds. `visibility` and `commit`: where a batch or a trigger outlasts them."""

    statement: float
    lock: float
    down: float
    errors: float
    full: float
    pause: float  # between two triggers, or in a batch: longer than a lease and than a heartbeat may stay away
    visibility: str
    commit: str
    backlog: int
    leases: Mapping[str, str] = field(default_factory=dict)  # where nothing is slow on purpose


REAL = Times(0.2, 60, 90, 120, 60, 25, "10s", "5s", 50_000)
"""As users know them, with the default leases and heartbeats."""
_SHORT = {"visibilityTimeout": "10s", "commitTimeout": "2s", "waitTime": "200ms"}
QUICK = Times(0.005, 1.5, 1.0, 1.5, 1.0, 2.5, "2s", "1s", 2_000, _SHORT)


@dataclass(frozen=True)
class Case:
    """What is wrong, and with what: the fault, a column of `sweep_sinks`, the store's database, the kind of queue."""

    fault: str
    column: str
    store: str
    queue: str

    @property
    def name(self) -> str:
        return f"{self.fault}: {self.column}, {self.store}, {self.queue}"


@dataclass
class Setting:
    """The servers of one case. `queue_url` and `options` are what the query reads with, `direct` is undisturbed."""

    cell: Cell
    queue_url: str = ""
    direct: str = ""
    options: dict[str, str] = field(default_factory=dict)
    server: PostgresServer | None = None
    slow: SlowProxy | None = None
    failing: FailingProxy | None = None
    rabbit: RabbitServer | None = None
    queues_server: PostgresServer | None = None
    disk: Path | None = None

    def send(self, messages: Sequence[str]) -> None:
        with open_queue(self.direct, **(KEYS if self.failing else {})) as queue:
            queue.send(list(messages))

    def left_in_queue(self) -> int:
        with open_queue(self.direct, **(KEYS if self.failing else {})) as queue:
            return queue.depth().total


@contextmanager
def setting(case: Case, folder: Path) -> Iterator[Setting]:
    """Everything that the case needs, running and empty."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder)) if case.fault.startswith("disk full") else None
        made = Setting(Cell(case.column, folder, "", ""), disk=disk)
        place = disk if disk is not None and case.fault == "disk full, store" else folder
        store = f"sqlite:///{place}/store.db"
        elsewhere = f"sqlite:///{folder}/elsewhere.db"
        if case.store == "postgresql":
            made.server = stack.enter_context(postgres())
            store, elsewhere = new_database(made.server.url), new_database(made.server.url)
            if case.fault == "slow store":
                made.slow = stack.enter_context(slow_proxy(made.server.port))
                store = make_url(store).set(port=made.slow.port).render_as_string(hide_password=False)
        made.cell = Cell(case.column, folder, store, elsewhere)
        _add_queue(stack, case, made)
        yield made


def _add_queue(stack: ExitStack, case: Case, made: Setting) -> None:
    if case.queue == "sqs":
        url = new_queue(stack.enter_context(ministack_server()))
        made.failing = stack.enter_context(failing_proxy(make_url(url).port or 0))
        made.direct, made.queue_url = url, make_url(url).set(port=made.failing.port).render_as_string(False)
        names = {"access_key_id": "sqs.accessKeyId", "secret_access_key": "sqs.secretAccessKey"}
        made.options = {"sqs.region": REGION, **{names[key]: value for key, value in KEYS.items()}}
    elif case.queue == "rabbitmq":
        made.rabbit = stack.enter_context(rabbitmq_server())
        name = f"sweep-{uuid.uuid4().hex[:8]}"
        made.direct = made.queue_url = f"{made.rabbit.url}?source={name}&pool={name}"
    else:
        place = made.cell.elsewhere
        if case.fault == "queue errors":
            made.queues_server = stack.enter_context(postgres())
            place = new_database(made.queues_server.url)
        made.direct = made.queue_url = f"sql+{place}?queue=files"
    with open_queue(made.direct, **(KEYS if made.failing else {})) as queue:
        if case.queue != "sqs":
            queue.create()  # type: ignore[attr-defined]


class NoDisk(Exception):
    """Nothing can be mounted here."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own: only root may have one."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise NoDisk("a small disk cannot be mounted here: that needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


# --- what is wrong for a while: each begins when it is entered, and is over when it is left ---------------------------

Fault = Callable[[Setting, Times], AbstractContextManager[float]]
"""Yields the seconds for which it is to last."""


@contextmanager
def nothing(_: Setting, __: Times) -> Iterator[float]:
    """What is wrong is inside the query."""
    yield 0.0


@contextmanager
def slow_statements(setting: Setting, times: Times) -> Iterator[float]:
    """Until the end of the query: all its rows come through a slow store. (SQLite's are slow inside the query.)"""
    if setting.slow is not None:
        setting.slow.delay = times.statement
    yield 0.0


@contextmanager
def lock_held(setting: Setting, times: Times) -> Iterator[float]:
    """By somebody who changes the tables, or looks at them in a transaction that he forgot to end."""
    if setting.server is None:
        file = make_url(setting.cell.store).database or ""
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield times.lock
            connection.execute("ROLLBACK")
        return
    with database(setting.cell.store) as engine, engine.connect() as held, held.begin():
        held.execute(sa.text("LOCK TABLE cuesqueue_pipelines, cuesqueue_shards IN ACCESS EXCLUSIVE MODE"))
        yield times.lock


@contextmanager
def database_down(setting: Setting, times: Times) -> Iterator[float]:
    assert setting.server is not None
    setting.server.stop()
    try:
        yield times.down
    finally:
        setting.server.start()


@contextmanager
def database_frozen(setting: Setting, times: Times) -> Iterator[float]:
    """Connections stay open and nobody answers."""
    assert setting.server is not None
    setting.server.freeze()
    try:
        yield times.down
    finally:
        setting.server.thaw()


@contextmanager
def queue_errors(setting: Setting, times: Times) -> Iterator[float]:
    """SQS answers 503; the database of a SQL queue, or the broker, is away."""
    if setting.failing is not None:
        setting.failing.fails = True
        yield times.errors
        setting.failing.fails = False
        assert setting.failing.refused, "the queue was not asked for anything"
        return
    server = setting.rabbit or setting.queues_server
    assert server is not None
    server.stop()
    try:
        yield times.errors
    finally:
        server.start()


@contextmanager
def disk_full(setting: Setting, times: Times) -> Iterator[float]:
    assert setting.disk is not None
    ballast = fill(setting.disk)
    yield times.full
    ballast.unlink()


def fill(disk: Path) -> Path:
    """Take all room of a disk; returns the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return ballast


FAULTS: dict[str, Fault] = {
    "slow store": slow_statements,
    "lock held": lock_held,
    "database down": database_down,
    "database frozen": database_frozen,
    "slow trigger": nothing,
    "slow batch": nothing,
    "backlog": nothing,
    "clock off": nothing,
    "disk full, store": disk_full,
    "disk full, sink": disk_full,
    "queue errors": queue_errors,
}
