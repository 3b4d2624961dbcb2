"""The Java of this machine, which Spark starts: looked at before Spark is, whose own message is a page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from queue_source.errors import CuesqueueError

OLDEST_JAVA = 17
NEWEST_JAVA: dict[tuple[int, ...], int] = {(4, 0): 23, (4, 1): 23}
"""Of the versions of Spark that a newer Java does not start; 24 took away what Hadoop's login needs there."""

_TIME_OUT = 60.0  # seconds for another program
_INSTALL = "install a Java 17 or 21 (JDK or JRE), and let JAVA_HOME name its folder"


def require_java() -> None:
    """Raise CuesqueueError where Spark cannot start on this machine for want of a Java."""
    text, fix = examine_java(os.environ, version("pyspark"))
    if fix:
        raise CuesqueueError(f"java{' ' if text.startswith('is ') else ': '}{text}; {fix}")


def examine_java(environment: Mapping[str, str], spark: str) -> tuple[str, str]:
    """Return what is known of the Java that this version of Spark would start, and the next step; "" where it suits."""
    home = environment.get("JAVA_HOME", "")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if program is None:
        return "is not on the path, and JAVA_HOME is not set", _INSTALL
    try:
        done = run_program([program, "-version"], environment)
    except OSError as error:
        return f"{program} cannot be started ({error.strerror})", _INSTALL
    named = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or named is None:
        return f"{program} -version failed: {line_of(done.stderr or done.stdout, 0)}", _INSTALL
    number = int(named[1])
    text = f"{number} at {program}"
    if number < OLDEST_JAVA:
        return f"{text} is too old", _INSTALL
    newest = NEWEST_JAVA.get(numbers(spark), number)
    if number > newest:
        return f"{text} is too new for Spark {spark}", f"use Java 17 to {newest}, or Spark 4.2 or newer"
    return text, ""


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_TIME_OUT, env=dict(environment), cwd="/"
    )


def numbers(text: str) -> tuple[int, ...]:
    """Return the major and minor version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def line_of(text: str, place: int) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[place]
