"""Wheel and sdist: built, checked, and installed into an empty environment, where the README's example runs.

    python tools/dist.py            all of it, into dist/: `make dist`
    python tools/dist.py --no-run   without installing what the wheel depends on, and without Spark

The wheel is built from the sdist, so what the sdist lacks is missed here and not by a user. Dependencies come from the
package index that pip is set up for, in the versions of `locks/`. Beside the archives go what the wheel needs, as
CycloneDX (`*.cdx.json`), and SHA256SUMS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "spark-4.txt"
IN_WHEEL = (
    *("cuesqueue/__init__.py", "cuesqueue/py.typed", "queue_source/py.typed", "shard_store/py.typed"),
    *(
        "cuesqueue_demo/query.py",
        "cuesqueue_prove/command.py",
        "pyspark_cuesqueue.py",
        "shard_store/sql/migrations/script.py.mako",
    ),
    *("queue_source/serve/monitoring/grafana-dashboard.json", "queue_source/serve/monitoring/prometheus-alerts.yml"),
)
IN_SDIST = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "pyproject.toml", "docs/tutorial.md", *IN_WHEEL)
_TOPS = {"cuesqueue", "cuesqueue_demo", "cuesqueue_prove", "queue_source", "shard_store", "pyspark_cuesqueue.py"}
_TRY = """
import sys, cuesqueue
with cuesqueue.open_queue("sql+sqlite:///jobs.db?queue=files") as queue:
    queue.send(["file:///tmp/a.json"])
    assert queue.depth().ready == 1
with cuesqueue.open_store("sqlite:///store.db") as store:
    assert list(store.pages("shards")) == []
