"""PySpark's bytecode, put into the archive from which Spark's Python processes import it.

Spark starts its Python processes with `python/lib/pyspark.zip` first on the path. It holds sources only, so each new
process (the reader process of each query, each new worker) compiles PySpark again, for most of a second.
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


def archive_of(spark_home: str | None) -> Path:
    """Return the path of `pyspark.zip` in a Spark home, or in the PySpark installed here; it may be absent.

    Raises ModuleNotFoundError where no PySpark is installed.
    """
    if spark_home:
        return Path(spark_home) / "python" / "lib" / "pyspark.zip"
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark")
    return Path(spec.origin).parent / "python" / "lib" / "pyspark.zip"


def compile_pyspark(archive: Path) -> int:
    """Add the bytecode of this Python for each module without one; return how many were added.

    Other versions of Python continue with the sources. The archive is replaced as a whole: processes that read the old
    one are not disturbed. Raises OSError where it cannot be read or written.
    """
    if not archive.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(archive))
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".cuesqueue-") as folder:
        draft = Path(folder) / archive.name
        shutil.copy(archive, draft)
        with zipfile.ZipFile(draft, "a", zipfile.ZIP_DEFLATED) as opened:
            present = set(opened.namelist())
            missing = sorted(name for name in present if name.endswith(".py") and f"{name}c" not in present)
            for name in missing:
                source = opened.extract(name, folder)
                # by the source's hash, unchecked: the archive's times are not those of the files
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about PySpark's own sources
                    py_compile.compile(source, f"{source}c", name, doraise=True, invalidation_mode=mode)
                opened.write(f"{source}c", f"{name}c")
        if missing:
            draft.replace(archive)
    return len(missing)
