"""Logging in a Python process that Spark has started: where nobody else has set it up, lines go to standard error.

Spark hands on what its Python processes write there: those of the reader to the driver's standard error, those of tasks
to that of their executor. The root logger is left alone, and so is `cuesqueue` where it has a handler of somebody
else: lines then go where that handler, or one of the root logger, sends them.
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

_MESSAGES = 200  # different ones that are counted apart; our own are fewer, and those beyond are counted as one
_ADD_ORIGIN = AddOrigin()  # one object: a logger takes the same filter only once


class Limit:
    """How often each message was said. A message is known by its template: what is inserted does not count.

    `clock` gives seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._said: dict[tuple[int, str], int] = {}

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether the record is one of the first of its message in this period. Lines for debugging all are."""
        if record.levelno <= logging.DEBUG:
            return True
        message = record.levelno, str(record.msg)
        if message not in self._said and len(self._said) >= _MESSAGES:
            message = logging.WARNING, "other messages"
        self._said[message] = self._said.get(message, 0) + 1
        return self._said[message] <= LINES

    def left_out(self, *, end: bool) -> Iterator[logging.LogRecord]:
        """A line for each message that was left out in the period before, once it is over, or at the `end`."""
        if not end and self._clock() - self._began < PERIOD:
            return
        said, self._said, self._began = self._said, {}, self._clock()
        for (level, message), count in said.items():
            if count > LINES:
                yield logging.LogRecord(NAME, level, __file__, 0, LEFT_OUT, (count - LINES, message), None)


class Lines(logging.Handler):
    """Our handler: its origin, its bound and its form for each line.

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
        except Exception:  # noqa: BLE001 - as all handlers do: what cannot be logged ends nothing
            self.handleError(record)

    def tell(self, *, end: bool = False) -> None:
        """Say how many lines were left out, when their minute is over; at the `end` in any case."""
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
    """Let the lines of this process from `level` on go to standard error in this form.

    May be called before each piece of work: a worker of Spark runs tasks of several queries, one after the other. Where
    `cuesqueue` or the root logger has a handler of somebody else, lines only get their fields, and ours goes.
    """
    logger = logging.getLogger(NAME)
    logger.addFilter(_ADD_ORIGIN)
    ours = [handler for handler in logger.handlers if isinstance(handler, Lines)]
    theirs = [one for one in (*logger.handlers, *logging.getLogger().handlers) if not isinstance(one, Lines)]
    if theirs:
        for handler in ours:
            logger.removeHandler(handler)
            logger.propagate = True
        return
    handler = ours[0] if ours else Lines()
    handler.setFormatter(FORMS[form]())
    logger.setLevel(level.upper())
    logger.propagate = False  # a handler of the root logger that comes later would write each line once more
    if not ours:
        logger.addHandler(handler)


def tell_left_out(*, end: bool = False) -> None:
    """Say how many lines were left out, as `Lines.tell`, where lines are ours."""
    for handler in logging.getLogger(NAME).handlers:
        if isinstance(handler, Lines):
            handler.tell(end=end)
