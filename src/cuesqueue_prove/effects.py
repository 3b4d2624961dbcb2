"""Notes what a job does beside Spark: its deliveries, what it writes in foreachBatch, and what it does to its queue.

Functions of this project and of the libraries are replaced in the job's process alone. What goes elsewhere is led into
the run's folder, or refused: a job under proof does not touch what is real.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

import cuesqueue
from cuesqueue_prove.folder import Journal, Places, Settings, Walls, is_written

_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE")
_OWN = ("shard_store.", "queue_source.")


def replace(owner: Any, **functions: Any) -> None:
    """Replace functions of a module, or methods of a class or an object, in this process."""
    for name, function in functions.items():
        setattr(owner, name, function)


class Effects:
    """The journal of one process. `batch` is the number of the micro-batch that this thread's function works on."""

    def __init__(self, settings: Settings, journal: Journal, places: Places) -> None:
        self._settings = settings
        self._journal = journal
        self._places = places
        self._walls = Walls(settings)
        self._here = threading.local()
        self._batches: dict[int, tuple[int, dict[str, Any]]] = {}  # thread of a function -> its batch and its query
        self._count = 0

    def watch(self) -> None:
        """Replace what is watched. Called once, before the job's script is imported."""
        self._watch_deliveries()
        self._watch_stores()
        self._watch_databases()
        self._watch_queues()
        sys.addaudithook(self._audit)

    # foreachBatch

    def watched_function(self, function: Callable[..., Any], query: dict[str, Any]) -> Callable[[Any, int], Any]:
        """Return the function of foreachBatch with notes of its calls."""

        @wraps(function)
        def call(batch: Any, batch_id: int) -> Any:
            self._batches[threading.get_ident()] = batch_id, query
            about = {"query": query.get("query"), "batch": batch_id, "function": query["function"]}
            self._journal.note("batch-called", **about)
            try:
                result = function(batch, batch_id)
            except BaseException as error:
                self._journal.note("batch-failed", **about, error=f"{type(error).__name__}: {error}"[:500])
                raise
            finally:
                del self._batches[threading.get_ident()]
            self._journal.note("batch-returned", **about)
            return result

        return call

    def wrote(self, by: str) -> None:
        """Note that the job has written something in a function of foreachBatch, and stand still where it is due."""
        if (current := self._current()) is None:
            return
        self._journal.note("effect", by=by, where=self.place_in_job(), **current)
        self._count += 1
        if self._count == self._settings.pause_at_effect:
            marker = self._settings.marker
            marker.write_text(str(os.getpid()), "utf-8")
            while marker.exists():
                time.sleep(0.02)

    def _current(self) -> dict[str, Any] | None:
        """Return the batch, the query and the named output that this thread works on.

        Threads of the job's own belong to the only function that runs, if there is one.
        """
        batches = self._batches
        mine = batches.get(threading.get_ident()) or (next(iter(batches.values())) if len(batches) == 1 else None)
        if mine is None:
            return None
        return {"batch": mine[0], "query": mine[1].get("query"), "inside": getattr(self._here, "inside", "")}

    def place_in_job(self) -> str:
        """Return file and line of the job that this code was called from; empty where there is none."""
        return self._walls.place_in_job()

    # this project's own functions

    def _watch_deliveries(self) -> None:
        original, original_output = self._led(cuesqueue.delivery), cuesqueue.Delivery.output

        @contextmanager
        def delivery(store: Any, pipeline: Any, batch_id: int) -> Iterator[Any]:
            with original(store, pipeline, batch_id) as made:
                query = (self._current() or {}).get("query")
                self._journal.note("delivery", batch=batch_id, already=made.already, query=query)
                yield made

        @contextmanager
        def output(made: Any, name: str, engine: Any = None) -> Iterator[Any]:
            with self._inside(name), original_output(made, name, engine) as out:
                yield out

        replace(cuesqueue, delivery=delivery)
        replace(cuesqueue.Delivery, output=output)

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        self._here.inside = name
        try:
            yield
        finally:
            self._here.inside = ""

    def _watch_stores(self) -> None:
        for name in ("open_store", "published", "reject_rows"):
            replace(cuesqueue, **{name: self._led(getattr(cuesqueue, name))})
        replace(cuesqueue.ProgressListener, __init__=self._led(cuesqueue.ProgressListener.__init__))

    def _led(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the URL of its store led elsewhere."""
        signature = inspect.signature(function)

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            for name in {"store", "url"} & bound.arguments.keys():
                if isinstance(url := bound.arguments[name], str):
                    bound.arguments[name] = self._places.database(url)
            return function(*bound.args, **bound.kwargs)

        return call

    def _watch_queues(self) -> None:
        original = cuesqueue.open_queue

        def open_queue(url: Any, **_: Any) -> Any:
            name = cuesqueue.queue_name(str(url))
            queue = original(self._places.queue(name))

            def send(messages: Any, *_: Any, **__: Any) -> list[str]:
                return ["not sent: cuesqueue prove sends messages of its own" for _ in messages]

            def acknowledge(receipts: Any) -> Any:
                done = type(queue).acknowledge(queue, receipts)
                self._journal.note("acknowledged", queue=name, messages=len(done), where=self.place_in_job())
                return done

            replace(queue, send=send, publish=send, acknowledge=acknowledge)
            return queue

        replace(cuesqueue, open_queue=open_queue)

    # what libraries do for the job

    def _watch_databases(self) -> None:
        original = sa.create_engine

        @wraps(original)
        def create_engine(url: Any, **how: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__", "").startswith(_OWN):
                return original(url, **how)
            engine = original(self._places.database(sa.make_url(url).render_as_string(hide_password=False)), **how)
            self._watch_engine(engine)
            return engine

        replace(sa, create_engine=create_engine)
        replace(sa.engine, create_engine=create_engine)

    def _watch_engine(self, engine: Any) -> None:
        def executed(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.lstrip()[:8].upper().startswith(_CHANGES):
                connection.info["proved_change"] = True

        def committed(connection: Any) -> None:
            connection.info["proved_commit"] = connection.info.pop("proved_change", False)

        def returned(dbapi_connection: Any, record: Any) -> None:
            """Act after the commit: when the connection goes back to its pool."""
            if record is not None and record.info.pop("proved_commit", False):
                self.wrote("a transaction of its own")

        sa.event.listen(engine, "after_cursor_execute", executed)
        sa.event.listen(engine, "commit", committed)
        sa.event.listen(engine, "checkin", returned)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse what the walls refuse; note files that foreachBatch writes."""
        self._walls.check(event, arguments)
        if event == "open" and self._batches and is_written(arguments):
            self._opened(os.fsdecode(arguments[0]))

    def _opened(self, name: str) -> None:
        """Note a file that the function's own code opens to write it, and not a library for it."""
        caller: FrameType | None = sys._getframe(2)
        while caller is not None and "pathlib" in caller.f_code.co_filename:
            caller = caller.f_back
        is_of_job = caller is not None and caller.f_code.co_filename == self._settings.job
        if is_of_job and (current := self._current()) is not None:
            self._journal.note("effect", by=f"open({Path(name).name!r})", where=self.place_in_job(), **current)
