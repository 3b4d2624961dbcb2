"""`python -m benchmarks [--only NAME] [--quick] [--json] [--save FOLDER]`: run the benchmarks and print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import run, saved
from benchmarks.registry import REGISTRY, Measurement


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
    chosen = [name for name in REGISTRY if name in (options.only or REGISTRY)]
    code = saved.checkout() if options.save else None
    found: list[tuple[str, Measurement]] = []
    failed: list[str] = []
    for name in chosen:
        measure = partial(run.measure, name, options.quick, options.save, code)
        try:
            found += [(name, one) for one in (measure() if len(chosen) == 1 else run.in_a_process(measure))]
        except Exception:  # noqa: BLE001 -- the others' figures are worth having
            failed.append(name)
            traceback.print_exc()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    if options.json:
        lines = [{"benchmark": name, **measurement.as_json()} for name, measurement in found]
        print(json.dumps({"machine": machine(), "quick": options.quick, "measurements": lines}))
    else:
        _print_table(found, options.quick)
    return 1 if failed else 0


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
