"""Log lines of Spark's Python processes, and the errors that end a query.

A line has the origin of its work, one of two forms without secrets, and a bound. Threads share the origin, since they
copy the context of the thread that starts them: later changes of the micro-batch show in the lines of all of them.

Spark hands on the traces of its Python processes, and adds its own and the query's state: the sentence that helps
stood between them. Our errors leave such a process without a trace (`one_line_errors`), and a script that imports
`cuesqueue` ends with the sentence and the page that says more (`cuesqueue/last_line.py`). Nothing but our errors leaves
such a process (`our_errors`): Spark could not pickle some of those of libraries, and their texts may hold secrets.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

from queue_source.errors import CuesqueueError
from queue_source.queues.adapter import current_log_id
from queue_source.queues.urls import kind_of
from shard_store.errors import ShardStoreError
from shard_store.failpoints import FailpointReached
from shard_store.redaction import redact_text

PREFIX = "cuesqueue_"
"""Of the attributes of a log record that hold a field of its line."""


@dataclass(slots=True)
class Origin:
    """The origin of a process's work. Only the reader process changes `seq` and `plan`, batch by batch.

    `seq` is the newest snapshot, and `plan` the running micro-batch, as `START-END` of seqs; in an executor both are
    those of the task, and `task` is its number.
    """

    pipeline: str
    seq: int | None = None
    plan: str | None = None
    task: str | None = None


_origin: ContextVar[Origin | None] = ContextVar("cuesqueue_origin", default=None)


def work_on(origin: Origin | None) -> None:
    """Set the origin of all further lines of this context, and of threads that copy it; None: unknown."""
    _origin.set(origin)


class AddOrigin(logging.Filter):
    """Gives each record its origin as attributes `cuesqueue_NAME`; fields of the line itself stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        origin = _origin.get()
        fields: dict[str, object] = {"log_id": current_log_id()}
        if origin is not None:
            fields |= {"pipeline": origin.pipeline, "seq": origin.seq, "plan": origin.plan, "task": origin.task}
        for name, value in fields.items():
            if value is not None and not hasattr(record, PREFIX + name):
                setattr(record, PREFIX + name, value)
        return True


_ORIGIN = ("pipeline", "seq", "plan", "task", "log_id")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of its line, the origin first."""
    fields = {name.removeprefix(PREFIX): value for name, value in vars(record).items() if name.startswith(PREFIX)}
    first = {name: fields[name] for name in _ORIGIN if name in fields}
    return first | fields


_NAMES = {"message": "message_id"}  # in JSON, where `message` is the text


class TextLines(logging.Formatter):
    """`2026-11-22T18:15:00.123Z WARNING cuesqueue [pipeline=orders seq=41 plan=40-41] the message`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        place = " ".join(f"{name}={fields[name]}" for name in _ORIGIN if name in fields)
        said = " ".join(filter(None, (f"[{place}]" if place else "", record.getMessage(), _trace(record))))
        # what is not printable is escaped: senders of messages choose names that are in such lines
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in redact_text(said))
        return f"{_time(record)} {record.levelname} {record.name} {line}"


