"""`cuesqueue doctor`: checks what a query needs on this machine, of its store, its queues and its objects.

The checks change nothing: they may run beside readers. Each hides secrets, because the messages of libraries often show
URLs.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import UNHEALTHY, WIDTH, Json, counted, print_result, tell
from queue_source.commands.parameters import named_options, option
from queue_source.errors import CuesqueueError, OptionError, QueueNotFound
from queue_source.options import ReaderOptions, connection_options, parse_reader_options
from queue_source.options.checks import check_error_queue, check_suitability
from queue_source.options.connections import DEFAULT_STORE, StorageOptions
from queue_source.options.types import SecretUrl
from queue_source.queues import open_queue
from queue_source.queues.base import Queue, administered
from queue_source.spark.java import examine_java, line_of, numbers, run_program
from queue_source.storage.buckets import open_bucket
from queue_source.storage.files import open_object
from shard_store.errors import ShardStoreError
from shard_store.redaction import redact_text, visible
from shard_store.sql import install
from shard_store.sql.database import Database
from shard_store.sql.schema import REVISION

if TYPE_CHECKING:  # it loads Spark
    from queue_source.spark.doctor import Worker

_ASK = (
    "import sys; print(*sys.version_info[:2]); import pyarrow, queue_source.spark.source; "
    "import pyspark.sql.pandas.utils as u; u.require_minimum_pyarrow_version(); print(sys.prefix)"
)
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


def _finding(state: State, check: str, text: str, fix: str = "") -> Finding:
    return Finding(check, state, redact_text(text), redact_text(fix))


ok, warning, problem, skipped = (partial(_finding, state) for state in State)


def doctor(
    store: Annotated[
        str | None,
        option(
            "URL",
            "Database of the store; else that of storeUrl.",
            "--store",
            envvar="CUESQUEUE_STORE",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A reader's option, as queueUrl=URL; may be repeated.", "--option", "-o"),
    ] = None,
    options: Annotated[
        Path | None, option("FILE", "The options as a JSON object, so that no secret is in a command.")
    ] = None,
    spark_master: Annotated[str | None, option("URL", "Start a Spark session there, and ask its executors.")] = None,
    as_json: Json = False,
) -> None:
    """Check what a query needs: Java, Python, the store, and with the reader's options its queues and objects.

    Changes nothing. Exit code 3: a problem.
    """
    reader_options: dict[str, Any] = {}
    if options is not None:
        try:
            reader_options = json.loads(options.read_text("utf-8"))
        except ValueError:
            reader_options = {"": ""}
        is_object = isinstance(reader_options, dict)
        if not is_object or not all(name and isinstance(text, str) for name, text in reader_options.items()):
            wrong = 'the file is not a JSON object of texts, such as {"queueUrl": "sqs://files"}'
            raise OptionError("--options", wrong)
    reader_options |= named_options(option)
    findings: list[Finding] = []
    for finding in _findings(store, reader_options, spark_master):
        findings.append(finding)
        if not as_json:
            begin = f"{finding.state.value:<9}"
            text, fix = visible(f"{finding.check}: {finding.text}"), visible(finding.fix)  # no fix makes no line
            lines = textwrap.wrap(text, WIDTH, initial_indent=begin, subsequent_indent=" " * 9)
            lines += textwrap.wrap(fix, WIDTH, initial_indent=" " * 9 + "-> ", subsequent_indent=" " * 12)
            typer.echo("\n".join(lines))
    problems, warnings = (sum(f.state is state for f in findings) for state in (State.PROBLEM, State.WARNING))
    if as_json:
        entries = [{**asdict(finding), "state": finding.state.value} for finding in findings]
        print_result({"healthy": not problems, "findings": entries}, as_json, title="doctor")
    else:
        tell(f"{problems} problem(s), {warnings} warning(s)")
    if problems:
        raise typer.Exit(UNHEALTHY)


def _findings(store: str | None, reader_options: dict[str, str], spark_master: str | None) -> Iterator[Finding]:
    """Yield one finding after the other, so that users see progress while slow checks run."""
    yield from examine_machine()
    if spark_master is None:
        yield skipped("executors", "not asked", "name --spark-master URL to start a session there")
    else:
        yield from examine_spark(spark_master)
    read: ReaderOptions | None = None
    if reader_options:
        try:
            read = parse_reader_options({**reader_options, **({} if store is None else {"storeUrl": store})})
            yield ok("options", f"{len(reader_options)} options fit together")
        except OptionError as error:
            yield problem("options", str(error), "mend the option that it names; docs/reference/options.md")
    url = store or (read.store.reveal() if read is not None else None)
    if url is None and Path(DEFAULT_STORE.removeprefix("sqlite:///")).is_file():
        url = DEFAULT_STORE
    if url is None:
        yield skipped("store", "not looked at", "name it with --store URL")
    else:
        local = spark_master is None or spark_master.startswith("local")
        yield from examine_store(url, local=local)
    if read is None:
        yield skipped("queue, objects", "not looked at", "name the reader's options: -o queueUrl=... -o ...")
        return
    yield from examine_queues(read)
    prefixes = dict.fromkeys((*read.notifications.allowed_prefixes, *read.backfill.prefixes))
    yield from examine_prefixes(list(prefixes), read.content.storage)


def examine_machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check Java and the Python of Spark's workers. `environment`: the variables that the driver has."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        yield problem("pyspark", "is not installed in this Python", "pip install 'pyspark>=4.0'")
        return
    if numbers(spark) < (4, 0):
        yield problem("pyspark", f"{spark} is too old", "pip install 'pyspark>=4.0'")
    else:
        yield ok("pyspark", spark)
    yield _java(environment, spark)
    yield _workers(environment)


def _java(environment: Mapping[str, str], spark: str) -> Finding:
    text, fix = examine_java(environment, spark)
    return problem("java", text, fix) if fix else ok("java", text)


def _workers(environment: Mapping[str, str]) -> Finding:
    """Check the Python that Spark starts for readers and tasks on this machine."""
    name = "python of Spark's workers"
    configured = environment.get("PYSPARK_PYTHON", "")
    program = configured or "python3"
    fix = f"export PYSPARK_PYTHON={sys.executable} before the driver starts, and the same on every executor"
    try:
        done = run_program([program, "-c", _ASK], environment)
    except OSError as error:
        return problem(name, f"{program} cannot be started ({error.strerror})", fix)
    lines = done.stdout.splitlines()
    how = f"{program} ({'PYSPARK_PYTHON' if configured else 'PYSPARK_PYTHON is not set'})"
    if not lines:
        return problem(name, f"{how} failed: {line_of(done.stderr, 0)}", fix)
    theirs, ours = lines[0].replace(" ", "."), ".".join(map(str, sys.version_info[:2]))
    if theirs != ours:
        return problem(name, f"{how} is Python {theirs}, this driver's is {ours}", fix)
    if done.returncode:
        return problem(name, f"{how} lacks what is needed: {line_of(done.stderr, -1)}", fix)
    if Path(lines[1]).resolve() != Path(sys.prefix).resolve():
        return warning(name, f"{how} is another environment than this one: {lines[1]}", fix)
    return ok(name, how)


def examine_spark(master: str) -> Iterator[Finding]:
    """Start a session on this master, and compare the Python of its executors with the driver's. Ends the session."""
    from queue_source.spark.doctor import session_on, this_worker, workers_of  # here: it loads Spark

    try:
        with session_on(master) as session:
            yield ok("spark", f"{session.version} on {master}")
            try:
                yield from examine_workers(workers_of(session), this_worker())
            except CuesqueueError as error:
                fix = "install cuesqueue and its extras in the Python of every executor: docs/how-to/clusters.md"
                yield problem("executors", str(error), fix)
    except CuesqueueError as error:
        yield problem("spark", str(error), "see the lines before it; docs/troubleshooting.md")


