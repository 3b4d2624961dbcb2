"""The reader process: from receiving a message to acknowledging it, around the calls that Spark makes between.

| what | where |
|---|---|
| how it begins, what stays fixed, and what is counted | `start.py`, `changes.py`, `session.py`, `threads.py` |
| Spark's calls | `coordinator.py`, `offsets.py`, `progress.py` |
| messages come in, objects are listed | `intake/`: `receiving.py`, `opening.py`, `routing.py`, `backfill.py` |
| objects come from a receiver | `receiver.py`, a process of its own; `intake/recorded.py`, in the reader |
| what is held | `holding/`: `in_flight.py`, the one owner of it; `held_message.py`, `ready.py`, `leases.py` |
| messages go out, errors are sent, objects cleaned | `ending/`: `acknowledging.py`, `error_queue.py`, `cleaning.py` |
| by the clock | `upkeep/`: `heartbeats.py`, `maintenance.py`, `reporting.py` |
"""

from __future__ import annotations

from queue_source.coordinator.coordinator import Coordinator
from queue_source.coordinator.start import prepare

__all__ = ["Coordinator", "prepare"]