print(cuesqueue.__file__)
"""


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, new in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("cuesqueue-*"), *folder.glob("SHA256SUMS")):
        old.unlink()
    # without isolation: hatchling is in the environment, from the lock
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (wheel,), (sdist,) = folder.glob("cuesqueue-*.whl"), folder.glob("cuesqueue-*.tar.gz")
    return wheel, sdist


def check(wheel: Path, sdist: Path) -> None:
    """What an index would refuse, and what would be missing or too much. Raises SystemExit."""
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    _expect(wheel, IN_WHEEL, names)
    if strange := {name.split("/")[0] for name in names} - _TOPS - {info}:
        sys.exit(f"[dist] error: {wheel.name} would install {sorted(strange)} beside the packages")
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2].removeprefix("src/").removeprefix("examples/") for name in archive.getnames()]
    _expect(sdist, IN_SDIST, inside)
    if compiled := [name for name in (*names, *inside) if name.endswith((".pyc", ".db"))]:
        sys.exit(f"[dist] error: {compiled[:3]} do not belong into an archive")


def _expect(archive: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    if missing := sorted(set(wanted) - set(names)):
        sys.exit(f"[dist] error: {archive.name} lacks {missing}")


def bill_of_materials(wheel: Path) -> Path:
    """Write what the wheel needs, directly or not, as CycloneDX, in the versions of this environment."""
    ours = next(iter(distributions(path=[str(wheel)])))
    root = _component(ours)
    components: dict[str, dict[str, Any]] = {}
    edges: dict[str, set[str]] = {root["bom-ref"]: set()}

    def add(parent: str, package: Distribution, extras: Iterable[str], scope: str) -> None:
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            try:
                needed = distribution(requirement.name)
            except PackageNotFoundError:
                sys.exit(f"[dist] error: {requirement.name} is not installed, so its version is unknown; run make dist")
            component = _component(needed)
            reference = component["bom-ref"]
            components.setdefault(reference, {**component, "scope": scope})
            if reference not in edges[parent] or requirement.extras:
                edges[parent].add(reference)
                edges.setdefault(reference, set())
                add(reference, needed, requirement.extras, scope)

    add(root["bom-ref"], ours, (), "required")
    add(root["bom-ref"], ours, ours.metadata.get_all("Provides-Extra", []), "optional")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": sorted(components.values(), key=lambda component: str(component["name"])),
        "dependencies": [{"ref": ref, "dependsOn": sorted(needed)} for ref, needed in sorted(edges.items())],
    }
    path = wheel.parent / f"cuesqueue-{ours.version}.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n", "utf-8")
    return path


def _component(package: Distribution) -> dict[str, Any]:
    name = canonicalize_name(package.metadata["Name"])
    url = f"pkg:pypi/{name}@{package.version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": package.version, "purl": url}
    if "License-Expression" in package.metadata:  # what older metadata says of licences is text of any kind
        found["licenses"] = [{"expression": package.metadata["License-Expression"]}]
    return found


def sums(files: Sequence[Path]) -> Path:
    """Write the file that `sha256sum --check` takes."""
    path = files[0].parent / "SHA256SUMS"
    path.write_text(
        "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files), "utf-8"
    )
    return path


class Installed:
    """The wheel in a new environment, which knows nothing of this folder."""

    def __init__(self, folder: Path, wheel: Path, *, dependencies_of: Sequence[str] = ()) -> None:
        """`dependencies_of`: folders that have what the wheel depends on; without them pip installs it."""
        self._folder = folder
        venv.EnvBuilder(clear=True).create(folder / "environment")
        self.bin = folder / "environment" / "bin"
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        pip += ["install", "--quiet"]
        if dependencies_of:
            _run(*pip, "--no-index", "--no-deps", str(wheel))
            (packages,) = (folder / "environment").glob("lib/python*/site-packages")
            (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies_of), "utf-8")
        else:
            constraints = folder / "constraints.txt"
            constraints.write_text(_pins(), "utf-8")
            _run(*pip, "--constraint", str(constraints), str(wheel))

    def run(self, *command: str) -> str:
        """What the command prints. Programs of the new environment come first; no module of ours is found elsewhere."""
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME")
        surroundings = {name: value for name, value in os.environ.items() if name not in hidden}
        surroundings |= {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(self.bin / "python"),
            "PYSPARK_DRIVER_PYTHON": str(self.bin / "python"),
        }
        return _run(*command, folder=self._folder, surroundings=surroundings)

    def try_out(self) -> None:
        """The command and the package, without Spark. Raises SystemExit."""
        sys.stdout.write(self.run(str(self.bin / "cuesqueue"), "version"))
        found = self.run(str(self.bin / "python"), "-c", _TRY).strip()
        if not Path(found).is_relative_to(self._folder):
            sys.exit(f"[dist] error: the package was imported from {found}, not from the wheel")


def _pins() -> str:
    """The versions of the lock; an environment that is to be empty gets none of the tools in it."""
    lines = re.findall(r"^([A-Za-z0-9._-]+==[^\\\n]+)", LOCK.read_text("utf-8"), re.MULTILINE)
    return "".join(f"{line.strip()}\n" for line in lines)


def example() -> list[tuple[str, str]]:
    """The README's own example: (language, text) of its blocks."""
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def _run(*command: str, folder: Path | None = None, surroundings: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"[dist] error: {' '.join(command)[:200]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="build, check and try the wheel and the sdist")
    parser.add_argument("--no-run", action="store_true", help="build and check only")
    options = parser.parse_args(arguments)
    wheel, sdist = build(ROOT / "dist")
    check(wheel, sdist)
    bill = bill_of_materials(wheel)
    print(f"[dist] built and checked: {wheel.name}, {sdist.name}; beside them {bill.name}, ", end="")
    print(sums([wheel, sdist, bill]).name, flush=True)
    if options.no_run:
        return
    with tempfile.TemporaryDirectory(prefix="cuesqueue-dist-") as folder:
        print("[dist] installing into an empty environment (PySpark alone is 450 MB)", flush=True)
        installed = Installed(Path(folder), wheel)
        installed.try_out()
        for language, text in example():
            sys.stdout.write(installed.run("bash" if language == "bash" else "python", "-c", text))
    print("[dist] the README's example runs from the wheel")


if __name__ == "__main__":
    main(sys.argv[1:])
