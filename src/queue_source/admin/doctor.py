"""The checks of `cuesqueue doctor`: what a query needs on this machine, of its store, its queues and its objects.

They change nothing (decision 0055). Secrets are hidden here, because the messages of libraries often show URLs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from queue_source.admin.wording import counted
from queue_source.errors import CuesqueueError, QueueNotFound
from queue_source.messages import ListedObject
from queue_source.options import ReaderOptions, connection_options
from queue_source.options.checks import check_error_queue, check_suitability
from queue_source.options.connections import StorageOptions
from queue_source.options.types import SecretUrl
from queue_source.queues import open_queue
from queue_source.queues.base import Queue, administered
from queue_source.storage.buckets import open_bucket
from queue_source.storage.files import open_object
from shard_store.errors import ShardStoreError
from shard_store.redaction import redact_text
from shard_store.sql import install
from shard_store.sql.database import Database
from shard_store.sql.schema import REVISION

OLDEST_JAVA = 17
NEWEST_JAVA: dict[tuple[int, ...], int] = {(4, 0): 23, (4, 1): 23}
"""Of the versions of Spark that a newer Java does not start; 24 took away what Hadoop's login needs there."""

_ASK = "import sys; print(*sys.version_info[:2]); import pyarrow, queue_source.spark.source; print(sys.prefix)"
_TIME_OUT = 60.0  # seconds for another program
_PATIENCE = 10.0  # seconds for the store


