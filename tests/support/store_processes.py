"""Several `store_worker.py` at once that are told to act at the same moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

WORKER = Path(__file__).with_name("store_worker.py")


class Workers:
    """A process for each command line; all are ready before the first is asked anything."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(WORKER), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for command in commands
        ]

    def __enter__(self) -> Workers:
        assert self._answers() == ["ready"] * len(self._processes)
        return self

    def ask(self, order: str) -> list[Any]:
        """The answers of those that still live."""
        for process in self._processes:
            if process.stdin is not None and process.poll() is None:
                with suppress(BrokenPipeError):  # it is dying of the order before
                    process.stdin.write(f"{order}\n")
                    process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[Any]:
        lines = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        for process, line in zip(list(self._processes), lines, strict=True):
            if not line:  # it died at the order before
                self._processes.remove(process)
                process.communicate()
        return [json.loads(line) for line in lines if line]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
