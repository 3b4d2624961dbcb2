"""What has to be known of a reader to compare its source with a listing: what it would have read, under which names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from queue_source.errors import OptionError
from queue_source.options.declaring import declared
from queue_source.options.places import LISTING
from queue_source.options.receiving import NotificationOptions
from queue_source.options.secrets import shown
from queue_source.options.storage import StorageOptions, storage_options
from queue_source.options.values import given, read
from queue_source.uris import plain_prefix


@dataclass(frozen=True, slots=True)
class ListingOptions:
    """Attributes:
    prefixes: What is listed, in the one form of URIs.
    notifications: The reader's options that choose objects and make their ids.
    choice: Those of them that were given, as JSON: equal for options that mean the same.
    """

    prefixes: tuple[str, ...]
    notifications: NotificationOptions
    storage: StorageOptions
    choice: str


def parse_listing_options(prefixes: Sequence[str], options: Mapping[str, str]) -> ListingOptions:
    """Options of a reader (names in any case) for the objects under `prefixes`. Raises OptionError."""
    values = read(LISTING, options)
    listed = _prefixes(prefixes)
    allowed = values["allowedPrefixes"] or listed
    if outside := next((prefix for prefix in listed if not prefix.startswith(allowed)), None):
        raise OptionError(
            "PREFIX", f"{shown(outside)} begins with none of the allowedPrefixes, so the reader reads nothing of it"
        )
    texts = given(LISTING, options)
    chosen = [option.name for option in LISTING.sections[NotificationOptions.TITLE]]
    written = {
        name: _written(name, values[name], texts[name])
        for name in chosen
        if name in texts and values[name] not in (False, None)
    }
    fields = {field: option.name for field, option in declared(NotificationOptions).items() if option.name in chosen}
    found = {field: values[name] for field, name in fields.items()} | {"allowed_prefixes": allowed}
    notifications = NotificationOptions(**found)
    return ListingOptions(listed, notifications, storage_options(values), json.dumps(written, sort_keys=True))


def options_of_choice(choice: str) -> dict[str, str]:
    """The options as they are written, of a choice."""
    values = json.loads(choice)
    return {name: _text(value) for name, value in values.items()}


def _written(name: str, value: object, text: str) -> object:
    """The value in a form that is the same for texts that mean the same."""
    if isinstance(value, datetime):
        if value.tzinfo is None:  # the reader has a zone for it, which nobody knows here
            raise OptionError(name, f"{shown(text)} has no time zone; write one, as in 2026-11-01T00:00:00Z")
        return value.astimezone(timezone.utc).isoformat()
    return value if isinstance(value, bool | tuple) else text.strip()


def _text(value: bool | str | Sequence[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else ",".join(value)


def _prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for prefix in prefixes:
        try:
            found.append(plain_prefix(prefix))
        except ValueError as error:
            raise OptionError("PREFIX", str(error)) from None
    for one in found:
        if wider := next((other for other in found if other != one and one.startswith(other)), None):
            raise OptionError(
                "PREFIX", f"{shown(one)} is under {shown(wider)}, so its objects would be counted twice; leave one out"
            )
    return tuple(dict.fromkeys(found))
