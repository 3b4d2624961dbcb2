"""`python -m benchmarks [--only NAME] [--quick] [--json] [--save FOLDER]`: run the benchmarks and print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks.competing
import benchmarks.growth
import benchmarks.latency
import benchmarks.leases
import benchmarks.listing
import benchmarks.memory
import benchmarks.pruning
import benchmarks.queue_sink
import benchmarks.queues
import benchmarks.reading
import benchmarks.reconcile
import benchmarks.recovery
import benchmarks.references
import benchmarks.registering
import benchmarks.semantics
import benchmarks.sinks
import benchmarks.small_files
import benchmarks.store
import benchmarks.store_year
import benchmarks.worker_memory  # noqa: F401 -- these register themselves
from benchmarks import saved
from benchmarks.registry import REGISTRY, Measurement, Settings


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="measure, and print one table")
    parser.add_argument("--only", action="append", choices=sorted(REGISTRY), help="this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="less data and few runs: to see whether it works")
    parser.add_argument("--json", action="store_true", help="print JSON, with the seconds of every run")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the figures for the docs: in docs/figures")
    parser.add_argument("--list", action="store_true", help="print the names, and run nothing")
    options = parser.parse_args(arguments)
    if options.list:
        for known in REGISTRY.values():
            print(f"{known.name:12} {known.about}")
        return 0
    if options.save and options.quick:
        parser.error("a quick run is not for quoting, so its figures are not saved: leave out --quick or --save")
    code = saved.checkout() if options.save else None
    errors = Console(stderr=True, highlight=False)
    chosen = [known for name, known in REGISTRY.items() if name in (options.only or REGISTRY)]
    found: list[tuple[str, Measurement]] = []
    with tempfile.TemporaryDirectory(prefix="cuesqueue-bench-") as folder:
        for known in chosen:
            errors.print(f"{known.name}: {known.about}", markup=False, soft_wrap=True)
            own = Path(folder) / known.name
            own.mkdir()
            settings = Settings(own, options.quick, lambda text: errors.print(f"  {text}", markup=False))
            load = os.getloadavg()[0]
            measured = list(known.run(settings))
            found += [(known.name, measurement) for measurement in measured]
            if code:
                kept = saved.save(options.save, known, measured, code, load)
                errors.print(f"  saved in {kept}; `make docs` draws it", markup=False)
    if options.json:
        lines = [{"benchmark": name, **measurement.as_json()} for name, measurement in found]
        print(json.dumps({"machine": machine(), "quick": options.quick, "measurements": lines}))
        return 0
    _print_table(found, options.quick)
    return 0


def machine() -> dict[str, object]:
    """What the figures were measured with."""
    packages = {name: version(name) for name in ("pyspark", "pyarrow")}
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **packages,
    }


def _print_table(found: Sequence[tuple[str, Measurement]], quick: bool) -> None:
    about = ", ".join(
        f"{name} {value:.1f}" if name == "load" else f"{name} {value}" for name, value in machine().items()
    )
    table = Table(title=f"{'quick run, not for quoting; ' if quick else ''}{about}", title_justify="left")
    for name in ("benchmark", "case"):
        table.add_column(name)
    for name in ("runs", "median s", "min - max s", "rate", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("against")
    for name, m in found:
        rate = "" if m.rate is None else f"{m.rate:,.0f} {m.unit}/s"
        ratio = "" if m.ratio is None else f"{m.ratio:.2f} x"
        against = f"{m.against} ({statistics.median(m.reference):.2f} s)" if m.reference else m.against
        spread = f"{min(m.seconds):.2f} - {max(m.seconds):.2f}"
        table.add_row(name, m.case, str(len(m.seconds)), f"{m.median:.2f}", spread, rate, ratio, against)
    Console(width=max(120, Console().width), highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
