"""Logging in a Python process that Spark has started: lines go to standard error, unless logging is set up already.

Spark forwards that output: the reader's to the driver's standard error, that of tasks to their executor's. The root
logger is left alone, and so is `cuesqueue` where it has a handler of another owner: lines then go where that handler,
or one of the root logger, sends them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from queue_source.logs.context import AddOrigin
from queue_source.logs.lines import FORMS

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
