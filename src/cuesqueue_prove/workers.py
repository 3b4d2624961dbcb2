"""Python processes that Spark starts for a job under proof: what functions of SQL, of `foreach` and data sources do.

Spark starts them by a script in the run's folder, as `python -m cuesqueue_prove.workers MODULE ARGUMENT...` in place
of `python -m MODULE ARGUMENT...`. Processes that they fork have the walls, too.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from pathlib import Path

from cuesqueue_prove.folder import SETTINGS, Settings
from cuesqueue_prove.walls import Walls


def write_python(root: Path, python: str) -> str:
    """Write the script that Spark is to take for Python, and return its path; `python` where the disk runs no scripts.

    A setting of Spark for its daemon is not enough: those of data sources are started without it.
    """
    script = root / "prove" / "python"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(
            f'#!/bin/sh\nif [ "$1" = -m ]; then shift; set -- -m {__name__} "$@"; fi\n'
            f'exec {shlex.quote(python)} "$@"\n',
            "utf-8",
        )
        script.chmod(0o755)
    return str(script) if os.access(script, os.X_OK) else python


def main() -> None:
    """Raise the walls, then run the module as Python would."""
    sys.addaudithook(Walls(Settings.read(os.environ[SETTINGS])).check)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
