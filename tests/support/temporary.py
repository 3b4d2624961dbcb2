"""The temporary files of a test run are in memory, where there is enough of it: half of its time went to the disk.

Stores, servers and checkpoints of tests live for a second, and nothing here pulls a plug: what a killed process has
written is as safe in memory. A TMPDIR of one's own, a system without /dev/shm, or one with little in it: the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")
ENOUGH = 6 << 30
"""Bytes: several times as much as a run of all tests has written at any moment."""
_PREFIX = "cuesqueue-tests-"


class TemporaryFolder:
    """The folder of one run, which its workers and the servers it starts share."""

    def __init__(self, parent: Path = MEMORY) -> None:
        self._parent = parent
        self._folder: Path | None = None

    def use(self) -> None:
        """Let this process, and those that it starts, write their temporary files to a new folder in memory."""
        if "TMPDIR" in os.environ or not self._has_room():
            return
        self._remove_those_of_dead_runs()
        self._folder = self._parent / f"{_PREFIX}{os.getpid()}"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o755)  # PostgreSQL runs as another user
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(self._folder)
        tempfile.tempdir = None

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Give the memory back."""
        if self._folder is not None:
            del os.environ["TMPDIR"], os.environ["SPARK_LOCAL_DIRS"]
            tempfile.tempdir = None
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _has_room(self) -> bool:
        try:
            return bool(min(shutil.disk_usage(self._parent).free, psutil.virtual_memory().available) >= ENOUGH)
        except OSError:
            return False

    def _remove_those_of_dead_runs(self) -> None:
        for folder in self._parent.glob(f"{_PREFIX}*"):
            number = folder.name.removeprefix(_PREFIX)
            if number.isdigit() and not psutil.pid_exists(int(number)):
                shutil.rmtree(folder, ignore_errors=True)
