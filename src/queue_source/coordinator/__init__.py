"""The reader process: from receiving a message to acknowledging it, around the calls that Spark makes between.

| what | where |
|---|---|
| how it begins, and what stays fixed | `start.py`, `session.py` |
| Spark's calls | `coordinator.py`, `progress.py` |
| messages come in, and their objects are ours or another's | `opening.py`; from listings `backfill.py` |
| objects come from a receiver | `receivers.py`, also of its own process |
| what is held | `in_flight.py`, the one owner of it; `messages.py`, `ready.py` |
| messages are kept and go out, errors are sent, objects cleaned | `acknowledging.py`, `errors.py`, `cleaning.py` |
| by the clock | `maintenance.py` |
"""

from __future__ import annotations

from queue_source.coordinator.coordinator import Coordinator
from queue_source.coordinator.start import prepare

__all__ = ["Coordinator", "prepare"]
