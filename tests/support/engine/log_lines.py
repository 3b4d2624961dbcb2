"""A user's program whose queries log, for a test that looks at what it writes: `python log_lines.py FOLDER`.

FOLDER holds `logged.py` of the page on logs. Printed is the JSON list of what a `ProgressListener` has exported.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import cuesqueue
from support.engine.queries import build_session
from support.engine.world import SCHEMA, World, eventually


def main(folder: Path) -> None:
    spark = build_session()
    numbers: list[Any] = []
    plain, elsewhere = World(folder / "plain"), World(folder / "elsewhere")
    listener = cuesqueue.ProgressListener(plain.store_url, export=numbers.append)
    spark.streams.addListener(listener)
    spark.dataSource.register(importlib.import_module("logged").LoggedSource)
    for world, form in ((plain, "cuesqueue"), (elsewhere, "cuesqueue-logged")):
        world.feed(0, 2)
        world.publish(["no notification postgresql://user:hunter2@host/db"])
        source = spark.readStream.format(form).options(**world.source(logLevel="debug", logFormat="json"))
        sink = source.schema(SCHEMA).load().writeStream.format("cuesqueue")
        sink = sink.options(**world.sink(logLevel="debug", logFormat="json")).trigger(availableNow=True)
        sink.option("checkpointLocation", str(folder / f"checkpoint-{form}")).start().awaitTermination()
    eventually("the listener's numbers", lambda: any(one["pipeline"] == "files" for one in numbers))
    spark.streams.removeListener(listener)
    spark.stop()
    sys.stdout.write(json.dumps(numbers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
