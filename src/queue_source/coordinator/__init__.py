"""The reader process: from receiving a message to acknowledging it, around the calls that Spark makes between.

| what | where |
|---|---|
| how it begins, what is fixed from then on, and what is counted | `start.py`, `session.py`, `threads.py` |
| messages come in | `receiving.py`, `opening.py`, `ownership.py` |
| what is held | `in_flight.py`, the one owner of it, with `room.py`, `waiting.py`, `ready.py`, `shares.py` |
| Spark's calls | `coordinator.py`, `progress.py` |
| messages go out | `acknowledging.py`, `error_queue.py` |
| errors are logged | `error_log.py` |
| by the clock | `leases.py`, `heartbeats.py`, `maintenance.py` |
"""

from __future__ import annotations

from queue_source.coordinator.coordinator import Coordinator
from queue_source.coordinator.start import prepare

__all__ = ["Coordinator", "prepare"]
