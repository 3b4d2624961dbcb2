"""The objects, each in many versions, and what their notifications say of one of these."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from queue_source.announcements.dialects import Dialect
from queue_source.storage.open_files import version_of

FORMS = {"whole": 2, "longer": 3, "large": 8, "empty": 0, "damaged": 2}
"""Rows of each form of a version. A large one is read in pieces; a damaged one is an archive without its end."""
LARGEST_PIECE = 120
"""Bytes: only large versions have more."""

FILES = Dialect(
    recognises=lambda document: "Files" in document,
    records="Files",
    scheme="file",
    bucket="",
    key="",
    uri_of=lambda record, item: str(record["uri"]),
    etag="etag",
    version="version",
    sequencer="sequencer",
)
"""What a bucket would say of local files: size, ETag and sequence of one version."""


class Version(NamedTuple):
    """What an object is from one write to the next. `time`: in nanoseconds; no two versions have the same."""

    number: int
    content: bytes
    rows: tuple[str, ...]
    time: int
    form: str


class Event(NamedTuple):
    """A notification of the version of an object that was there when it was made; `facts`: it says which."""

    uri: str
    version: Version
    facts: bool

    @property
    def name(self) -> str:
        return f"{name_of(self.uri)}@{self.version.number}" + " as URI" * (not self.facts)


@dataclass
class Objects:
    """All versions of all objects, by URI, and which of them were announced to which source.

    `announced`: (source, URI) -> the numbers of versions. What a URI alone announces is the version that is there when
    it is read: any from the one on that was there when it was announced (`announced_since`). `last_gone`: the version
    that was deleted last.
    """

    folder: Path
    versions: dict[str, list[Version]] = field(default_factory=dict)
    announced: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    announced_since: dict[tuple[str, str], int] = field(default_factory=dict)
    last_gone: dict[str, int] = field(default_factory=dict)

    def uri(self, place: str, name: str) -> str:
        return (self.folder / place / name).as_uri()

    def write(self, uri: str, form: str, now: float) -> Version:
        """The object gets a new version in its place, as a second upload does."""
        before = self.versions.setdefault(uri, [])
        name = f"{name_of(uri)}@{len(before)}"
        rows = tuple(f"{name}#{n}" for n in range(FORMS[form]))
        content = "".join(json.dumps({"row_id": row}) + "\n" for row in rows).encode()
        if uri.endswith(".gz") and content:
            content = gzip.compress(content, mtime=0)
        if form == "damaged":
            content = content[:-9]
        version = Version(len(before), content, rows, round(now * 1e9) + len(before), form)
        before.append(version)
        self.appear(uri)
        return version

    def newest(self, uri: str) -> Version:
        return self.versions[uri][-1]

    def appear(self, uri: str) -> None:
        """The object's newest version is there."""
        path, newest = path_of(uri), self.newest(uri)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(newest.content)
        os.utime(path, ns=(newest.time, newest.time))

    def vanish(self, uri: str) -> None:
        self.last_gone[uri] = self.newest(uri).number
        path_of(uri).unlink(missing_ok=True)

    def remove_folder(self, uris: Sequence[str]) -> None:
        """All of these vanish, and their folder with them."""
        for uri in uris:
            self.vanish(uri)
        for folder in {path_of(uri).parent for uri in uris}:
            folder.rmdir()

    def make_folders(self) -> None:
        for uri in self.versions:
            path_of(uri).parent.mkdir(exist_ok=True)

    def is_there(self, uri: str) -> bool:
        return path_of(uri).exists()

    def event(self, uri: str, *, facts: bool) -> Event:
        return Event(uri, self.newest(uri), facts)

    def announce(self, source: str, events: Iterable[Event]) -> None:
        """Note what the source may read from now on."""
        for event in events:
            of = source, event.uri
            self.announced[of].add(event.version.number)
            if not event.facts:
                self.let_read(source, event.uri)

    def let_read(self, source: str, uri: str) -> None:
        """Note that the source may read the object as it is, or will be: it was told its URI, or has listed it."""
        since = len(self.versions[uri]) - 1
        self.announced_since[source, uri] = min(since, self.announced_since.get((source, uri), since))

    def may_be_read(self, source: str, uri: str) -> list[Version]:
        """The versions of which the source was told."""
        of = source, uri
        since = self.announced_since.get(of, len(self.versions[uri]))
        return [v for v in self.versions[uri] if v.number in self.announced.get(of, ()) or v.number >= since]


def body_of(events: Sequence[Event], *, with_versions: bool = False) -> str:
    """One message: with all facts of each object, or their URIs alone. `with_versions`: as a bucket that keeps them."""
    if not all(event.facts for event in events):
        return json.dumps([event.uri for event in events])
    return json.dumps({"Files": [_facts(event, with_versions) for event in events]})


def _facts(event: Event, with_versions: bool) -> dict[str, Any]:
    version = event.version
    facts = {"size": len(version.content), "etag": etag_of(version), "sequencer": f"{version.number + 1:04x}"}
    return {"uri": event.uri, **facts, **({"version": f"v{version.number}"} if with_versions else {})}


def shard_ids_in(body: bytes) -> dict[str, str]:
    """By URI the ids that a source with versions in its ids gives to what a message announces."""
    value = None if body.startswith(b"file:") else json.loads(body)
    files = value["Files"] if isinstance(value, dict) else ()
    return {item["uri"]: f"{item['uri']}#{item.get('version', item['etag'])}" for item in files}


def uris_in(body: bytes) -> list[str]:
    if body.startswith(b"file:"):  # of a command
        return [body.decode()]
    value = json.loads(body)
    return [item["uri"] for item in value["Files"]] if isinstance(value, dict) else value


def etag_of(version: Version) -> str:
    """What the reader finds in place of an ETag where it opens the version."""
    status = [0] * 10
    status[6] = len(version.content)
    return version_of(os.stat_result(status, {"st_mtime_ns": version.time}))


def name_of(uri: str) -> str:
    path = path_of(uri)
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
