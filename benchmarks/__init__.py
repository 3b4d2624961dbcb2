"""Measurements with ratios: `make bench`, or `python -m benchmarks`. `docs/benchmarks.md` tells the method."""
