"""Measurements with ratios: `make bench`, or `python -m benchmarks`. `benchmarks/README.md` tells the method."""

import sys
from pathlib import Path

# the servers and Spark's loop without Spark are the tests' own
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
