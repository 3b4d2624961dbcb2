"""What differs between the Spark versions that the engine tests run on: the one place that looks at the version."""

from __future__ import annotations

import pyspark

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

TELLS_START = VERSION >= (4, 2)
"""latestOffset is told what is done, AvailableNow runs until nothing is left, and its last batch is settled by it."""

REPLANS_FIRST = VERSION < (4, 2)
"""After a restart `partitions(x, x)` is called first, x being the end of the last logged batch."""