class JsonLines(logging.Formatter):
    """One JSON object: `time`, `level`, `logger`, `thread`, the fields of the line, `message` and its `template`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            **{_NAMES.get(name, name): value for name, value in fields_of(record).items()},
            "message": record.getMessage(),
            "template": str(record.msg),
        }
        if trace := _trace(record):
            line["trace"] = trace
        # in each value: a redacted line of JSON would be invalid
        plain = bool, int, float, type(None)
        redacted = {name: v if isinstance(v, plain) else redact_text(str(v)) for name, v in line.items()}
        return json.dumps(redacted)


FORMS: dict[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


NAME = "cuesqueue"
"""The logger of everything here."""

LINES = 60
"""Lines of one message in a period; of those beyond, one line says how many there were."""

PERIOD = 60.0
"""Seconds."""

LEFT_OUT = "%d more line(s) like this one were left out within a minute: %s"

_MESSAGES = 200  # different ones that are counted separately; our own are fewer, and further ones are counted as one
_ADD_ORIGIN = AddOrigin()  # one object: a logger takes the same filter only once


class Lines(logging.Handler):
    """Our handler: adds origin, bound and form to each line.

    A message is identified by its template, without inserted values; debugging lines have no bound. `stream`: None for
    standard error, whatever that is at the time. `clock` gives seconds of a monotonic clock.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._said: dict[tuple[int, str], int] = {}  # how often each message was logged in this period
        self.addFilter(_ADD_ORIGIN)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say_left_out(end=False)
            if record.levelno > logging.DEBUG:
                message = record.levelno, str(record.msg)
                if message not in self._said and len(self._said) >= _MESSAGES:
                    message = logging.WARNING, "other messages"
                self._said[message] = self._said.get(message, 0) + 1
                if self._said[message] > LINES:
                    return
            self._write(record)
        except Exception:  # noqa: BLE001 - as all handlers do: a failure to log ends nothing
            self.handleError(record)

    def tell(self, *, end: bool = False) -> None:
        """Log how many lines were left out, once their minute is over; at the `end` in any case."""
        self.acquire()
        try:
            self._say_left_out(end=end)
        finally:
            self.release()

    def close(self) -> None:
        self.tell(end=True)
        super().close()

    def _say_left_out(self, *, end: bool) -> None:
        """Log a line for each message that was left out in the last period, once it is over, or at the `end`."""
        if not end and self._clock() - self._began < PERIOD:
            return
        said, self._said, self._began = self._said, {}, self._clock()
        for (level, message), count in said.items():
            if count > LINES:
                record = logging.LogRecord(NAME, level, __file__, 0, LEFT_OUT, (count - LINES, message), None)
                _ADD_ORIGIN.filter(record)
                self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        stream = self._stream or sys.stderr
        stream.write(self.format(record) + "\n")
        stream.flush()


def set_up(level: str, form: str) -> None:
    """Send the lines of this process from `level` on to standard error in this form.

    May be called before each piece of work: a worker of Spark runs tasks of several queries, one after the other. Where
    `cuesqueue` or the root logger has a handler of another owner, lines only get their fields, and ours is removed.
    """
    logger = logging.getLogger(NAME)
    logger.addFilter(_ADD_ORIGIN)
    ours = [handler for handler in logger.handlers if isinstance(handler, Lines)]
    theirs = [
        handler for handler in (*logger.handlers, *logging.getLogger().handlers) if not isinstance(handler, Lines)
    ]
    if theirs:
        for handler in ours:
            logger.removeHandler(handler)
            logger.propagate = True
        return
    handler = ours[0] if ours else Lines()
    handler.setFormatter(FORMS[form]())
    logger.setLevel(level.upper())
    logger.propagate = False  # a later handler of the root logger would write each line once more
    if not ours:
        logger.addHandler(handler)


def tell_left_out(*, end: bool = False) -> None:
    """Log how many lines were left out, as `Lines.tell`, if our handler is set up."""
    for handler in logging.getLogger(NAME).handlers:
        if isinstance(handler, Lines):
            handler.tell(end=end)


HIDE = "SPARK_HIDE_TRACEBACK"
"""The variable by which a Python process of Spark leaves traces out of the text that it sends to the JVM."""
_BY_US = "by cuesqueue"

# Spark 4.0 and 4.1 put the method that returns a source's name where the name belongs; others' sources are not ours
_SOURCE = r"data source (?:cuesqueue|<bound method CuesqueueSource\.name of <class '[^']+'>>) throw exception"
_OURS = re.compile(rf"(?:(?:queue_source|shard_store)\.errors\.(?P<kind>\w+)|{_SOURCE}): (?P<sentence>.+)")
_WRONG_PYTHON = re.compile(
    r"Failed to find the data source: cuesqueue|Python worker failed to connect back|PYTHON_VERSION_MISMATCH"
    r"|No module named '(?:pyspark_cuesqueue|queue_source|shard_store|pyarrow)'"
    r"|Cannot run program \"[^\"]*python|PACKAGE_NOT_INSTALLED\] PyArrow"
)
_TROUBLESHOOTING = "docs/troubleshooting.md"
_PAGES = {
    "OptionError": "docs/reference/options.md",
    "StoreConfigurationError": "docs/how-to/store.md",
    "StoreUnavailable": "docs/how-to/store.md",
    "ObjectStoreError": "docs/how-to/storage.md",
    "ObjectRefused": "docs/how-to/storage.md",
    "SchemaChanged": "docs/how-to/schema.md",
}


