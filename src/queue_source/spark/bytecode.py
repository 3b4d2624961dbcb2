"""Bytecode in `python/lib/pyspark.zip`, from which Spark's Python processes import PySpark.

The archive holds sources only, so each new process (the reader process of each query, each new worker) compiles PySpark
again, for most of a second.
"""

from __future__ import annotations

import errno
import py_compile
import shutil
import tempfile
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path


def archive_of(spark_home: str | None) -> Path | None:
    """Return the archive in this folder of Spark; with None that of the PySpark which is installed here, if any is."""
    if spark_home is not None:
        return Path(spark_home) / "python" / "lib" / "pyspark.zip"
    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "python" / "lib" / "pyspark.zip"


def compile_archive(archive: Path) -> int:
    """Add the bytecode that the archive lacks, for this Python, and return of how many modules that is.

    Raises OSError where the archive is missing, damaged, not for this Python, or may not be changed.
    """
    try:
        return _compile(archive)
    except (zipfile.BadZipFile, py_compile.PyCompileError) as error:
        raise OSError(errno.EINVAL, str(error), str(archive)) from error


def _compile(archive: Path) -> int:
    with zipfile.ZipFile(archive) as opened:
        present = set(opened.namelist())
    missing = sorted(name for name in present if name.endswith(".py") and f"{name}c" not in present)
    if not missing:
        return 0
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".cuesqueue-") as folder:
        draft = Path(folder) / archive.name
        shutil.copy(archive, draft)
        with zipfile.ZipFile(draft, "a", zipfile.ZIP_DEFLATED) as opened:
            for name in missing:
                source = opened.extract(name, folder)
                # by the source's hash, unchecked: the archive's times are not those of the files
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about PySpark's own sources
                    py_compile.compile(source, f"{source}c", name, doraise=True, invalidation_mode=mode)
                opened.write(f"{source}c", f"{name}c")
        draft.replace(archive)  # as a whole: processes that read the old one are not disturbed
    return len(missing)
