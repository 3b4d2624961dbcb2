"""A note of the plan of the running micro-batch, which its sink compares with the store.

The sink takes the plan that is the pipeline's current one in the store. Should the store go back while a query runs (it
is replaced by a replica without the last changes), that is an earlier plan: the sink would publish this batch's rows as
that plan's, whose objects would be done without their rows. The reader and the sink are processes of one driver, so the
reader notes its plan in the driver's folder, in one file for each pipeline. It is deleted with that folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from shard_store.model import Noted

_HASH = 64
_LENGTH = _HASH + 20  # with the offset of the new input


class NotedPlan:
    """The reader's note. The file keeps its length, so a full disk cannot leave an old note in it.

    A reader begins with a new file that replaces the earlier one. So a reader that was replaced by one of the same
    driver, and has not noticed it yet, writes to a file that no sink reads.
    """

    def __init__(self, folder: Path, store_id: str, pipeline: str, incarnation: int) -> None:
        """Note that nothing is planned yet. Raises OSError where the folder takes no file."""
        folder.mkdir(parents=True, exist_ok=True)
        head = f"{incarnation} "
        self._place = len(head)
        self._handle, new = tempfile.mkstemp(dir=folder, prefix="plan-")
        self._noted = _text("", 0)
        try:
            os.write(self._handle, f"{head}{self._noted}".encode())
            Path(new).replace(_file(folder, store_id, pipeline))
        except OSError:
            os.close(self._handle)
            Path(new).unlink()
            raise

    def note(self, delivery_hash: str, new_seq: int = 0) -> None:
        """Note the plan of the micro-batch that runs, or the empty text while none is made; see `Noted`."""
        if (text := _text(delivery_hash, new_seq)) != self._noted:
            os.pwrite(self._handle, text.encode(), self._place)
            self._noted = text

    def close(self) -> None:
        """Stop writing. The file stays: it names the last reader here."""
        os.close(self._handle)


def noted_plans(folder: Path | None) -> Callable[[str, str], Noted | None]:
    """Return the function that returns the plan which the newest reader of this driver has noted."""

    def noted(store_id: str, pipeline: str) -> Noted | None:
        if folder is None:
            return None
        try:
            incarnation, _, text = _file(folder, store_id, pipeline).read_text().partition(" ")
        except OSError:
            return None
        return Noted(int(incarnation), text[:_HASH].strip(), int(text[_HASH:])) if len(text) == _LENGTH else None

    return noted


def _text(delivery_hash: str, new_seq: int) -> str:
    return f"{delivery_hash:{_HASH}}{new_seq:>{_LENGTH - _HASH}}"


def _file(folder: Path, store_id: str, pipeline: str) -> Path:
    digest = hashlib.sha256(f"{store_id}\0{pipeline}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return folder / f"plan-{digest}"
