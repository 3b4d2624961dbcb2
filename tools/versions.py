"""Runs a set of tests in the environment it is started in, and notes the counts in docs/reference/versions.json.

    python3.12 tools/environment.py --spark 4.1 --folder /tmp/spark-4.1 -- python tools/versions.py unit engine

What was noted for the same Spark, Python and set is replaced. `python tools/generate_docs.py` makes the page
docs/reference/versions.md from it. Run it on a clean tree: the counts are those of a commit.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "reference" / "versions.json"
SETS: dict[str, list[str]] = {
    "unit": ["tests/unit", "tests/readers", "tests/prove"],
    # of these, a part that takes minutes: options, messages, formats, a reader without Spark, commands, the page
    "python": [
        "tests/unit/formats",
        *(
            f"tests/unit/test_{name}.py"
            for name in (
                *("options", "option_values", "notifications", "uris", "logs", "face", "sql_queue"),
                *("commands", "doctor", "serve"),
            )
        ),
        *(f"tests/readers/test_{name}.py" for name in ("coordinator", "status_command")),
    ],
    # the calls that Spark makes, source and sink, restarts, a killed driver, old checkpoints and foreachBatch, numbers
    "engine": [
        f"tests/engine/test_{name}.py"
        for name in ("spark_calls", "available_now", "crashes", "kept_checkpoints", "operations")
    ],
}


def counted(report: Path) -> dict[str, Any]:
    """What pytest's JUnit report says: counts, the names of what failed, and why tests were skipped."""
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    failures: list[str] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failures.append(f"{case.get('classname')}.{case.get('name')}")
        elif skipped is not None:
            counts["skipped"] += 1
            skips[skipped.get("message", "")] += 1
        else:
            counts["passed"] += 1
    return {
        **{name: counts[name] for name in ("passed", "failed", "skipped")},
        "failures": sorted(set(failures)),
        "skips": dict(sorted(skips.items())),
    }


def run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one set; returns its record. Raises SystemExit if pytest did not come to its end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cuesqueue-versions-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *SETS[name], f"--junitxml={report}", *arguments]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode not in (0, 1):  # 1: tests have failed
            sys.exit(f"[versions] error: pytest ended with {done.returncode}; nothing is noted")
        result = counted(report)
    return {
        **surroundings(),
        "tests": name,
        "files": SETS[name],
        **result,
        "seconds": round(time.monotonic() - began),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": git("rev-parse", "--short=10", "HEAD"),
    }


def surroundings() -> dict[str, str]:
    import pyspark

    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "spark": pyspark.__version__,
        "python": platform.python_version(),
        "java": said.split('"')[1],
        "system": f"{platform.system()} {platform.machine()}",
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def note(record: dict[str, Any], path: Path = RESULTS) -> None:
    """Put the record in the place of the one of the same Spark, Python and set."""
    records = json.loads(path.read_text("utf-8")) if path.exists() else []
    others = [one for one in records if _key(one) != _key(record)]
    path.write_text(json.dumps(sorted([*others, record], key=_key), indent=1) + "\n", "utf-8")


def _key(record: dict[str, Any]) -> tuple[list[int], list[int], str]:
    versions = [[int(part) for part in record[name].split(".")[:3]] for name in ("spark", "python")]
    return versions[0], versions[1], record["tests"]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="run sets of tests, and note the counts for the page")
    parser.add_argument("sets", nargs="+", choices=sorted(SETS))
    parser.add_argument("--pytest", default="", help="more arguments for pytest, separated by spaces")
    options = parser.parse_args(arguments)
    changed = git("status", "--porcelain", "--", "src", "tests", "locks", "pyproject.toml")
    if changed:
        sys.exit(f"[versions] error: commit first, or the counts are of no commit:\n{changed}")
    for name in options.sets:
        record = run(name, options.pytest.split())
        note(record)
        print(f"[versions] {record}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
