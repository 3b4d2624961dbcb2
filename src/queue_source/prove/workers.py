"""Spark's daemon of Python workers for a job under proof: what functions of SQL and of `foreach` do is watched there.

Spark starts it as `python -m queue_source.prove.workers MODULE` by the setting `spark.python.daemon.module`.
"""

from __future__ import annotations

import os
import sys

from queue_source.prove.folder import SETTINGS, Settings
from queue_source.prove.walls import Walls


def main() -> None:
    """Raise the walls, then do what Spark's own daemon does; its workers are forks of this process."""
    sys.addaudithook(Walls(Settings.read(os.environ[SETTINGS])).check)
    from pyspark import daemon

    daemon.manager()


if __name__ == "__main__":
    main()
