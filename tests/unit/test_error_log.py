"""Every handled error is a line of the log and a number by its cause, whoever found it; a flood is a few lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_source.coordinator.errors import LINES, PERIOD, ErrorLog
from queue_source.coordinator.session import Metrics
from queue_source.queues import open_queue
from shard_store.model import ErrorRecord, Plan, PublishToken
from support.coordinator_world import EMPTY, World, patiently, uris
from support.driver_loop import DriverLoop, until

PLAN_HASH = "f" * 64


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[LogLines]:
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        yield LogLines(caplog)


class LogLines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name == "cuesqueue"]

    def having(self, *words: str) -> list[str]:
        return [text for text in self.texts if all(word in text for word in words)]


def bad(plan: Plan, place: int, scope: str, cause: str) -> ErrorRecord:
    entry = plan.ranges[place]
    return ErrorRecord(scope, cause, "why", entry.content.uri, plan.identity.delivery_hash, entry.start, queue="files")


def batch_with_errors(world: World, loop: DriverLoop) -> Plan:
    """A batch of three objects: an executor finds one bad, and a record of another."""
    end = loop.latest(0)
    plan = loop.coordinator.plan(0, end)
    with world.store() as store:
        found = [bad(plan, 0, "object", "missing-object"), bad(plan, 1, "record", "bad-record")]
        store.record_errors("files", "files", found)
    loop._deliver(plan, 0)
    return plan


@pytest.mark.parametrize("publishes", [True, False], ids=["own sink", "another sink"])
def test_what_executors_found_bad_is_told_when_its_plan_is_final(
    tmp_path: Path, lines: LogLines, publishes: bool
) -> None:
    world = World(tmp_path)
    with open_queue(world.queue_url) as queue:
        queue.send(uris(3), headers={"X-Ascent-Log-Id": "request-7"})
    with world.loop(publishes=publishes, queueUrl=f"{world.queue_url}&log_id_header=X-Ascent-Log-Id") as loop:
        plan = batch_with_errors(world, loop)
        assert lines.texts == [], "the plan may still be repeated"
        assert loop.latest(1) == 1
        (line,) = lines.having("cause=missing-object")
        bad_uri = plan.ranges[0].content.uri
        assert f"shard={bad_uri} plan=0-1 delivery_hash={plan.identity.delivery_hash} queue=" in line
        assert line.endswith(" log_id=request-7: why")
        assert len(lines.having("bad record", "cause=bad-record")) == 1
        assert loop.coordinator.report()["errors"] == {"missing-object": 1, "bad-record": 1}
        assert loop.latest(1) == 1
    assert len(lines.texts) == 2, "each once"


def errors_of(loop: DriverLoop) -> object:
    return loop.coordinator.report()["errors"]


def test_errors_of_a_plan_whose_reader_died_are_told_by_the_next(tmp_path: Path, lines: LogLines) -> None:
    world = World(tmp_path)
    world.publish(*uris(3))
    with world.loop() as loop:
        batch_with_errors(world, loop)
        loop.die()
    assert lines.texts == []
    with world.loop() as loop:
        assert errors_of(loop) == {"missing-object": 1, "bad-record": 1}
    assert len(lines.having("cause=missing-object")) == 1
    with world.loop() as loop:
        assert errors_of(loop) == {}


def test_messages_that_are_refused_are_told_and_counted(tmp_path: Path, lines: LogLines) -> None:
    world = World(tmp_path)
    world.publish("no notification", "ftp://host/x", *uris(1))
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        assert errors_of(loop) == {"malformed-message": 1, "outside-prefixes": 1}
        assert loop.metrics["quarantined"] == 2
    assert len(lines.having("bad message", "message=")) == 2


def test_a_flood_is_summed_up_by_a_running_query_after_a_minute_and_when_it_stops(
    tmp_path: Path, lines: LogLines
) -> None:
    world = World(tmp_path)
    world.publish(*(f"no notification {number}" for number in range(LINES + 3)))
    with world.loop(skewed=True) as loop:
        until(lambda: loop.metrics["received"] == LINES + 3 and world.depth() == EMPTY, patiently(loop))
        assert lines.having("more error(s)") == []
        loop.advance(PERIOD)
        until(lambda: len(lines.having(" 3 more error(s)")) == 1, patiently(loop))
        world.publish(*(f"another {number}" for number in range(LINES + 4)))
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert len(lines.having(" 4 more error(s)")) == 1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def log_of(clock: Clock, causes: dict[str, int] | None = None) -> tuple[ErrorLog, Any]:
    def of_plans(hashes: Sequence[str], limit: int) -> tuple[dict[str, int], list[Any]]:
        error = SimpleNamespace(
            scope="record", cause="bad-record", detail="why", subject="s", seqs=(0, 1), delivery_hash=PLAN_HASH,
            queue="q", message_id="m", shard_key=None,
        )  # fmt: skip
        return dict(causes or {}), [error] * min(limit, (causes or {}).get("bad-record", 0))

    session: Any = SimpleNamespace(
        clock=clock,
        queues={"rabbit": SimpleNamespace(log_id_header="X-Ascent-Log-Id")},
        token=PublishToken("files", 1),
        metrics=Metrics(),
        store=SimpleNamespace(errors_of_plans=of_plans),
    )
    return ErrorLog(session), session


def messages(count: int) -> list[ErrorRecord]:
    return [ErrorRecord("message", "malformed-message", "why", f"m{n}", message_id=f"m{n}") for n in range(count)]


def test_a_flood_is_a_few_lines_a_minute_and_one_that_says_how_many_were_left_out(lines: LogLines) -> None:
    clock = Clock()
    log, session = log_of(clock, {"bad-record": 500, "missing-object": 1})
    log.of_messages(messages(LINES - 5))
    log.of_plans([PLAN_HASH])
    log.of_messages(messages(100))
    assert len(lines.texts) == LINES
    log.flush()
    assert len(lines.texts) == LINES, "its minute is not over"
    clock.now += PERIOD
    log.flush()
    omitted = "596 more error(s) are not logged one by one: 495 bad-record, 100 malformed-message, 1 missing-object"
    assert omitted in lines.texts[LINES]
    assert session.metrics.snapshot()["errors"] == {
        "bad-record": 500, "missing-object": 1, "malformed-message": LINES + 95,
    }  # fmt: skip
    log.of_messages(messages(1))
    assert len(lines.texts) == LINES + 2, "a new minute"
    clock.now += PERIOD
    log.flush(end=True)
    assert len(lines.texts) == LINES + 2, "nothing was left out"


def test_what_was_left_out_is_told_at_the_end(lines: LogLines) -> None:
    log, _ = log_of(Clock())
    log.of_messages(messages(LINES + 3))
    log.flush(end=True)
    assert "3 more error(s)" in lines.texts[-1]


def test_a_line_is_one_line_of_bounded_length_whatever_a_message_says(lines: LogLines) -> None:
    log, _ = log_of(Clock())
    detail = "a\nforged line \x1b[2J \u202e" + "x" * 10_000
    log.of_messages([ErrorRecord("message", "malformed-message", detail, "m", message_id="\x1b]0;m" * 1000)])
    (line,) = lines.texts
    assert line.isprintable()
    assert r"a\nforged line \x1b[2J \u202e" in line
    assert len(line) < 2_500


def test_the_fields_of_a_line_are_those_of_its_record(caplog: pytest.LogCaptureFixture) -> None:
    log, _ = log_of(Clock(), {"bad-record": 1})
    log.of_plans([PLAN_HASH])
    (record,) = caplog.records
    found = {name.removeprefix("cuesqueue_"): value for name, value in vars(record).items() if "cuesqueue_" in name}
    assert found == {
        "scope": "record", "cause": "bad-record", "shard": "s", "plan": "0-1", "delivery_hash": PLAN_HASH,
        "queue": "q", "message": "m",
    }  # fmt: skip


def test_a_bad_message_is_logged_with_the_log_id_that_its_header_has(caplog: pytest.LogCaptureFixture) -> None:
    log, _ = log_of(Clock())
    headers = (("X-Ascent-Log-Id", "request-7"), ("X-Other", "1"))
    for queue in ("rabbit", "a queue without such a header"):
        log.of_messages([ErrorRecord("message", "malformed-message", "why", "m", queue=queue, headers=headers)])
    first, second = caplog.records
    assert vars(first)["cuesqueue_log_id"] == "request-7"
    assert "log_id=request-7" in first.getMessage()
    assert "cuesqueue_log_id" not in vars(second)