def examine_workers(workers: Iterable[Worker], driver: Worker) -> Iterator[Finding]:
    """Compare each kind of worker with the driver."""
    page = "install the same versions for driver and executors, and let PYSPARK_PYTHON name that Python: "
    page += "docs/how-to/clusters.md"
    for worker in workers:
        if worker.error:
            yield problem("executors", f"{worker.as_text()}: {worker.error}", page)
        elif worker.python != driver.python:
            yield problem("executors", f"{worker.as_text()}, and the driver has Python {driver.python}", page)
        elif worker.versions != driver.versions:
            yield warning("executors", f"{worker.as_text()}, and the driver has {driver.as_text()}", page)
        else:
            yield ok("executors", worker.as_text())


def examine_store(url: str, *, local: bool = True) -> Iterator[Finding]:
    """Check the store behind an SQLAlchemy URL. `local`: all executors run on this machine."""
    fix = "see docs/how-to/store.md for URLs and drivers"
    try:
        with closing(Database(url, patience=_PATIENCE)) as database:
            fix = "mend the URL, the network, or the rights of the user, and run this again"
            file = database.file()
            if file is not None and not local:
                server = "use PostgreSQL or MariaDB/MySQL: docs/how-to/store.md"
                yield problem("store's place", f"{file} is a SQLite file, and executors run on other machines", server)
            if file is not None and not file.exists():
                yield ok("store", f"{database.name}: there is no such file yet; the first start of a query makes it")
                return
            revision = install.installed(database)
            yield ok("store", f"{database.name} can be reached")
    except ShardStoreError as error:
        yield problem("store", str(error), fix)
        return
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
            with closing(open_bucket(prefix, storage)) as bucket:
                page = bucket.page(prefix)
        except CuesqueueError as error:
            fix = "mend the prefix, or give the credentials the rights to list and to read there"
            yield problem("prefix", str(error), fix)
            continue
        more = "" if page.cursor is None else " and more"
        if page.objects or more:
            yield ok("prefix", f"{prefix}: {counted(len(page.objects), 'object')}{more} can be listed")
        else:
            text = f"{prefix}: no object begins with it, so whether objects can be read is not known"
            yield warning("prefix", text, "compare it with the names of your objects; all is well if none is there yet")
        if page.objects:
            largest = max(page.objects, key=lambda listed: listed.size)
            try:
                with open_object(largest.uri, storage, size=largest.size) as file:
                    file.read(1)
            except CuesqueueError as error:
                fix = "give the credentials the right to read there, or mend the options of storage"
                yield problem("object", str(error), fix)
            else:
                text = f"{largest.uri} can be read from here; executors need the same variables, files and rights"
                yield ok("object", text)
