"""How this package comes to Spark's Python processes: installed for their Python, or shipped as an archive.

Installed as users do, or shipped, it has a Python of its own beside the one of the tests: in that the dependencies are,
and the project is not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from compileall import compile_dir
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = [path.name for path in (ROOT / "src").iterdir() if path.name != "__pycache__"]


@dataclass(frozen=True, slots=True)
class Code:
    """`python` runs the driver script and all of Spark's Python processes; `submit` are options of spark-submit.

    `path`: what the driver's Python processes find on PYTHONPATH.
    """

    python: Path
    submit: tuple[str, ...] = ()
    path: str = ""


def editable() -> Code:
    """As developers install it: the Python of the tests, which knows the folder of the sources."""
    return Code(Path(sys.executable))


def installed(folder: Path) -> Code:
    """As `pip install` leaves it: the packages are in the folder of the Python's own packages."""
    python, packages = _python(folder)
    for name in PACKAGES:
        source = ROOT / "src" / name
        if source.is_dir():
            shutil.copytree(source, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, packages)
    compile_dir(packages, quiet=1)
    return Code(python)


def shipped(folder: Path) -> Code:
    """As a zip archive that spark-submit hands to the driver and to every executor.

    Spark puts `--py-files` on the path of functions, and not of data sources: so the environment names it, on executors
    relative to the folder that Spark has copied it to.
    """
    python, _ = _python(folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(folder / "cuesqueue"), "zip", folder / "src")
    name = Path(archive).name
    return Code(python, ("--py-files", archive, "--conf", f"spark.executorEnv.PYTHONPATH={name}"), archive)


def _python(folder: Path) -> tuple[Path, Path]:
    """A Python that knows the packages of this one, but for those that are installed editable; and its own folder."""
    venv.create(folder / "python", with_pip=False, symlinks=True)
    python = folder / "python" / "bin" / "python"
    packages = Path(_said(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    # a folder that is named in a .pth file is searched, but its own .pth files, as editable installs have, are not read
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    found = "import importlib.util as u; print(u.find_spec('shard_store'), u.find_spec('pyspark') is not None)"
    assert _said(python, found) == "None True", "these tests need an editable install of the project"
    return python, packages


def _said(python: Path, code: str) -> str:
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
