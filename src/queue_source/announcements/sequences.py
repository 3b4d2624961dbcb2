"""The order of the notifications about one object: queues deliver them in any order, and more than once.

And the times of the object and the event. An unreadable hint is skipped, and the notification still announces its
object: order only decides which of two announcements of an unread object is the newer one, and a store may be asked for
times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from queue_source.announcements.dialects import Dialect
from shard_store import model

_HEXADECIMAL = re.compile("[0-9A-Fa-f]{1,60}")
_NUMBER = re.compile("[0-9]{1,20}")


def sequence_of(dialect: Dialect, record: Mapping[str, object], item: Mapping[str, object]) -> str | None:
    """Return text that is greater for the later notification; only texts with the same first letter can be compared."""
    if dialect.sequencer is not None and _HEXADECIMAL.fullmatch(text := _text(item, dialect.sequencer)):
        # AWS: pad the shorter one with zeros at its right end; the same as leaving them out
        return "s" + text.upper().rstrip("0")
    if dialect.generation is not None and _NUMBER.fullmatch(text := _text(item, dialect.generation)):
        return "g" + text.zfill(20)
    micros = None if dialect.time is None else _micros(_text(record, dialect.time))
    return None if micros is None else f"t{micros:020d}"


def time_of(record: Mapping[str, object], name: str | None) -> datetime | None:
    """Return the time (aware, UTC) that the record has under this name; None where it has none."""
    micros = None if name is None else _micros(_text(record, name))
    # senders without a time write 1970
    return model.time_of(micros) if micros else None


def _text(parent: Mapping[str, object], name: str) -> str:
    value = parent.get(name)
    return value if isinstance(value, str) else ""


def _micros(text: str) -> int | None:
    """Parse microseconds since 1970 UTC; digits beyond them are cut off."""
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if parts is None:
        return None
    try:
        time = datetime.fromisoformat(parts[1] + parts[3].replace("Z", "+00:00"))
    except ValueError:
        return None
    seconds = int((time - model.EPOCH).total_seconds())
    return max(seconds * 1_000_000 + int((parts[2] or "").ljust(6, "0")[:6]), 0)
