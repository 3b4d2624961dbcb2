"""Log lines of Spark's Python processes: the origin of a line, its two forms without secrets, and where lines go.

Threads share the origin, since they copy the context of the thread that starts them: later changes of the micro-batch
show in the lines of all of them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TextIO

from queue_source.queues.adapter import current_log_id
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


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of its line, the origin first."""
    fields = {name.removeprefix(PREFIX): value for name, value in vars(record).items() if name.startswith(PREFIX)}
    first = {name: fields[name] for name in ("pipeline", "seq", "plan", "task", "log_id") if name in fields}
    return first | fields


_NAMES = {"message": "message_id"}  # in JSON, where `message` is the text
_IN_TEXT = ("pipeline", "seq", "plan", "task", "log_id")


class TextLines(logging.Formatter):
    """`2026-11-22T18:15:00.123Z WARNING cuesqueue [pipeline=orders seq=41 plan=40-41] the message`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        place = " ".join(f"{name}={fields[name]}" for name in _IN_TEXT if name in fields)
        said = " ".join(filter(None, (f"[{place}]" if place else "", record.getMessage(), _trace(record))))
        return f"{_time(record)} {record.levelname} {record.name} {_one_line(redact_text(said))}"


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
        return json.dumps({name: _redacted(value) for name, value in line.items()})


FORMS: dict[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


def _redacted(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else redact_text(str(value))


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _one_line(text: str) -> str:
    """Escape what is not printable: senders of messages choose names that are in such lines."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


NAME = "cuesqueue"
"""The logger of everything here."""

LINES = 60
"""Lines of one message in a period; of those beyond, one line says how many there were."""

PERIOD = 60.0
"""Seconds."""

LEFT_OUT = "%d more line(s) like this one were left out within a minute: %s"

_MESSAGES = 200  # different ones that are counted separately; our own are fewer, and further ones are counted as one
_ADD_ORIGIN = AddOrigin()  # one object: a logger takes the same filter only once


class Limit:
    """Counts how often each message was logged. A message is identified by its template, without inserted values.

    `clock` gives seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._said: dict[tuple[int, str], int] = {}

    def admits(self, record: logging.LogRecord) -> bool:
        """Tell whether the record is one of the first of its message in this period; always for debugging lines."""
        if record.levelno <= logging.DEBUG:
            return True
        message = record.levelno, str(record.msg)
        if message not in self._said and len(self._said) >= _MESSAGES:
            message = logging.WARNING, "other messages"
        self._said[message] = self._said.get(message, 0) + 1
        return self._said[message] <= LINES

    def left_out(self, *, end: bool) -> Iterator[logging.LogRecord]:
        """Yield a line for each message that was left out in the last period, once it is over, or at the `end`."""
        if not end and self._clock() - self._began < PERIOD:
            return
        said, self._said, self._began = self._said, {}, self._clock()
        for (level, message), count in said.items():
            if count > LINES:
                yield logging.LogRecord(NAME, level, __file__, 0, LEFT_OUT, (count - LINES, message), None)


class Lines(logging.Handler):
    """Our handler: adds origin, bound and form to each line.

    `stream`: None for standard error, whatever that is at the time.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._stream = stream
        self._limit = Limit(clock)
        self.addFilter(_ADD_ORIGIN)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say_left_out(end=False)
            if self._limit.admits(record):
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
        for record in self._limit.left_out(end=end):
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
