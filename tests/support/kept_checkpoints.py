"""The checkpoints of `tests/data/checkpoints`, each with the store that belongs to it: `engine/keep_checkpoint.py`."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_store.sql import install
from shard_store.sql.database import Database

ARCHIVES = sorted((Path(__file__).resolve().parents[1] / "data" / "checkpoints").glob("*.zip"))
"""Named after the schema of the code that wrote them. They are read for ever: none is removed."""


@dataclass(frozen=True)
class Kept:
    """One of them, unpacked; its store is migrated."""

    folder: Path
    delivered: list[str]
    in_flight: list[str]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def source(self) -> dict[str, str]:
        """Options of the reader, with a queue that is empty."""
        return {
            "queueUrl": self.queue_url,
            "store": f"sqlite:///{self.folder}/store.db",
            "content": "message",
            "waitTime": "100ms",
            "pipeline": "kept",
            "source": "kept",
        }

    @property
    def queue_url(self) -> str:
        return f"sql+sqlite:///{self.folder}/queue.db?queue=files"

    def offsets(self) -> dict[int, dict[str, Any]]:
        """Of each batch: a line with the version, one with Spark's own, and one for each source."""
        found = {}
        for file in (self.checkpoint / "offsets").iterdir():
            if file.name.isdigit():
                _, _, own = file.read_text("utf-8").splitlines()
                found[int(file.name)] = json.loads(own)
        return found

    def done(self) -> set[int]:
        return {int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdigit()}


def unpack(archive: Path, folder: Path) -> Kept:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    told = json.loads((folder / "told.json").read_text("utf-8"))
    database = Database(f"sqlite:///{folder}/store.db")
    try:
        install.migrate(database)
    finally:
        database.close()
    return Kept(folder, told["delivered"], told["in_flight"])
