"""Converts Spark's string map to the value of each option, by its own name; refuses unknown and unreadable ones."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

from queue_source.errors import OptionError
from queue_source.options import types
from queue_source.options.declaring import Option
from queue_source.options.other_names import ALIASES, CANNOT, CLOUD_FILES_CANNOT, MEANINGLESS, NOT_WITH
from queue_source.options.places import PLACES, READER, SINK, Place
from queue_source.options.secrets import Secret, check_shown

SPARK_OWN = ("checkpointLocation", "queryName")
"""What Spark hands to a sink, though it is meant for Spark itself (seen with PySpark 4: spark-facts)."""

_CLOUD_FILES = "cloudfiles."
_CANNOT = {name.lower(): instead for name, instead in CANNOT.items()}
_CLOUD_FILES_CANNOT = {name.lower(): why for name, why in CLOUD_FILES_CANNOT.items()}
_ALIASES = {alias.lower(): name.lower() for alias, name in ALIASES.items()}
_MEANINGLESS = {name.lower(): why for name, why in MEANINGLESS.items()}
_NOT_WITH = {name.lower(): values for name, values in NOT_WITH.items()}
_MEANINGLESS_GROUPS = tuple(name.removesuffix("*") for name in _MEANINGLESS if name.endswith("*"))
_SPARK_OWN = {name.lower() for name in SPARK_OWN}


def read(place: Place, options: Mapping[str, str]) -> dict[str, Any]:
    """Return every option of the place by its own name, defaults filled in. Raises OptionError."""
    texts = given_texts(place, options)
    values: dict[str, Any] = {}
    for option in place.options:
        text = texts.get(option.name, option.default)
        values[option.name] = None if text is None else _parse(option, text)
    for option in place.options:
        if option.name in texts:
            _check_format(option, values)
        elif option.required and not any(_is_so(values[name], value) for name, value in option.unless):
            call = f".option({option.name!r}, {option.example!r}) after {place.call}"
            raise OptionError(option.name, f"is required: {option.required}; write {call}")
    return values


def _is_so(own: Any, value: str | None) -> bool:
    return own is not None if value is None else own == value


def given_texts(place: Place, options: Mapping[str, str]) -> dict[str, str]:
    """Return option name -> text, for the options that are set. Raises OptionError."""
    table = {option.name.lower(): option for option in place.options}
    texts: dict[str, tuple[str, str]] = {}  # own name -> (name as written, text)
    for written, text in options.items():
        option = _resolve(place, table, written, text)
        if option is None:
            continue
        if option.type in (types.SECRET, types.STORE_URL):
            check_shown(written, option.name, text, secret=option.type is types.SECRET)
        earlier = texts.setdefault(option.name, (written, text))
        if earlier[1] != text:
            raise OptionError(option.name, f"is given twice, as {earlier[0]!r} and as {written!r}; keep one of them")
    return {name: text for name, (_, text) in texts.items()}


def _resolve(place: Place, table: Mapping[str, Option], written: str, text: str) -> Option | None:
    """Return the option with a name as written; None for a name that is accepted without a meaning here."""
    name = written.lower()
    if place is SINK and name in _SPARK_OWN:
        return None
    group = next((group for group in _MEANINGLESS_GROUPS if name.startswith(group)), None)
    why = _MEANINGLESS.get(name if group is None else f"{group}*")
    if place is READER and (instead := _NOT_WITH.get(name, {}).get(text.strip().lower())):
        raise OptionError(written, f"cannot be {text.strip()}: {instead}")
    if place is READER and why:
        warnings.warn(
            f"option {written!r} has no meaning: {why}; leave it out",
            UserWarning,
            stacklevel=2,
        )
        return None
    name = _ALIASES.get(name, name)
    if name.startswith(_CLOUD_FILES):
        name = name.removeprefix(_CLOUD_FILES)
        if name in _CLOUD_FILES_CANNOT:
            raise OptionError(written, f"has no equivalent here: {_CLOUD_FILES_CANNOT[name]}")
    if name in table:
        return table[name]
    if place is READER and name in _CANNOT:
        raise OptionError(written, f"has no equivalent here: {_CANNOT[name]}")
    raise OptionError(written, _unknown(place, table, name))


def _unknown(place: Place, table: Mapping[str, Option], name: str) -> str:
    if name == "path" and place.no_path:
        return place.no_path
    for other in PLACES:
        if any(option.name.lower() == name for option in other.options):
            return f"belongs to {other.call}, not to {place.call}; leave it out here"
    return f"is unknown to {place.call}; {nearest(name, table)}"


def nearest(name: str, table: Mapping[str, Option]) -> str:
    """Return the next step for an unknown option: the name in the table (by lower case) that it may be meant for."""
    close = difflib.get_close_matches(name.lower(), list(table), n=1)
    return f"did you mean {table[close[0]].name!r}?" if close else "see docs/reference/options.md for all options"


def _parse(option: Option, text: str) -> Any:
    try:
        value = option.type.parse(text)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Secret):
                # a reference that leads nowhere is reported with the option's name, before anything starts
                item.reveal()
        return value
    except ValueError as error:
        # "from None": the chain of causes could show the value of a secret
        raise OptionError(option.name, str(error)) from None


def _check_format(option: Option, values: Mapping[str, Any]) -> None:
    """Refuse an option of one file format with another, instead of ignoring it."""
    if any(values[name] is not None for name in option.beside):
        return
    name = "fileFormat" if "fileFormat" in values else "load"  # of a reader, of a sink
    if option.formats and values[name] not in option.formats:
        instead = option.instead and f"; {option.instead}"
        raise OptionError(
            option.name,
            f"acts only on {name} {' and '.join(option.formats)}, but {name} is {values[name]}; leave it out{instead}",
        )
