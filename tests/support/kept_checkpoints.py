"""The checkpoints of `tests/data/checkpoints`, each with the store that belongs to it: `engine/keep_checkpoint.py`."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_store.sql import install
from shard_store.sql.database import Database

_FOLDER = Path(__file__).resolve().parents[1] / "data" / "checkpoints"
ARCHIVES = sorted(_FOLDER.glob("schema-????.zip"))
"""Named after the schema of the code that wrote them, with no batch unfinished. They are read since 0.3."""
UNFINISHED = _FOLDER / "schema-0013-unfinished.zip"
"""Its query was killed in a batch."""


@dataclass(frozen=True)
class Kept:
    """One of them, unpacked."""

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


def unpack(archive: Path, folder: Path) -> Kept:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    told = json.loads((folder / "told.json").read_text("utf-8"))
    return Kept(folder, told["delivered"], told["in_flight"])


def migrated(archive: Path, folder: Path) -> Kept:
    """Unpack one, and migrate its store. Raises StoreConfigurationError."""
    kept = unpack(archive, folder)
    database = Database(f"sqlite:///{folder}/store.db")
    try:
        install.migrate(database)
    finally:
        database.close()
    return kept