class State(str, Enum):
    OK = "ok"
    WARNING = "warning"  # it works now, and will cause trouble later
    PROBLEM = "problem"  # a query fails, or loses or repeats rows
    SKIPPED = "skipped"  # not checked, with the reason


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: the facts, and the next step where they are not ok."""

    check: str
    state: State
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, redact_text(text))


def warning(check: str, text: str, fix: str) -> Finding:
    return Finding(check, State.WARNING, redact_text(text), redact_text(fix))


def problem(check: str, text: str, fix: str) -> Finding:
    return Finding(check, State.PROBLEM, redact_text(text), redact_text(fix))


def skipped(check: str, text: str, fix: str = "") -> Finding:
    return Finding(check, State.SKIPPED, redact_text(text), redact_text(fix))


def examine_machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check Java and the Python of Spark's workers. `environment`: the variables that the driver has."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        yield problem("pyspark", "is not installed in this Python", "pip install 'pyspark>=4.0'")
        return
    if _numbers(spark) < (4, 0):
        yield problem("pyspark", f"{spark} is too old", "pip install 'pyspark>=4.0'")
    else:
        yield ok("pyspark", spark)
    yield _java(environment, spark)
    yield _workers(environment)


def _java(environment: Mapping[str, str], spark: str) -> Finding:
    home = environment.get("JAVA_HOME", "")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    fix = "install a Java 17 or 21 (JDK or JRE), and let JAVA_HOME name its folder"
    if program is None:
        return problem("java", "is not on the path, and JAVA_HOME is not set", fix)
    try:
        done = _run([program, "-version"], environment)
    except OSError as error:
        return problem("java", f"{program} cannot be started ({error.strerror})", fix)
    told = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or told is None:
        return problem("java", f"{program} -version failed: {_line(done.stderr or done.stdout, 0)}", fix)
    number = int(told[1])
    text = f"{number} at {program}"
    if number < OLDEST_JAVA:
        return problem("java", f"{text} is too old", fix)
    newest = NEWEST_JAVA.get(_numbers(spark), number)
    if number > newest:
        return problem(
            "java", f"{text} is too new for Spark {spark}", f"use Java 17 to {newest}, or Spark 4.2 or newer"
        )
    return ok("java", text)


def _workers(environment: Mapping[str, str]) -> Finding:
    """Check the Python that Spark starts for readers and tasks on this machine."""
    name = "python of Spark's workers"
    configured = environment.get("PYSPARK_PYTHON", "")
    program = configured or "python3"
    fix = f"export PYSPARK_PYTHON={sys.executable} before the driver starts, and the same on every executor"
    try:
        done = _run([program, "-c", _ASK], environment)
    except OSError as error:
        return problem(name, f"{program} cannot be started ({error.strerror})", fix)
    lines = done.stdout.splitlines()
    how = f"{program} ({'PYSPARK_PYTHON' if configured else 'PYSPARK_PYTHON is not set'})"
    if not lines:
        return problem(name, f"{how} failed: {_line(done.stderr, 0)}", fix)
    theirs, ours = lines[0].replace(" ", "."), ".".join(map(str, sys.version_info[:2]))
    if theirs != ours:
        return problem(name, f"{how} is Python {theirs}, this driver's is {ours}", fix)
    if done.returncode:
        return problem(name, f"{how} lacks what is needed: {_line(done.stderr, -1)}", fix)
    if Path(lines[1]).resolve() != Path(sys.prefix).resolve():
        return warning(name, f"{how} is another environment than this one: {lines[1]}", fix)
    return ok(name, how)


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_TIME_OUT, env=dict(environment), cwd="/"
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Return the major and minor version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _line(text: str, place: int) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[place]


def examine_store(url: str, *, local: bool = True) -> Iterator[Finding]:
    """Check the store behind an SQLAlchemy URL. `local`: all executors run on this machine."""
    try:
        database = Database(url, patience=_PATIENCE)
    except ShardStoreError as error:
        yield problem("store", str(error), "see docs/how-to/shared-store.md for URLs and drivers")
        return
    try:
        yield from _database(database, local)
    except ShardStoreError as error:
        yield problem("store", str(error), "mend the URL, the network, or the rights of the user, and run this again")
    finally:
        database.close()


def _database(database: Database, local: bool) -> Iterator[Finding]:
    file = database.file()
    if file is not None and not local:
        server = "use PostgreSQL or MariaDB/MySQL: docs/how-to/shared-store.md"
        yield problem("store's place", f"{file} is a SQLite file, and executors run on other machines", server)
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
        text = f"schema {revision} is older than this version's {REVISION}"
        step = f"stop the queries that use it, and run: {install.COMMAND}"
        if revision < install.OLDEST:
            step = "migrate it with cuesqueue 0.3 first, or name another database"
        yield problem("store's tables", text, step)
    else:
        text = f"schema {revision} is newer than this version's {REVISION}"
        yield warning("store's tables", text, "install the newer cuesqueue here")


def examine_queues(options: ReaderOptions) -> Iterator[Finding]:
    """Check the queues of a reader, and its error queue. What a reader would warn of is logged."""
    for url in options.queue.urls:
        yield from _queue("queue", url, options, lambda queue: check_suitability([queue], options))
    if (errors := options.delivery.error_queue_url) is not None:
        yield from _queue("error queue", errors, options, check_error_queue)


def _queue(what: str, url: SecretUrl, options: ReaderOptions, check: Callable[[Queue], None]) -> Iterator[Finding]:
    try:
        with open_queue(url.reveal(), **connection_options(url, options.queue)) as queue:
            manager = administered(queue)
            if manager is not None and not manager.exists():
                fix = f"create it: cuesqueue queue create '{queue.name}'"
                yield problem(what, f"{queue.name} does not exist", fix)
                return
            depth = queue.depth() if queue.capabilities.reports_depth else None
            check(queue)
    except QueueNotFound as error:
        yield problem(what, str(error), f"create it (`cuesqueue queue create {url}`), or mend its URL")
    except CuesqueueError as error:
        yield problem(what, str(error), "mend what it says, and run this again")
    else:
        waiting = "" if depth is None else f", {counted(depth.ready, 'message')} waiting and {depth.in_flight:,} leased"
        yield ok(what, f"{queue.name} can be asked{waiting}")
        if what == "queue":
            yield skipped(
                "queue's rights to receive and delete",
                f"not tried for {queue.name}, since that would change its messages",
                "docs/how-to has the rights that each kind of queue needs",
            )


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


def _reading(listed: ListedObject, storage: StorageOptions) -> Finding:
    try:
        with open_object(listed.uri, storage, size=listed.size) as file:
            file.read(1)
    except CuesqueueError as error:
        fix = "give the credentials the right to read there, or mend the options of storage"
        return problem("object", str(error), fix)
    return ok("object", f"{listed.uri} can be read from here; executors need the same variables, files and rights")
