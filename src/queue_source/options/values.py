"""Spark's string map becomes the value of each option, by its own name: what is unknown or unreadable is refused."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

from queue_source.errors import OptionError
from queue_source.options.tables import READER_OPTIONS, SINK_OPTIONS, VIEW_OPTIONS, Option
from queue_source.options.tables.foreign_names import ALIASES, CANNOT, CLOUD_FILES_CANNOT, MEANINGLESS, SPARK_OWN

_CLOUD_FILES = "cloudfiles."
_CANNOT = {name.lower(): instead for name, instead in CANNOT.items()}
_CLOUD_FILES_CANNOT = {name.lower(): why for name, why in CLOUD_FILES_CANNOT.items()}
_ALIASES = {alias.lower(): name for alias, name in ALIASES.items()}
_MEANINGLESS = {name.lower() for name in MEANINGLESS}
_SPARK_OWN = {name.lower() for name in SPARK_OWN}
_PLACES = {"reader": READER_OPTIONS, "sink": SINK_OPTIONS, "views": VIEW_OPTIONS}
_CALLS = {"reader": "readStream", "sink": "writeStream", "views": "read"}
_NO_PATH = {
    "reader": "a streaming read takes no path: the queue announces what is read; call load() without an argument, "
    "and set allowedPrefixes to limit what may be read",
    "views": "a view takes no path: the store knows its files; call load() without an argument, and set store",
}


def read(place: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Every option of the place by its canonical name, defaults filled in."""
    table = {option.name.lower(): option for option in _PLACES[place]}
    given: dict[str, tuple[str, str]] = {}  # canonical name -> (name as written, text)
    for written, text in options.items():
        option = _resolve(place, table, written)
        if option is None:
            continue
        earlier = given.setdefault(option.name, (written, text))
        if earlier[1] != text:
            raise OptionError(option.name, f"is given twice, as {earlier[0]!r} and as {written!r}; keep one of them")
    values: dict[str, Any] = {}
    for option in table.values():
        if option.required and option.name not in given:
            raise OptionError(option.name, missing(place, option))
        text_or_none = given[option.name][1] if option.name in given else option.default
        values[option.name] = None if text_or_none is None else _parse(option, text_or_none)
    for name in given:
        _check_format(table[name.lower()], values)
    return values


def _resolve(place: str, table: Mapping[str, Option], written: str) -> Option | None:
    """The option that a name as written means; None for what is accepted without a meaning here."""
    name = written.lower()
    if place == "sink" and name in _SPARK_OWN:
        return None
    if place == "reader" and name in _MEANINGLESS:
        warnings.warn(
            f"option {written!r} has no meaning for cuesqueue, which always works by notifications; leave it out",
            UserWarning,
            stacklevel=2,
        )
        return None
    name = _ALIASES.get(name, name)
    if name.startswith(_CLOUD_FILES):
        name = name.removeprefix(_CLOUD_FILES)
        if name in _CLOUD_FILES_CANNOT:
            raise OptionError(written, f"has no equal here: {_CLOUD_FILES_CANNOT[name]}")
    option = table.get(name.lower())
    if option is None and place == "reader" and name.lower() in _CANNOT:
        raise OptionError(written, f"has no equal here: {_CANNOT[name.lower()]}")
    if option is None:
        raise OptionError(written, _unknown(place, table, name))
    return option


def _unknown(place: str, table: Mapping[str, Option], name: str) -> str:
    if name == "path" and place in _NO_PATH:
        return _NO_PATH[place]
    for other, options in _PLACES.items():
        if any(option.name.lower() == name for option in options):
            return f"belongs to {_CALLS[other]}, not to {_CALLS[place]}; leave it out here"
    close = difflib.get_close_matches(name, list(table), n=1)
    hint = f"did you mean {table[close[0]].name!r}?" if close else "see docs/reference/options.md for all options"
    return f"is unknown to {_CALLS[place]}; {hint}"


def missing(place: str, option: Option) -> str:
    hint = {
        "fileFormat": "the objects need a format",
        "pipeline": "name the pipeline whose progress is published with the rows, as in the reader's option pipeline",
    }.get(option.name, "name the queue to read")
    return f"is required: {hint}; write .option({option.name!r}, {option.example!r}) after {_CALLS[place]}"


def _parse(option: Option, text: str) -> Any:
    try:
        return option.kind.parse(text)
    except ValueError as error:
        # "from None": the chain of causes could show the value of a secret
        raise OptionError(option.name, str(error)) from None


def _check_format(option: Option, values: Mapping[str, Any]) -> None:
    """An option of one file format does nothing with another: say so instead of ignoring it."""
    if option.formats and values["fileFormat"] not in option.formats:
        raise OptionError(
            option.name,
            f"acts only on fileFormat {' and '.join(option.formats)}, but fileFormat is {values['fileFormat']}; "
            "leave it out",
        )
