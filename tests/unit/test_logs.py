"""Log lines of Spark's Python processes: their origin, their form, their bounds, and nothing in them that is secret."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queue_source.common import logs
from queue_source.common.logs import FORMS, LINES, PERIOD, Lines, Origin, set_up, tell_left_out, work_on
from queue_source.coordinator.session import Threads
from queue_source.queues.adapter import log_id


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger `cuesqueue`, left as it was found."""
    ours = logging.getLogger("cuesqueue")
    before = ours.handlers[:], ours.level, ours.propagate, ours.filters[:]
    yield ours
    for handler in ours.handlers:
        handler.close()
    ours.handlers, level, ours.propagate, ours.filters = before
    ours.setLevel(level)
    work_on(None)


@contextmanager
def nobody_listens() -> Iterator[None]:
    """As in a new process of Spark: the root logger has no handler, not even pytest's."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    yield
    root.handlers = before


class Writer:
    """A handler of ours that writes to a text."""

    def __init__(self, logger: logging.Logger, form: str = "text") -> None:
        self.stream, self.clock = io.StringIO(), Clock()
        self.handler = Lines(self.stream, self.clock)
        self.handler.setFormatter(FORMS[form]())
        logger.addHandler(self.handler)
        logger.setLevel("DEBUG")
        logger.propagate = False

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def test_a_line_says_which_pipeline_seq_and_plan_it_is_of(logger: logging.Logger) -> None:
    writer = Writer(logger)
    origin = Origin("orders")
    work_on(origin)
    logger.warning("first")
    origin.seq, origin.plan = 41, "40-41"
    with log_id("request-7"):
        logger.warning("second, of %d", 2)
    work_on(Origin("orders", 41, "40-41", task="3.1"))
    logger.warning("third")
    first, second, third = writer.lines
    assert first.endswith("Z WARNING cuesqueue [pipeline=orders] first")
    assert second.endswith("[pipeline=orders seq=41 plan=40-41 log_id=request-7] second, of 2")
    assert third.endswith("[pipeline=orders seq=41 plan=40-41 task=3.1] third")


def test_a_line_of_json_has_its_fields_and_the_message_by_which_it_is_found_on_the_page(
    logger: logging.Logger,
) -> None:
    writer = Writer(logger, "json")
    work_on(Origin("orders", 41))
    logger.warning("%d were bad", 3, extra={"cuesqueue_cause": "bad-record", "cuesqueue_message": "m-1"})
    (line,) = writer.objects
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING", "logger": "cuesqueue", "thread": "MainThread", "pipeline": "orders", "seq": 41,
        "cause": "bad-record", "message_id": "m-1", "message": "3 were bad", "template": "%d were bad",
    }  # fmt: skip


def test_what_a_line_says_of_itself_is_kept(logger: logging.Logger) -> None:
    writer = Writer(logger, "json")
    work_on(Origin("orders", 42, "41-42"))
    logger.warning("an error of the plan before", extra={"cuesqueue_plan": "40-41"})
    assert writer.objects[0]["plan"] == "40-41"


def test_lines_of_the_readers_threads_are_of_its_pipeline(logger: logging.Logger) -> None:
    writer = Writer(logger, "json")
    origin = Origin("orders")
    work_on(origin)
    go_on, threads = threading.Event(), Threads()

    def work() -> None:
        go_on.wait(10)
        logger.warning("from a thread")

    threads.start("work", work)
    origin.seq = 5  # noted after the thread was started
    go_on.set()
    threads.stop(10)
    assert (writer.objects[0]["pipeline"], writer.objects[0]["seq"]) == ("orders", 5)
    assert writer.objects[0]["thread"] == "cuesqueue-work"


@pytest.mark.parametrize("form", FORMS)
def test_no_password_is_in_a_line_wherever_it_stands(logger: logging.Logger, form: str) -> None:
    writer = Writer(logger, form)
    logger.warning("cannot reach %s", "postgresql://user:hunter2@host/db?password=hunter2")
    logger.warning("refused", extra={"cuesqueue_queue": "amqp://u:hunter2@host/", "cuesqueue_number": 7})
    try:
        raise OSError("no answer of amqp://u:hunter2@host/")
    except OSError:
        logger.warning("it failed", exc_info=True)
    assert len(writer.lines) == 3
    assert "hunter2" not in writer.stream.getvalue()
    assert "user:***@host" in writer.lines[0]
    if form == "json":
        assert writer.objects[1]["number"] == 7
        assert "OSError" in writer.objects[2]["trace"]


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_holds_line_ends_or_escapes_makes_no_line_of_its_own(logger: logging.Logger, form: str) -> None:
    writer = Writer(logger, form)
    logger.warning("bad object %s", "a\n2026-11-22T00:00:00.000Z ERROR forged \x1b[2J \u202e")
    (line,) = writer.lines
    assert line.isprintable()


def test_a_message_said_too_often_is_left_out_and_counted(logger: logging.Logger) -> None:
    writer = Writer(logger)
    for number in range(LINES + 7):
        logger.warning("try %d failed", number)
    logger.warning("another message")
    assert len(writer.lines) == LINES + 1
    writer.clock.now += PERIOD
    writer.handler.tell()
    assert writer.lines[-1].endswith("7 more line(s) like this one were left out within a minute: try %d failed")
    logger.warning("try %d failed", 1)
    assert len(writer.lines) == LINES + 3, "a new minute"


def test_what_was_left_out_is_told_with_the_next_line_and_at_the_end(logger: logging.Logger) -> None:
    writer = Writer(logger)
    for _ in range(LINES + 2):
        logger.warning("again")
    writer.clock.now += PERIOD
    logger.warning("another")
    assert " 2 more line(s) like this one" in writer.lines[-2]
    for _ in range(LINES + 3):
        logger.info("again")
    writer.handler.tell()
    assert " 3 more line(s)" not in writer.lines[-1], "its minute is not over"
    tell_left_out(end=True)
    assert writer.lines[-1].endswith("3 more line(s) like this one were left out within a minute: again")
    tell_left_out(end=True)
    assert writer.stream.getvalue().count(" 3 more line(s)") == 1


def test_lines_for_debugging_are_all_there(logger: logging.Logger) -> None:
    writer = Writer(logger)
    for number in range(LINES + 5):
        logger.debug("step %d", number)
    assert len(writer.lines) == LINES + 5


def test_messages_without_number_take_a_bounded_amount_of_memory_and_of_lines(logger: logging.Logger) -> None:
    writer = Writer(logger)
    for number in range(10_000):
        logger.warning(f"message {number}")
    assert len(writer.lines) == logs._MESSAGES + LINES
    assert len(writer.handler._said) == logs._MESSAGES + 1


def test_a_new_process_writes_to_standard_error_at_the_level_of_the_option(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with nobody_listens():
        set_up("warning", "text")
        logger.info("not this")
        logger.warning("this")
        set_up("info", "json")
        logger.info("and this")
        assert len(logger.handlers) == 1
        assert logging.getLogger().handlers == []
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("WARNING cuesqueue this")
    assert json.loads(second)["message"] == "and this"


@pytest.mark.parametrize("whose", ["cuesqueue", ""])
def test_where_somebody_has_set_up_logging_lines_only_get_their_fields(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], whose: str
) -> None:
    seen: list[logging.LogRecord] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    own = Own()
    with nobody_listens():
        set_up("info", "text")
        logging.getLogger(whose).addHandler(own)  # as Spark does while it captures what a task writes
        logger.setLevel("ERROR")
        set_up("info", "text")
        work_on(Origin("orders"))
        logger.error("once")
        assert (logger.level, logger.propagate) == (logging.ERROR, True)
        logging.getLogger(whose).removeHandler(own)
        assert capsys.readouterr().err == ""
        set_up("info", "text")
        logger.info("ours again")
    assert [(one.getMessage(), vars(one)["cuesqueue_pipeline"]) for one in seen] == [("once", "orders")]
    assert "ours again" in capsys.readouterr().err
