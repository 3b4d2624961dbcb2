"""Named places in the code where tests make a process die or fail; without the variable each costs one test of a dict.

`CUESQUEUE_FAILPOINTS` holds `NAME=ACTION` pairs separated by `;`. Actions: `pause:FILE` writes its process id to FILE
and then waits until FILE is removed or emptied, while the test may kill it (`{pid}` in FILE is the process id; an
existing FILE, also an empty one, stops no process), `exit` ends the process as SIGKILL would, `raise` raises
FailpointReached, `note:FILE` adds a line to FILE each time: seconds since 1970, name, process id. `NAME@3=...` acts at
the third time the place is reached in a process, `NAME~TEXT=...` only where it is about TEXT.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "CUESQUEUE_FAILPOINTS"

POINTS = (
    "snapshot-written",  # reader: the snapshot is durable, Spark does not know the offset yet
    "offset-logged",  # reader: Spark has logged the offset, nothing is planned
    "plan-made",  # reader: the plan is durable, no task runs yet
    "object-read",  # executor: an object is about to be read; about its id
    "split-written",  # executor: a task's split is on disk, the driver does not know it yet
    "table-files-written",  # executor: the same of a task's files of a table
    "rows-staged",  # executor: a task's messages are in the store's database, invisible
    "rows-sent",  # executor: a task's messages are in a queue elsewhere, confirmed
    "before-publish",  # sink commit: all splits are written, nothing is published
    "table-committed",  # sink commit: in the table's catalog or log, but not (with it, or behind it) in the store
    "rows-shown",  # sink commit: staged messages are visible when the transaction is committed, which it is not
    "output-delivered",  # foreachBatch: a named output is committed, the batch is not; about its name
    "published",  # sink commit: the transaction is committed, Spark has no commit log yet
    "confirmed",  # reader: the batch is final in the store, its messages are not acknowledged
    "errors-due",  # reader: errors are final, and not in the error queue yet
    "errors-sent",  # reader: errors are in the error queue (of another database), the store does not know it yet
    "acknowledged",  # reader: the messages are deleted
)


LISTING_POINTS = (
    "page-listed",  # reader: a page of a listing is read, nothing of it is in the store
    "page-opened",  # reader: its unknown objects are shards of ours, and the listing goes on after it
)
"""Of readers with `backfillPrefixes` alone."""


CLEANING_POINTS = (
    "cleanings-planned",  # reader: what is to be deleted or moved is written down, nothing is done
    "object-copied",  # reader: an object is where it was and where it is moved to; about its URI
    "objects-cleaned",  # reader: objects are deleted or moved, the store does not know it
    "cleanings-ended",  # reader: the store knows it
)
"""Of readers with `cleanSource` alone."""


ROUTING_POINTS = (
    "messages-routed",  # receiver: it is known which source each object is for, nothing is in the store
    "messages-recorded",  # receiver: their objects are recorded for all sources, the messages are not acknowledged
    "recorded-acknowledged",  # receiver: they are
    "recorded-found",  # reader: it knows what is recorded for its source, and nothing of it is its own
    "recorded-taken",  # reader: it is
)
"""Of receivers, and of readers with `queueUrl=store`, alone."""


COMPACTING_POINTS = (
    "files-joined",  # compact: the new file is durable, the store does not know it
    "files-replaced",  # compact: the transaction that shows it has written all, and is not committed
    "files-compacted",  # compact: it is committed
)
"""Of `cuesqueue compact` alone."""


RESET_POINTS = (
    "reset-begun",  # reset: its files are out of the view, its pipelines are fenced, nothing is forgotten
    "objects-forgotten",  # reset: some of what was read is
)
"""Of `cuesqueue reset` alone."""

_POINTS = (*POINTS, *LISTING_POINTS, *CLEANING_POINTS, *ROUTING_POINTS, *COMPACTING_POINTS, *RESET_POINTS)


class FailpointReached(Exception):
    """Raised by the action `raise`; only tests ever see it."""


def _parse(text: str) -> dict[str, tuple[int, str, str]]:
    armed = {}
    for part in filter(None, text.split(";")):
        place, _, action = part.partition("=")
        place, _, subject = place.partition("~")
        name, _, nth = place.partition("@")
        if name not in _POINTS:
            raise ValueError(f"{VARIABLE}: there is no point {name!r}; points are {', '.join(_POINTS)}")
        armed[name] = (int(nth or 1), subject, action)
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))
_reached: dict[str, int] = {}


def reach(name: str, about: str = "") -> None:
    """Mark that the code has come to the place `name`, with what `about` names."""
    if name not in _armed:
        return
    nth, subject, action = _armed[name]
    if subject not in about:
        return
    kind, _, file = action.partition(":")
    if kind == "note":
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, f"{time.time():.6f} {name} {os.getpid()}\n".encode())  # at once: lines do not mix
        finally:
            os.close(descriptor)
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] != nth:
        return
    if action == "raise":
        raise FailpointReached(name)
    if action == "exit":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind != "pause":
        raise ValueError(f"{VARIABLE}: unknown action {action!r}")
    marker = Path(file.replace("{pid}", str(os.getpid())))
    partial = marker.with_name(f"{marker.name}.{os.getpid()}")
    partial.write_text(str(os.getpid()), encoding="utf-8")
    try:
        os.link(partial, marker)  # whole, and only if no other process was first
    except FileExistsError:
        return
    finally:
        partial.unlink()
    with suppress(FileNotFoundError):
        while marker.stat().st_size > 0:
            time.sleep(0.02)
