"""Spark's part of a streaming query without Spark: the same calls in the same order, with a checkpoint on disk.

Hundreds of crashes fit in minutes this way. What Spark really calls is checked by `tests/engine`. A split's file lists
the shard ids it stands for, so that what was published can be compared with what was announced.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from queue_source.coordinator import Coordinator, prepare
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.messages import State
from queue_source.options import ReaderOptions, SecretUrl, connection_options, parse_reader_options
from queue_source.options.checks import check_suitability
from queue_source.queues import Queue, open_queue
from queue_source.storage.buckets import Bucket
from queue_source.storage.files import ObjectStat
from shard_store.failpoints import reach
from shard_store.model import SINK, ErrorRecord, Plan, Split
from shard_store.store import ShardStore, open_store

_FIRST_TRIGGER = 10.0  # seconds


def reader_options(queue_url: str, store_url: str, **more: str) -> ReaderOptions:
    """Options for tests: short times, in their allowed order; `more` overrides, and "" leaves one out."""
    defaults = {
        "queueUrl": queue_url,
        "store": store_url,
        "fileFormat": "json",
        "allowedPrefixes": "s3://,file:///",
        "visibilityTimeout": "3s",
        "commitTimeout": "2s",
        "waitTime": "100ms",
        "maxFilesPerTrigger": "100",
    }
    return parse_reader_options({name: text for name, text in {**defaults, **more}.items() if text})


def no_bucket(prefix: str) -> Bucket:
    raise AssertionError(f"nothing is listed here, and not {prefix}")


def start_coordinator(
    options: ReaderOptions,
    *,
    driver: str = "",
    skew: Callable[[], float] | None = None,
    open_bucket: Callable[[str], Bucket] = no_bucket,
) -> Coordinator:
    """As `spark/reader.py` does it; every object has 10 bytes. `skew`: seconds by which all clocks are ahead."""
    ahead = skew or (lambda: 0.0)
    with ExitStack() as undone:

        def opened(url: SecretUrl) -> Queue:
            queue = open_queue(url.reveal(), **connection_options(url, options.queue))
            undone.callback(queue.close)
            return queue

        queues = [opened(url) for url in options.queue.urls]
        check_suitability(queues, options)
        url = options.delivery.error_queue_url
        errors = None if url is None else opened(url)
        clock = None if skew is None else lambda: time.time() + ahead()
        coordinator = prepare(
            options,
            undone.enter_context(open_store(options.store.reveal(), clock=clock)),
            {queue.name: queue for queue in queues},
            lambda uris: [ObjectStat(10, None) for _ in uris],
            driver=driver,
            error_queue=errors,
            open_bucket=open_bucket,
            clock=lambda: time.monotonic() + ahead(),
        )
        undone.pop_all()
    coordinator.begin()
    return coordinator


class DriverLoop:
    """One query: a coordinator, a checkpoint folder, and a sink that publishes splits (or only counts, as others do).

    `tells_start`: hand `start` to latestOffset, as Spark 4.2 and later do. `idempotent` is false of a foreign sink that
    takes every attempt at a batch anew.
    """

    def __init__(
        self,
        options: ReaderOptions,
        checkpoint: Path,
        output: Path,
        *,
        publishes: bool = True,
        idempotent: bool = True,
        tells_start: bool = True,
        overlapping: bool = False,
        driver: str = "",
        work: Callable[[], object] = lambda: None,
        skewed: bool = False,
        skew: float = 0.0,
        open_bucket: Callable[[str], Bucket] = no_bucket,
    ) -> None:
        """`overlapping`: the next batch begins while the last one's messages are acknowledged, as in Spark.

        `work` is what takes time in a batch, between its plan and its delivery. `bad`: what tasks find bad, and why.

        `skewed`: by `skew` seconds all clocks but the queue's are ahead.
        """
        self.options = options
        self.overlapping = overlapping
        self.work = work
        self.bad: dict[str, str] = {}
        self.skew = skew
        self._skewed = skewed
        self._open_bucket = open_bucket
        self.checkpoint = checkpoint
        self.output = output
        self.publishes = publishes
        self.idempotent = idempotent
        self.tells_start = tells_start
        self._dead = False
        self._gathered = False
        for folder in (checkpoint / "offsets", checkpoint / "commits", output):
            folder.mkdir(parents=True, exist_ok=True)
        self.coordinator = self._start_coordinator(driver)
        self._log = self._read_log("offsets")
        self._done = self._read_log("commits")
        self._start = self._first_start()
        if self._log and not tells_start:
            try:
                self.coordinator.logged(self._log[max(self._log)]["end"])
            except BaseException:
                self.coordinator.stop()  # as Spark does
                raise

    def _start_coordinator(self, driver: str) -> Coordinator:
        skew = (lambda: self.skew) if self._skewed else None
        return start_coordinator(self.options, driver=driver, skew=skew, open_bucket=self._open_bucket)

    def drain(self) -> None:
        """As Trigger.AvailableNow on 4.2 and later: batches until nothing new comes."""
        self.coordinator.drain()
        while self.batch():
            pass

    def batch(self) -> bool:
        """One trigger; False when there was nothing to do."""
        number = max(self._log, default=-1)
        if number >= 0 and number not in self._done:
            self._run(number)  # a logged batch that was not finished: no latestOffset before it
            return True
        end = self.latest(self._start if self.tells_start else None)
        if end == self._start:
            return False
        self._write("offsets", number + 1, {"start": self._start, "end": end})
        self._log[number + 1] = {"start": self._start, "end": end}
        if number >= 0:
            self.coordinator.confirm(self._start)
        self._run(number + 1)
        return True

    def latest(self, start: int | None) -> int:
        """The first one comes late: all that the queues have is there, or a whole batch."""
        if not self._gathered:
            self._gathered, batches, over = True, self.options.batches, time.monotonic() + _FIRST_TRIGGER
            limits = batches.max_files_per_trigger, batches.max_bytes_per_trigger
            stopping = self.coordinator.session.stopping
            self.in_flight.wait_for_batch(*limits, lambda: stopping.is_set() or time.monotonic() > over)
        end = self.coordinator.latest(start)
        if not (self.overlapping or self.coordinator.receivers.draining):  # AvailableNow has to wait by itself
            self.wait_for_acknowledgements()
        return end

    def wait_for_acknowledgements(self) -> None:
        """Until the thread has asked for all that are due, whether or not the queue took them."""
        with self.in_flight._changed:
            complete = self.in_flight._messages.keys(State.COMPLETE, State.ACKNOWLEDGING)
        self.coordinator.acknowledger.wait_for_answers(complete)

    def stop(self) -> None:
        if not self._dead:
            self.coordinator.stop()

    def die(self) -> None:
        """As SIGKILL: nothing is given back, acknowledged, released or said."""
        self._dead = True
        self.freeze()
        self.coordinator.close()

    def die_without_leases(self) -> None:
        """Dead for so long that the queue delivers again what was in a batch."""
        planned = self.in_flight.empty().planned
        self.freeze()
        self.coordinator.acknowledger.nack(planned)
        self.die()

    def freeze(self) -> None:
        """As good as dead: no heartbeat, no extension."""
        self.coordinator.threads.stop(5.0)

    def advance(self, seconds: float) -> None:
        """Let the clocks go on."""
        self.skew += seconds

    @property
    def metrics(self) -> dict[str, int]:
        return self.coordinator.session.metrics.snapshot()

    @property
    def in_flight(self) -> InFlight:
        return self.coordinator.in_flight

    def _run(self, number: int) -> None:
        start, end = self._log[number]["start"], self._log[number]["end"]
        plan = self.coordinator.plan(start, end)
        if self.publishes:
            with open_store(self.options.store.reveal()) as store:
                store.take_plan(self.options.pipeline, None, SINK)
        self.work()
        self._deliver(self._without_bad(plan), number)
        self._write("commits", number, {})
        self._done[number] = {}
        self._start = end

    def _without_bad(self, plan: Plan) -> Plan:
        """As tasks do it: they write the errors, and give no rows of these objects."""
        found = [r for r in plan.ranges if r.content.shard_id in self.bad]
        if not found:
            return plan
        identity = plan.identity
        records = [
            ErrorRecord(
                "object", self.bad[r.content.shard_id], "why", r.content.shard_id, identity.delivery_hash, r.start,
                r.content.queue, r.content.message_id,
            )
            for r in found
        ]  # fmt: skip
        with open_store(self.options.store.reveal()) as store:
            store.record_errors(identity.source, identity.token.pipeline, records)
        return replace(plan, ranges=tuple(r for r in plan.ranges if r not in found))

    def _deliver(self, plan: Plan, number: int) -> None:
        ids = [r.content.shard_id for r in plan.ranges]  # also those of a plan that is published: the store drops them
        if not self.publishes:
            reach("before-publish")
            name = f"batch-{number}" if self.idempotent else f"batch-{number}-{uuid.uuid4().hex}"
            if not (self.output / f"{name}.json").exists():
                _write_whole(self.output / f"{name}.json", ids)
            reach("published")
            return
        file = self.output / f"split-{uuid.uuid4().hex}.json"
        _write_whole(file, ids)
        reach("split-written")
        reach("before-publish")
        with open_store(self.options.store.reveal()) as store:
            store.publish([plan.identity], [Split(str(file), len(ids), 1)] if ids else [], batch_id=number)
        reach("published")

    def _first_start(self) -> int:
        unfinished = [n for n in self._log if n not in self._done]
        if unfinished:
            return self._log[unfinished[0]]["start"]
        return self._log[max(self._log)]["end"] if self._log else 0  # as initialOffset

    def _write(self, kind: str, number: int, value: Mapping[str, int]) -> None:
        _write_whole(self.checkpoint / kind / str(number), value)

    def _read_log(self, kind: str) -> dict[int, dict[str, int]]:
        return {
            int(file.name): json.loads(file.read_text())
            for file in (self.checkpoint / kind).iterdir()
            if file.name.isdigit()
        }


def published(store: ShardStore) -> Counter[str]:
    """How often each shard id was published: all ones, or exactly once is broken."""
    found: Counter[str] = Counter()
    for page in store.pages("splits"):
        for row in page:
            found.update(json.loads(Path(row[0]).read_text()))
    return found


def taken_by_foreign_sink(output: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for file in output.glob("batch-*.json"):
        found.update(json.loads(file.read_text()))
    return found


def states(store: ShardStore) -> Counter[str]:
    """How many shards are in each state."""
    return Counter(row[2] for page in store.pages("shards") for row in page)


def until(condition: Callable[[], bool], step: Callable[[], object], tries: int = 600) -> None:
    """Repeat `step` until `condition`; fails when it never holds."""
    for _ in range(tries):
        if condition():
            return
        step()
    raise AssertionError(f"did not happen in {tries} tries: {condition}")


def a_moment() -> None:
    """A step of `until` for what happens on other threads."""
    time.sleep(0.02)


def _write_whole(file: Path, value: object) -> None:
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    partial.write_text(json.dumps(value))
    partial.replace(file)
