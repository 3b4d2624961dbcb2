"""The values that the processes of the registering sink exchange: objects, and their outcomes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from pyiceberg.manifest import DataFile

from queue_source.read.objects import ExpectedObject


class Named(NamedTuple):
    """An object as its row names it."""

    uri: str
    size: int | None
    etag: str | None

    @property
    def expected(self) -> ExpectedObject:
        return ExpectedObject(self.size, self.etag)


class Refused(NamedTuple):
    """A bad object, which is recorded at the commit: there the plan is known, and with it the shard."""

    object: Named
    cause: str
    detail: str


@dataclass(slots=True)
class TaskObjects:
    """What one task did with its objects, with their tables and partition specs: one, unless it changed meanwhile.

    `copied` are the new files with the rows of `copies` objects. `empty` objects have no rows.
    """

    targets: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    registered: list[tuple[Named, DataFile]] = field(default_factory=list)
    copied: list[DataFile] = field(default_factory=list)
    copies: int = 0
    empty: int = 0
    refused: list[Refused] = field(default_factory=list)
