"""The reader process: from receiving a message to acknowledging it, around the calls that Spark makes between.

| what | where |
|---|---|
| Spark's calls, and all that is put together for them | `coordinator.py`, `confirming.py` |
| threads | `crew.py`; `receiving.py`, `opening.py`, `acknowledging.py`, `leases.py`, `housekeeping.py` |
| what is held, behind one lock | `holding_pen.py`, with `tracking.py` and `shares.py` |
| what becomes of shards and messages | `routing.py`, `releasing.py`, `forwarding.py` |
| what is told of it | `metrics.py` |
"""

from __future__ import annotations

from queue_source.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
