"""Starting several `store_worker.py` at once, and having them begin together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("store_worker.py")


def together(commands: Sequence[Sequence[str]]) -> list[Any]:
    """What each worker printed; all are ready before the first one begins."""
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for command in commands
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        return [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
