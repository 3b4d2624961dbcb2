"""The corpus of real-looking notifications in `tests/data/notifications/`: a folder a form, a file an event.

Each folder's `expected.json` says which `format` reads its events (and for `json` the `paths`), and what each of them
comes to: `announces` (lists of URI, size, etag, version; what is not told at the end is left out) and `ignored`, or
`malformed`, a regular expression of the reason. A file is the body as it is; in a folder `with_attributes` it is JSON
that holds the message's `attributes` and its `body` (text, or any other JSON), or the body's bytes in `base64`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queue_source.announcements.parser import JsonPaths, parse_notification
from queue_source.messages import Announcement, ObjectNotice

FOLDER = Path(__file__).parents[1] / "data" / "notifications"


@dataclass(frozen=True)
class Event:
    """One message of the corpus; `expected` is what it announces, or the reason (a regex) why it is malformed."""

    name: str
    body: bytes
    attributes: dict[str, str]
    format: str
    paths: JsonPaths | None
    expected: Announcement | str

    @property
    def form(self) -> str:
        return self.name.partition("/")[0]

    def read(self, format: str) -> Announcement:
        return parse_notification(self.body, self.attributes, format, self.paths or JsonPaths(uri="uri"))


def _event(folder: Path, name: str, form: dict[str, Any], expected: dict[str, Any]) -> Event:
    body, attributes = (folder / name).read_bytes(), {}
    if form.get("with_attributes"):
        file = json.loads(body)
        attributes = file["attributes"]
        if "base64" in file:
            body = base64.b64decode(file["base64"], validate=True)
        else:
            body = (file["body"] if isinstance(file["body"], str) else json.dumps(file["body"])).encode()
    notices = tuple(ObjectNotice(*told) for told in expected.get("announces", []))
    paths = expected.get("paths", form.get("paths"))
    return Event(
        name=f"{folder.name}/{name}",
        body=body,
        attributes=attributes,
        format=form["format"],
        paths=JsonPaths(**paths) if paths else None,
        expected=expected.get("malformed") or Announcement(notices, expected.get("ignored", 0)),
    )


def _folder(folder: Path) -> list[Event]:
    form = json.loads((folder / "expected.json").read_text("utf-8"))
    return [_event(folder, name, form, expected) for name, expected in form["events"].items()]


EVENTS = {event.name: event for folder in sorted(FOLDER.iterdir()) for event in _folder(folder)}
