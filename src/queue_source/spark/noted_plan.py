"""What a reader has planned in the micro-batch that runs, noted where its sink can compare.

The sink takes the plan that is the pipeline's current one in the store. Should the store go back while a query runs (a
replica that lacks what came last takes its place), that is an earlier plan: the sink would publish this batch's rows as
that plan's, whose objects would be done without their rows. The reader and the sink are processes of one driver, so the
reader notes its plan in the driver's folder, in one file for each incarnation. It goes with that folder at the latest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_LENGTH = 64
_NONE = " " * _LENGTH


class NotedPlan:
    """The reader's note. The file keeps its length, so a full disk cannot leave an old note in it."""

    def __init__(self, folder: Path, store_id: str, pipeline: str, incarnation: int) -> None:
        """Note that nothing is planned yet. Raises OSError where the folder takes no file."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _file(folder, store_id, pipeline, incarnation)
        self._handle = os.open(self._file, os.O_WRONLY | os.O_CREAT)
        self._noted = ""
        self._write(_NONE)

    def note(self, delivery_hash: str) -> None:
        """Note the plan of the micro-batch that runs, or the empty text while none is made."""
        if delivery_hash != self._noted:
            self._write(delivery_hash or _NONE)
            self._noted = delivery_hash

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        os.close(self._handle)

    def _write(self, text: str) -> None:
        os.pwrite(self._handle, text.encode(), 0)


def noted_plans(folder: Path | None) -> Callable[[str, str, int], str | None]:
    """Return what tells the plan that a reader has noted, by store, pipeline and incarnation: see `plans.plan_for`.

    None: not known, since the reader cannot note its plan there, or is an older version's.
    """

    def noted(store_id: str, pipeline: str, incarnation: int) -> str | None:
        if folder is None:
            return None
        try:
            text = _file(folder, store_id, pipeline, incarnation).read_text()
        except OSError:
            return None
        return text.strip() if len(text) == _LENGTH else None

    return noted


def _file(folder: Path, store_id: str, pipeline: str, incarnation: int) -> Path:
    digest = hashlib.sha256(f"{store_id}\0{pipeline}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return folder / f"plan-{digest}-{incarnation}"
