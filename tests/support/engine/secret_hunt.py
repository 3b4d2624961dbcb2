"""A user's program that makes the usual mistakes with secrets in all options that take one, and prints what it is told.

Run by itself, so that everything is seen that its processes write: `python secret_hunt.py PLAN.json`. The plan holds
the secrets, so that this text has none of them.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import cuesqueue
from support.engine.queries import SETTINGS

SCHEMA = "id BIGINT, name STRING"


class Hunt:
    """Attributes:
    plan: `folder`; the options of `reader`, `sink` and `view`; `broken`: name of a mistake -> what it changes in the
        reader's; `elsewhere`: the options of a sink that cannot be reached; `objects` to announce, one a step.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.folder = Path(plan["folder"])
        self.reader, self.sink, self.view = plan["reader"], plan["sink"], plan["view"]
        self.broken: dict[str, dict[str, str]] = plan["broken"]
        self.elsewhere: dict[str, str] = plan["elsewhere"]
        self.objects = iter(plan["objects"])
        builder = SparkSession.builder.master("local[2]").appName("secret-hunt")
        for name, value in {**SETTINGS, "spark.eventLog.enabled": "true"}.items():
            builder = builder.config(name, value)
        (self.folder / "events").mkdir()
        self.spark = builder.config("spark.eventLog.dir", (self.folder / "events").as_uri()).getOrCreate()
        self.spark.sparkContext.setLogLevel("INFO")
        self.checkpoints = 0

    def run(self) -> None:
        self.step("a run", self.good_run)
        self.step("a typo in a column", lambda: self.frame().select("nmae"))
        self.step("a typo in an expression of the sink", lambda: self.write(self.frame().selectExpr("upper(nmae)")))
        self.step("explain", lambda: self.frame().explain(True))
        self.step("a view, its plan and its rows", self.look)
        self.step("a typo in a column of a view", lambda: self.frame_of("errors").select("causse"))
        self.step("a function that fails", self.fail)
        self.step("SQL", self.sql)
        self.step("a catalog at a wrong host", lambda: self.write(self.announced(), sink=self.elsewhere))
        for name, changed in self.broken.items():
            self.step(name, lambda changed=changed: self.write(self.frame(changed)))  # type: ignore[misc]
        self.spark.stop()

    def step(self, name: str, act: Callable[[], object]) -> None:
        """Do it, and print what a user's terminal and notebook would show of it."""
        sys.stdout.write(f"######## {name}\n")
        try:
            told = f"done {act()}"
        except Exception as error:  # noqa: BLE001 - whatever a user would be shown
            traceback.print_exc()
            told = f"failed {error!r} {error} {vars(error)}"
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()

    def good_run(self) -> object:
        frame = self.frame()
        frame.explain("extended")
        query = self.write(frame)
        return [query.status, query.recentProgress, query.lastProgress, query.exception()]

    def look(self) -> object:
        for view in ("data", "errors", "shards", "attempts", "splits", "files_state"):
            frame = self.frame_of(view)
            frame.explain(True)
            frame.show(100, truncate=False)
        return [row.asDict() for row in self.frame_of("errors").collect()]

    def fail(self) -> object:
        def refuse(batch: DataFrame, batch_id: int) -> None:
            batch.explain(True)
            raise ValueError("the user's own function fails")

        query = self.announced().writeStream.foreachBatch(refuse)
        query.option("checkpointLocation", self.checkpoint()).trigger(availableNow=True).start().awaitTermination()
        return "nothing to read"

    def sql(self) -> object:
        options = ", ".join(f"`{name}` '{value}'" for name, value in self.view.items())
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW broken USING cuesqueue OPTIONS (view 'errors', {options})")
        self.spark.sql("EXPLAIN EXTENDED SELECT cause FROM broken").show(truncate=False)
        return self.spark.sql("SELECT causse FROM broken").collect()

    def announced(self) -> DataFrame:
        """With something to read."""
        with cuesqueue.open_queue(self.reader["queueUrl"]) as queue:
            queue.send([next(self.objects)])
        return self.frame()

    def frame(self, changed: dict[str, str] | None = None) -> DataFrame:
        options = {name: value for name, value in {**self.reader, **(changed or {})}.items() if value}
        return self.spark.readStream.format("cuesqueue").options(**options).schema(SCHEMA).load()

    def frame_of(self, view: str) -> DataFrame:
        return self.spark.read.format("cuesqueue").options(**self.view, view=view).load()

    def write(self, frame: DataFrame, sink: dict[str, str] | None = None) -> Any:
        writer = frame.writeStream.format("cuesqueue").options(**(sink or self.sink))
        query = writer.option("checkpointLocation", self.checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def checkpoint(self) -> str:
        self.checkpoints += 1
        return str(self.folder / "checkpoints" / str(self.checkpoints))


if __name__ == "__main__":
    Hunt(json.loads(Path(sys.argv[1]).read_text("utf-8"))).run()
