"""One pipeline of the chaos run, in a process of its own: Spark's loop without Spark, until it is told to end.

Everything it meets is written as a line to its log: what was published, and which of our errors ended it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from queue_source.errors import QueueError
from shard_store.errors import ShardStoreError
from support.driver_loop import DriverLoop, reader_options

_TIMES = {
    "visibilityTimeout": "4s",
    "commitTimeout": "1s",  # shards of a pipeline that is silent for 2 s may be taken
    "waitTime": "200ms",
    "maxFilesPerTrigger": "20",
    "maxInFlightMessages": "200",
    "receiveThreads": "1",
}


@dataclass(frozen=True)
class Place:
    """Where a run happens. `ending`: a file whose presence asks pipelines to stop gracefully."""

    folder: Path
    queue_url: str
    store_url: str

    @property
    def ending(self) -> Path:
        return self.folder / "ending"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def run(place: Place, name: str, options: Mapping[str, str]) -> None:
    """Run pipeline `name` until the end is asked for or one of our own errors ends it; another error is a bug."""
    log = place.log(name).open("a", encoding="utf-8", buffering=1)

    def tell(event: str, detail: object = "") -> None:
        log.write(json.dumps({"event": event, "pid": os.getpid(), "detail": str(detail)}) + "\n")

    class Acquired(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "acquired" in record.msg and isinstance(record.args, tuple):
                tell("acquired", record.args[1])

    logger = logging.getLogger("cuesqueue")
    logger.addHandler(Acquired())
    logger.setLevel(logging.INFO)
    tell("started")
    try:
        loop = DriverLoop(
            reader_options(place.queue_url, place.store_url, source="files", pipeline=name, **{**_TIMES, **options}),
            place.folder / name,
            place.folder / "output",
            overlapping=True,
            driver=str(os.getpid()),
            work=lambda: time.sleep(random.expovariate(10)),
        )
        try:
            while not place.ending.exists():
                loop.batch()
        finally:
            loop.stop()
    except (ShardStoreError, QueueError) as error:
        tell(type(error).__name__, error)
    except BaseException as error:
        tell("bug", repr(error))
        raise
    else:
        tell("stopped")
