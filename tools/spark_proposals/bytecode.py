import os
import py_compile
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

MODULES = "pyspark.daemon, pyspark.worker, pyspark.sql.streaming.python_streaming_source_runner"


def imported(archive):
    """Seconds of processor time of a new process that imports what a source's process does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    subprocess.run([sys.executable, "-c", f"import {MODULES}"], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


with tempfile.TemporaryDirectory() as folder:
    sources, compiled = Path(folder, "sources.zip"), Path(folder, "compiled.zip")
    package = Path(pyspark.__file__).parent
    with zipfile.ZipFile(sources, "w") as first, zipfile.ZipFile(compiled, "w") as second:
        for path in [*package.rglob("*.py"), *package.rglob("*.json")]:
            name = path.relative_to(package.parent)
            for archive in (first, second):
                archive.write(path, name)
            if path.suffix == ".py":
                second.write(py_compile.compile(str(path), f"{folder}/one.pyc"), name.with_suffix(".pyc"))
    for archive in (sources, compiled):
        print(archive.stem, " ".join(f"{imported(archive):.2f}" for _ in range(5)), "s")
