"""The simulator: the SQL queue with sources, pools and faults. `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.sim.queue import Fault, SimQueue

__all__ = ["Fault", "SimQueue"]
