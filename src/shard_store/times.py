"""Times as the tables keep them: microseconds since 1970 UTC."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(time: datetime) -> int:
    """An aware time as the tables keep it."""
    return (time - _EPOCH) // timedelta(microseconds=1)
