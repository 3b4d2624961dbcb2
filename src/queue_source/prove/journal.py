"""What a proof and the processes of its jobs tell each other: the settings of a run, and a journal of what happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SETTINGS = "CUESQUEUE_PROVE_SETTINGS"
"""Environment variable with the file of the settings, set in the job's process."""
FOLDER = "CUESQUEUE_PROVE"
"""Environment variable with the folder of the run, for jobs that look for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run. All fields are texts and numbers, so that another process can read them.

    Attributes:
        folder: Everything that the job reads and writes is below it; also its working folder.
        samples: Files whose copies are the objects, or whose records are the messages.
        objects: How many objects are made for each queue; of messages as many times the sample.
        batch: How many objects a micro-batch has at most.
        key: Column that is made unique; "" to choose one.
        tag: Tag of the messages.
        allowed: Hosts other than this machine that the job may connect to.
        pause_at_effect: After which write in a function of foreachBatch the job stands still, counted from 1; 0: none.
    """

    folder: str
    job: str
    samples: tuple[str, ...]
    objects: int = 12
    batch: int = 2
    key: str = ""
    tag: str = ""
    allowed: tuple[str, ...] = ()
    pause_at_effect: int = 0

    @property
    def root(self) -> Path:
        return Path(self.folder)

    @property
    def marker(self) -> Path:
        """The file that exists while a process stands still at a step."""
        return self.root / "prove" / "paused"

    def write(self) -> Path:
        """Write the settings to a file in the run's folder, and return it."""
        file = self.root / "prove" / "settings.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)), "utf-8")
        return file

    @classmethod
    def read(cls, file: str | Path) -> Settings:
        """Read what `write` wrote."""
        values: dict[str, Any] = json.loads(Path(file).read_text("utf-8"))
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


class Journal:
    """Lines of JSON that several processes append to; each has `what` and `start`, the number of the job's start."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "prove" / "journal.jsonl"
        self.start = 0

    def note(self, what: str, **details: Any) -> None:
        """Append an entry, durable for readers even if this process is killed next."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"what": what, "start": self.start, **details}, default=str) + "\n"
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())  # in one call: lines of several processes do not mix
        finally:
            os.close(descriptor)

    def entries(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of these kinds, or all, in their order."""
        if not self._file.exists():
            return
        for line in self._file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if not kinds or entry["what"] in kinds:
                yield entry
