"""The sink with `delta`: rows are appended to a Delta Lake table. Needs delta-rs (the extra `delta`), and no JAR.

Executors write Parquet files with pyarrow alone; delta-rs is loaded by the processes that plan and commit.
"""

from __future__ import annotations

from queue_source.sinks.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
