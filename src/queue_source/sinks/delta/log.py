"""The log of a Delta table: of which commits the table is made now, by what each commit did (decision 0092)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from queue_source.errors import BadObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import resolve
from queue_source.storage.open_files import mapped

_PUTS_BACK = re.compile(r".*(RESTORE|CLONE)\b.*")
_CHANGES_ROWS = re.compile(
    r"WRITE|DELETE|UPDATE|MERGE|TRUNCATE|OPTIMIZE|STREAMING UPDATE|COPY INTO|REORG\b.*|(CREATE OR )?REPLACE\b.*"
)
"""How operations name themselves. One with neither of these names, or with none, is judged by what it did alone."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as a table has it: `vectors` are the rows that are deleted in it."""

    path: str
    vectors: str

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> _File:
        deleted = action.get("deletionVector") or {}
        parts = (deleted.get(name) for name in ("storageType", "pathOrInlineDv", "offset"))
        return cls(unquote(action["path"]), "".join(str(part) for part in parts if part is not None))


@dataclass(frozen=True)
class LoggedCommit:
    """A commit as its client has written it."""

    version: int
    text: str

    @property
    def _lines(self) -> list[str]:
        """Not `splitlines`: texts in JSON may hold U+0085 and U+2028."""
        return self.text.split("\n")

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What it tells of itself; some clients say nothing."""
        infos = (line for line in self._lines if '"commitInfo"' in line)
        return next((action["commitInfo"] or {} for action in map(json.loads, infos) if "commitInfo" in action), {})

    @property
    def operation(self) -> str:
        return str(self.info.get("operation") or "").upper()

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.info.get("operationParameters") or {}

    @cached_property
    def added(self) -> frozenset[_File]:
        return frozenset(_File.of(add) for add in self._actions["add"])

    @cached_property
    def removed(self) -> frozenset[_File]:
        return frozenset(_File.of(remove) for remove in self._actions["remove"])

    @property
    def changed(self) -> frozenset[_File]:
        """Return the files that are the table's only before it, or only after it."""
        if not self.removed and not any(add.get("dataChange", True) for add in self._actions["add"]):
            return frozenset()  # statistics of files that were there
        return self.added ^ self.removed

    @property
    def puts_back(self) -> bool:
        """Tell whether its client says that it puts the table back."""
        return _PUTS_BACK.fullmatch(self.operation) is not None

    @property
    def may_put_back(self) -> bool:
        if self.puts_back or _CHANGES_ROWS.fullmatch(self.operation):
            return self.puts_back
        return any(remove.get("dataChange", True) for remove in self._actions["remove"])

    @cached_property
    def _actions(self) -> Mapping[str, list[Mapping[str, Any]]]:
        actions: dict[str, list[Mapping[str, Any]]] = {"add": [], "remove": []}
        for line in self._lines:
            for kind, action in json.loads(line).items() if line.strip() else ():
                if kind in actions:
                    actions[kind].append(action)
        return actions


class Log:
    """The commits of a table, as far back as they are kept; each is read once."""

    def __init__(self, uri: str, storage: StorageOptions | None) -> None:
        self._filesystem, self._folder = resolve(f"{uri.rstrip('/')}/_delta_log", storage)
        self._read: dict[int, LoggedCommit | None] = {}

    def commit(self, version: int) -> LoggedCommit | None:
        """Return the commit of this version; None where its file is cleaned away."""
        if version < 0:
            return None
        if version not in self._read:
            path = f"{self._folder}/{version:020}.json"
            try:
                with mapped(path), self._filesystem.open_input_stream(path) as file:
                    self._read[version] = LoggedCommit(version, file.read().decode())
            except BadObject:
                self._read[version] = None
        return self._read[version]

    def back_from(self, version: int) -> Iterator[LoggedCommit]:
        """Yield this commit and those before it, the newest first."""
        while (commit := self.commit(version)) is not None:
            yield commit
            version -= 1

    def restored(self, commit: LoggedCommit) -> int | None:
        """Return the version to which this commit has put the table back: the newest one with the files of now.

        A change of rows writes new files, or leaves some of those that came last. So a commit after which the files
        are those of an earlier version has put that back, in whichever way it is spelled; unless it says that it
        changes rows. None: it is not such a commit, or nothing tells how far it went.
        """
        if not commit.may_put_back:
            return None
        differing = set(commit.changed)  # the files of one version alone: of this one, or of the one that is compared
        version = commit.version - 1
        for before in self.back_from(version):
            if not differing:
                return version
            differing ^= before.changed
            version -= 1
            is_appended = not before.removed and not before.added.isdisjoint(differing)
            if is_appended and not commit.puts_back:
                return None  # a file that was new then is there still: no version before has it
        if not differing:
            return version
        said = str(commit.parameters.get("version"))
        if commit.puts_back and said.isdigit() and version < int(said) < commit.version:
            return int(said)  # files that are missing were left out
        return None
