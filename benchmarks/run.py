"""Runs one benchmark: in this process, or in one of its own. Knows all of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from rich.console import Console

import benchmarks.buckets
import benchmarks.compacting
import benchmarks.competing
import benchmarks.growth
import benchmarks.latency
import benchmarks.leases
import benchmarks.listing
import benchmarks.loading
import benchmarks.memory
import benchmarks.pruning
import benchmarks.queue_sink
import benchmarks.queues
import benchmarks.reading
import benchmarks.reconcile
import benchmarks.recovery
import benchmarks.references
import benchmarks.registering
import benchmarks.routes
import benchmarks.semantics
import benchmarks.sinks
import benchmarks.small_files
import benchmarks.store
import benchmarks.store_year
import benchmarks.worker_memory  # noqa: F401 -- these register themselves
from benchmarks import registry, saved
from benchmarks.registry import Measurement, Settings

Result = TypeVar("Result")


def measure(name: str, quick: bool, save: Path | None, code: saved.Checkout | None) -> list[Measurement]:
    """Run one benchmark in an empty folder, and keep its figures where that is asked for."""
    errors = Console(stderr=True, highlight=False)
    known = registry.REGISTRY[name]
    errors.print(f"{known.name}: {known.about}", markup=False, soft_wrap=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cuesqueue-bench-") as folder:
        settings = Settings(Path(folder), quick, lambda text: errors.print(f"  {text}", markup=False))
        measured = list(known.run(settings))
    if save and code:
        kept = saved.save(save, known, measured, code, load)
        errors.print(f"  saved in {kept}; `make docs` draws it", markup=False)
    return measured


def in_a_process(measure: Callable[[], Result]) -> Result:
    """No JVM, setting or module of another benchmark is in its way, and one that fails ends no other."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure).result()
