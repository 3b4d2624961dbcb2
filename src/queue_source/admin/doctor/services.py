"""The store, the queues and the objects of a query, with calls that change nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import sqlalchemy as sa

from queue_source.admin.doctor.findings import Finding, ok, problem, skipped, warning
from queue_source.admin.doctor.receivers import examine_receivers
from queue_source.admin.wording import counted
from queue_source.errors import CuesqueueError, QueueNotFound
from queue_source.messages import ListedObject
from queue_source.options import ReaderOptions, connection_options
from queue_source.options.checks import check_error_queue, check_suitability, warn_of_retention
from queue_source.options.connections import StorageOptions
from queue_source.options.secrets import SecretUrl
from queue_source.options.times import format_duration
from queue_source.queues import open_queue
from queue_source.queues.base import Queue, administered
from queue_source.storage.buckets import open_bucket
from queue_source.storage.files import open_object
from shard_store.errors import ShardStoreError
from shard_store.model import Semantics
from shard_store.sql import install
from shard_store.sql.database import Database
from shard_store.sql.schema import READERS_FROM, REVISION

SHARED_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "fuse.")
"""Beginnings of the types of file systems that are, or may be, on a network."""

CLOCKS_APART = 60.0
"""Seconds between two clocks that are worth a word: ages and times in the log are off by as much."""

_PATIENCE = 10.0  # seconds


def examine_store(
    url: str, *, local: bool = True, recorded_for: str | None = None, mounts: Path = Path("/proc/mounts")
) -> Iterator[Finding]:
    """Run each check of the store behind an SQLAlchemy URL.

    `local`: all executors run on this machine. `recorded_for`: the source of a reader with queueUrl=store.
    """
    try:
        database = Database(url, patience=_PATIENCE)
    except ShardStoreError as error:
        yield problem("store", str(error), "see docs/how-to/shared-store.md for URLs and drivers")
        return
    try:
        yield from _file(database, local, mounts)
        yield from _database(database, recorded_for)
    except ShardStoreError as error:
        yield problem("store", str(error), "mend the URL, the network, or the rights of the user, and run this again")
    finally:
        database.close()


def _file(database: Database, local: bool, mounts: Path) -> Iterator[Finding]:
    if (file := database.file()) is None:
        return
    server = "use PostgreSQL or MariaDB/MySQL: docs/how-to/shared-store.md"
    if not local:
        yield problem("store's place", f"{file} is a SQLite file, and executors run on other machines", server)
    kind = _file_system(file.absolute(), mounts)
    if kind is None:
        yield skipped("store's file system", f"this system does not say what {file.absolute().parent} is on")
    elif kind.startswith(SHARED_FILE_SYSTEMS):
        text = f"{file} is on {kind}: SQLite's locks and its log need a disk of this machine"
        yield problem("store's file system", text, f"move the file to a local disk, or {server}")
    else:
        yield ok("store's file system", f"{file.absolute().parent} is on {kind}")


def _file_system(path: Path, mounts: Path) -> str | None:
    """Return the file system at the longest mount point above the path; None where the system does not tell."""
    if not mounts.is_file():
        return None
    mounted: tuple[int, str] | None = None
    for line in mounts.read_text("utf-8", "replace").splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and (mounted is None or len(point) >= mounted[0]):
            mounted = len(point), kind
    return None if mounted is None else mounted[1]


def _database(database: Database, recorded_for: str | None) -> Iterator[Finding]:
    file = database.file()
    if file is not None and not file.exists():
        yield ok("store", f"{database.name}: there is no such file yet; the first start of a query makes it")
        return
    revision = install.installed(database)
    yield ok("store", f"{database.name} can be reached")
    if revision is None:
        yield ok("store's tables", "there are none yet; the first start of a query makes them")
    elif revision == REVISION:
        yield ok("store's tables", f"schema {revision}, that of this version")
    elif revision < REVISION:
        stop = "" if revision >= READERS_FROM else "stop the queries that use it, and "
        text = f"schema {revision} is older than this version's {REVISION}"
        yield problem("store's tables", text, f"{stop}run: {install.COMMAND}")
    else:
        text = f"schema {revision} is newer than this version's {REVISION}"
        yield warning("store's tables", text, "install the newer cuesqueue here")
    yield _encoding(database)
    yield _clock(database)
    if revision == REVISION:
        yield from examine_receivers(database, recorded_for)


def _encoding(database: Database) -> Finding:
    """Report an encoding that cannot keep every text; a reader refuses it when it connects."""
    asked = {"postgresql": "SHOW server_encoding", "sqlite": "PRAGMA encoding"}
    query = asked.get(database.dialect.name, "SELECT @@character_set_database")
    encoding = str(database.read(lambda t: t.connection.exec_driver_sql(query).scalar_one()))
    if database.dialect.name == "postgresql" and encoding.upper() not in ("UTF8", "UTF-8"):
        fix = "CREATE DATABASE cuesqueue ENCODING 'UTF8' TEMPLATE template0, and use that"
        return warning("store's encoding", f"{encoding}: names in other scripts cannot be kept", fix)
    return ok("store's encoding", encoding)


def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = database.read(lambda t: int(t.execute(sa.select(t.now())).scalar_one())) / 1_000_000
    difference = theirs - (before + time.time()) / 2
    text = f"{difference:+.1f} s to this machine's clock"
    if abs(difference) > CLOCKS_APART:
        fix = "set both clocks by NTP; ownership is decided by the database's clock alone, so it must not jump"
        return warning("store's clock", text, fix)
    return ok("store's clock", text)


def examine_queues(options: ReaderOptions) -> Iterator[Finding]:
    """Run each check of the queues of a reader, and of its error queue."""
    for url in options.queue.urls:
        yield from _queue("queue", url, options, lambda queue: _suitable(queue, options))
    if (errors := options.delivery.error_queue_url) is not None:
        yield from _queue("error queue", errors, options, check_error_queue)


def _suitable(queue: Queue, options: ReaderOptions) -> None:
    check_suitability([queue], options)
    if Semantics(options.delivery.delivery_semantics).keeps_shards:
        warn_of_retention([queue], options.deduplication.deduplication_window)


def _queue(what: str, url: SecretUrl, options: ReaderOptions, check: Callable[[Queue], None]) -> Iterator[Finding]:
    try:
        with open_queue(url.reveal(), **connection_options(url, options.queue)) as queue:
            yield from _opened(what, queue, options, check)
    except QueueNotFound as error:
        yield problem(what, str(error), f"create it (`cuesqueue queue create {url}`), or mend its URL")
    except CuesqueueError as error:
        yield problem(what, str(error), "mend what it says, and run this again")


def _opened(what: str, queue: Queue, options: ReaderOptions, check: Callable[[Queue], None]) -> Iterator[Finding]:
    manager = administered(queue)
    if manager is not None and not manager.exists():
        yield problem(what, f"{queue.name} does not exist", f"create it: cuesqueue queue create '{queue.name}'")
        return
    with _warnings() as said:  # the warnings that a reader would log at its start
        can = queue.capabilities
        depth = queue.depth() if can.reports_depth else None
        check(queue)
    waiting = "" if depth is None else f", {counted(depth.ready, 'message')} waiting and {depth.in_flight:,} leased"
    yield ok(what, f"{queue.name} can be asked{waiting}")
    for text in said:
        yield warning(f"{what}'s settings", text, "the sentence says what to change; docs/how-to has a page a queue")
    lease = options.leases.visibility_timeout
    if can.max_lease is not None and lease > timedelta(seconds=can.max_lease):
        longest = format_duration(timedelta(seconds=can.max_lease))
        yield warning(
            f"{what}'s leases",
            f"visibilityTimeout = {format_duration(lease)} is longer than one call may ask for: {longest} at a time",
            f"set visibilityTimeout to {longest} or less",
        )
    if what == "queue":
        yield skipped(
            "queue's rights to receive and delete",
            f"not tried for {queue.name}, since that would change its messages",
            "docs/how-to has the rights that each kind of queue needs",
        )


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged in the block."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("cuesqueue")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def examine_prefixes(prefixes: Sequence[str], storage: StorageOptions) -> Iterator[Finding]:
    """Check that objects below each prefix can be listed, and read as by a task: one page, and one object."""
    for prefix in prefixes:
        try:
            bucket = open_bucket(prefix, storage)
            try:
                page = bucket.page(prefix)
            finally:
                bucket.close()
        except CuesqueueError as error:
            fix = "give the credentials the right to list and to read there, or mend the prefix; readers that only get "
            yield warning("prefix", str(error), f"{fix}announced objects need no right to list")
            continue
        more = "" if page.cursor is None else " and more"
        if page.objects or more:
            yield ok("prefix", f"{prefix}: {counted(len(page.objects), 'object')}{more} can be listed")
        else:
            text = f"{prefix}: no object begins with it, so whether objects can be read is not known"
            yield warning("prefix", text, "compare it with the names of your objects; all is well if none is there yet")
        if page.objects:
            yield _reading(max(page.objects, key=lambda listed: listed.size), storage)
        difference = (page.now - datetime.now(timezone.utc)).total_seconds()
        if abs(difference) > CLOCKS_APART:
            text = f"{prefix}: {difference:+.0f} s to this machine's clock"
            yield warning("object store's clock", text, "set this machine's clock by NTP")


def _reading(listed: ListedObject, storage: StorageOptions) -> Finding:
    name = "object"
    try:
        with open_object(listed.uri, storage, size=listed.size) as file:
            file.read(1)
    except CuesqueueError as error:
        return problem(name, str(error), "give the credentials the right to read there, or mend the options of storage")
    return ok(name, f"{listed.uri} can be read from here; executors need the same variables, files and rights")
