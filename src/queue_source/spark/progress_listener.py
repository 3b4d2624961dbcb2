"""The numbers of each micro-batch, in the user's own process: logged, or handed to a function.

A Python source has no metrics of its own in Spark. From 4.2 on what its reader reports is shown as the source's
`latestOffset`; before that a progress has nothing but the two offsets. They name the pipeline, and the store knows
the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from shard_store.store import ShardStore, open_store

logger = logging.getLogger("cuesqueue")

_PATIENCE = 2.0  # seconds for which the store is asked again: Spark's other listeners wait for this one


class ProgressListener(StreamingQueryListener):
    """Logs the numbers of every micro-batch that reads with cuesqueue, or exports them.

        spark.streams.addListener(cuesqueue.ProgressListener("postgresql+psycopg://.../db", export=send))

    What it cannot find out, and what `export` raises, is logged once and ends no query.

    Args:
        store: The `storeUrl` of the queries; needed with Spark before 4.2 alone.
        export: Called with the numbers of each micro-batch and source, by name, on Spark's thread for listeners: keep
            it short. None: they are logged as JSON, at level INFO of the logger `cuesqueue`.
    """

    def __init__(self, store: str | None = None, export: Callable[[Mapping[str, Any]], object] | None = None) -> None:
        self._url, self._export = store, export
        self._store: ShardStore | None = None
        self._failing: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query that has just started has no numbers."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log or export the numbers of each source that is ours."""
        progress = json.loads(event.progress.json)
        for source in progress.get("sources", []):
            end = _json(source.get("endOffset"))
            if not (isinstance(end, dict) and set(end) == {"pipeline", "seq", "store"}):
                continue  # of another format
            try:
                numbers = self._numbers(progress, source, end)
                if self._export is not None:
                    self._export(numbers)
                else:
                    logger.info("cuesqueue progress: %s", json.dumps(numbers))
                self._failing.discard(end["pipeline"])
            except Exception as error:  # noqa: BLE001 - a user's function must not fail the query
                self.close()
                if end["pipeline"] not in self._failing:
                    logger.warning("the numbers of pipeline %s cannot be given: %s", end["pipeline"], error)
                self._failing.add(end["pipeline"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: no micro-batch has run."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Free the connection; another query opens one again."""
        self.close()

    def close(self) -> None:
        """Free the connection to the store; may be called again, and it is opened again when it is needed."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def _numbers(
        self, progress: Mapping[str, Any], source: Mapping[str, Any], end: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Combine Spark's own numbers with those that the reader reported, or the store has."""
        numbers = {
            "query": progress.get("name"),
            "runId": progress.get("runId"),
            "batchId": progress.get("batchId"),
            "timestamp": progress.get("timestamp"),
            **{name: source.get(name) for name in ("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")},
        }
        reported = _json(source.get("latestOffset"))
        if isinstance(reported, dict) and "numFilesOutstanding" in reported:
            return {**numbers, **reported}
        numbers |= {"pipeline": end["pipeline"], "seq": end["seq"]}
        if self._url is None:
            return numbers
        if self._store is None:
            self._store = open_store(self._url, create=False, patience=_PATIENCE)
        outstanding = self._store.backlog(end["pipeline"])
        return {**numbers, "numFilesOutstanding": outstanding.shards, "numBytesOutstanding": outstanding.bytes}


def _json(offset: object) -> object:
    """Parse an offset in a progress: JSON, as text or already parsed; None where it is neither."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None
