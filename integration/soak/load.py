"""What a soak reads, and who reads it: files announced by SQS's protocol, messages of RabbitMQ, a store on PostgreSQL.

Two drivers share both sources: one is never disturbed, and shows whether anything grows; the other one is killed.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from queue_source.queues import open_queue
from support.engine.harness import Driver
from support.engine.queries import Query
from support.servers.ministack import KEYS, REGION

WINDOW = 60.0
"""Seconds for which finished shards are remembered: longer than messages of a killed reader take to come again."""
_AGAIN = 0.05  # of the files are announced twice
_TIMES = {
    "visibilityTimeout": "20s",
    "commitTimeout": "5s",
    "waitTime": "1s",
    "deduplicationWindow": f"{WINDOW:g}s",
    "pruneInterval": "5s",
    "maxFilesPerTrigger": "50",
    "minPartitions": "2",
}


@dataclass(frozen=True)
class Place:
    """Where a soak runs."""

    folder: Path
    store: str
    sqs: str
    rabbit: str

    def queries(self, driver: str) -> list[Query]:
        """Of one driver: its pipeline of each of the two sources."""
        sqs = {"sqs.region": REGION, "sqs.accessKeyId": "test", "sqs.secretAccessKey": "test"}
        files = {"queueUrl": self.sqs, "allowedPrefixes": f"file://{self.folder}/in/", **sqs}
        messages = {"queueUrl": self.rabbit, "content": "message"}
        return [self._query(driver, "files", files), self._query(driver, "messages", messages)]

    def _query(self, driver: str, source: str, options: dict[str, str]) -> Query:
        pipeline = f"{driver}-{source}"
        own = {"store": self.store, "source": source, "pipeline": pipeline, "fileFormat": "json"}
        return {
            "source": {**own, **_TIMES, **options},
            "schema": "id STRING, sent DOUBLE",
            "sink": "cuesqueue",
            "sink_options": {"store": self.store, "pipeline": pipeline, "path": str(self.folder / "out")},
            "checkpoint": str(self.folder / f"checkpoint-{pipeline}"),
            "trigger": {"processingTime": "1 second"},
        }


@dataclass
class Producer:
    """Sends `rate` files and `rate` messages a second, until `stop`; `expected` are the ids of all rows."""

    place: Place
    rate: float
    expected: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        (self.place.folder / "in").mkdir()
        self._thread = threading.Thread(target=self._run, name="producer")
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                files = stack.enter_context(open_queue(self.place.sqs, **KEYS))
                messages = stack.enter_context(open_queue(self.place.rabbit))
                began, sent = time.monotonic(), 0
                for second in itertools.count(1):
                    if self._stopping.wait(max(0.0, began + second - time.monotonic())):
                        return
                    due = int(second * self.rate)
                    numbers, sent = range(sent, due), due
                    uris = [self._write(number) for number in numbers]
                    files.send([*uris, *random.sample(uris, int(len(uris) * _AGAIN + random.random()))])
                    messages.send([{"id": f"m{number}", "sent": time.time()} for number in numbers])
                    self.expected += [f"m{number}" for number in numbers]
        except BaseException as error:  # noqa: BLE001 - kept, and raised by `check`
            self._failure = error

    def _write(self, number: int) -> str:
        file = self.place.folder / "in" / f"{number}.json"
        ids = [f"f{number}-{line}" for line in range(3)]
        file.write_text("".join(json.dumps({"id": i, "sent": time.time()}) + "\n" for i in ids))
        self.expected += ids
        return file.as_uri()


class Victim:
    """The driver that is killed: as a whole, or a reader's process, or its workers; whoever fails is started again."""

    PARTS: Sequence[str] = ("all", "reader", "worker")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._numbers = itertools.count(1)
        self.kills: list[str] = []
        self.driver: Driver | None = None

    def start(self) -> None:
        folder = self._place.folder / f"killed-{next(self._numbers)}"
        self.driver = Driver(folder, self._place.queries("killed"), restarts=True)

    def kill(self) -> None:
        part = self.PARTS[len(self.kills) % len(self.PARTS)]
        self.kills.append(part)
        assert self.driver is not None
        if part == "all":
            self.driver.kill()
            self.start()
        else:
            self.driver.kill_part(part)
