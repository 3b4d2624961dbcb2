"""Peak memory (resident, of the whole process) of what reads one large object: our Python workers, and Spark's JVM.

Each case is a Spark of its own, with `local[2]` and Spark's default heap of 1 GB. A JVM takes what its heap allows
before it cleans up, so its figure tells less than that of the workers: what is to be seen is that these stay far below
the object, and that the JVM needs no more than it does with Spark's own reader.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from benchmarks.loading import loaded, references
from benchmarks.reading import Query, file_stream, our_stream, spark_session, write_files
from benchmarks.registry import Measurement, Role, Settings, benchmark

_ROWS = 40_000


@benchmark("worker-memory")
def worker_memory(settings: Settings) -> Iterator[Measurement]:
    """peak MiB of a Python worker, and of the JVM, that read one CSV object of 1 GB, plain and packed"""
    size = (32 << 20) if settings.quick else (1 << 30)
    plain, packed = settings.folder / "plain", settings.folder / "packed"
    write_files(plain, "csv", 1, _ROWS)
    block = (plain / "part-00000.csv").read_bytes()
    times = size // len(block)
    write_files(settings.folder / "one", "csv", 1, _ROWS, times)
    (settings.folder / "one" / "part-00000.csv").replace(plain / "part-00000.csv")
    packed.mkdir()
    with (plain / "part-00000.csv").open("rb") as source, gzip.open(packed / "part-00000.csv.gz", "wb", 1) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    for folder, about in ((plain, "plain"), (packed, "gzip")):
        for stream, name, role in (
            ("ours", "this source", Role.OURS),
            ("load", "loaded into path", Role.OURS),
            ("theirs", "Spark's file stream", Role.PEER),
        ):
            command = [sys.executable, "-m", "benchmarks.worker_memory", stream, str(folder), str(times * _ROWS)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            workers = f"workers {', '.join(f'{mib:.0f}' for mib in found['workers'])} MiB, " if found["workers"] else ""
            case = f"csv {about}, {size >> 20:,} MiB: {name}: {workers}JVM {found['jvm']:.0f} MiB"
            yield Measurement(case, [found["seconds"]], times * _ROWS, "rows", role=role)


def _run(stream: str, folder: Path, rows: int) -> dict[str, object]:
    own = folder.parent / f"{stream}-{folder.name}"
    own.mkdir()
    with spark_session(own) as spark:
        if stream == "load":  # its rows are the one object, in parts
            query = Query(own, None, partial(references, spark, folder, "csv"), loaded(Settings(folder.parent)))
        else:
            query = Query(own, rows, partial(our_stream if stream == "ours" else file_stream, spark, "csv", folder))
        started = time.perf_counter()
        query.run()
        seconds = time.perf_counter() - started
        children = psutil.Process().children(recursive=True)
        processes = [process for process in children if process.status() != psutil.STATUS_ZOMBIE]
        jvm = max(_peak(process) for process in processes if process.name() == "java")
        workers = [_peak(process) for process in processes if process.cmdline()[-1:] == ["pyspark.worker"]]
    return {"seconds": seconds, "jvm": jvm, "workers": sorted(workers)[-2:]}


def _peak(process: psutil.Process) -> float:
    """MiB that the process had resident at most; Linux."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))  # for its parent