@contextmanager
def our_errors() -> Iterator[None]:
    """Turn an error that is not ours into one that is, with its text; also a decorator of what Spark calls.

    It keeps the trace, but not the errors that led to it, since their texts in a trace would not be redacted.
    """
    try:
        yield
    except (CuesqueueError, ShardStoreError, FailpointReached):
        raise
    except Exception as error:  # noqa: BLE001 - of any library that works in here
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        text = redact_text(" ".join(str(error).split()))
        raise CuesqueueError(
            f"{name}: {text or 'it says nothing more'}; mend what it names, or report it as a bug with its trace"
        ).with_traceback(error.__traceback__) from None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """As `our_errors`; and let an error of ours leave this process of Spark without its trace.

    What was not ours keeps its trace, as everything does with `CUESQUEUE_DEBUG=1`. The process ends with the error: no
    other one loses its trace by that.
    """
    with our_errors():
        try:
            yield
        except (CuesqueueError, ShardStoreError):
            # only where Spark has started this process: in the user's own the variable would act on others
            if _program().startswith("pyspark.") and os.environ.get("CUESQUEUE_DEBUG", "") in ("", "0"):
                os.environ.setdefault(HIDE, _BY_US)
            raise


def _program() -> str:
    """Return the module that this process runs, "" where it is a script."""
    return str(getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", ""))


def end_idle_without_trace() -> None:
    """Have this process end silently, if it is a worker of Spark's, when Spark closes its socket while it has no work.

    When a session ends, Spark closes the sockets of its idle workers, and ends them a moment later. On a busy machine a
    worker notices the first before the second: PySpark's daemon then prints the trace of a BrokenPipeError, below a
    load that has succeeded.
    """
    if _program() != "pyspark.daemon":
        return
    daemon: Any = sys.modules["__main__"]
    work = daemon.worker

    def worker(*arguments: object) -> int:
        try:
            return int(work(*arguments))
        except ConnectionError:  # only what is written to the closed socket raises it there
            return 1  # the daemon's own code for a worker that is not used again

    daemon.worker = worker


@contextmanager
def whole_errors() -> Iterator[None]:
    """As `our_errors`; and let each keep its trace, and what was raised before it.

    A decorator of what Spark calls while an error ends the process.
    """
    with our_errors():
        try:
            yield
        except Exception:
            if os.environ.get(HIDE) == _BY_US:
                del os.environ[HIDE]
            raise


def error_of(text: str) -> tuple[str, str] | None:
    """Return class and sentence of our own error in Spark's text of an exception; None where it has none.

    The class is "" where Spark leaves it out.
    """
    matches = list(_OURS.finditer(text))
    return (matches[-1]["kind"] or "", matches[-1]["sentence"].strip()) if matches else None


def last_line(text: str) -> str | None:
    """Return what a user needs of an exception's class and text: cause, next step, page; None if it is not about us."""
    if (error := error_of(text)) is not None:
        kind, sentence = error
        if "docs/" in sentence:
            return sentence
        if sentence.startswith("queue '"):
            queue = kind_of(sentence.removeprefix("queue '"))
            page = queue.page if queue else _TROUBLESHOOTING
        else:  # Spark 4.0 leaves the kind out, and SinkFailed stands for any
            begins = {"option": "OptionError", "database": "StoreUnavailable"}
            page = _PAGES.get(begins.get(sentence.partition(" ")[0], kind), _TROUBLESHOOTING)
        return f"{sentence} ({page})"
    if text.startswith(("pyspark.", "py4j.")) and _WRONG_PYTHON.search(text):
        return (
            "the Python of Spark's workers cannot import cuesqueue, or is another one: set PYSPARK_PYTHON before Spark "
            f"starts, here to {sys.executable}, and run `cuesqueue doctor` ({_TROUBLESHOOTING})"
        )
    return None
