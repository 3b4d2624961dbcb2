"""One declaration for an option: a field of its frozen group says its name, type, default, help and example.

    @dataclass(frozen=True, slots=True)
    class QueueOptions:
        receive_threads: int = option("receiveThreads", types.number(1, 256), "2", help="...", example="4")

Parsing, the defaults of the dataclass, the reference page and "did you mean" are derived from it. The groups stay plain
dataclasses, because executors unpickle them: they need the standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from queue_source.options.types import OptionType

_DECLARED = "option"
Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option.

    Attributes:
        default: Text as a user would write it; None: there is none, or `note` says what it is.
        note: What stands in the page's column "default" when `default` is None.
        required: Why the option cannot be omitted, for the error message; "" when it can be.
        unless: (another option, its value) with which a required option may be omitted all the same.
        formats: The file formats that it acts on; with another one it is refused, since it would do nothing.
    """

    name: str
    type: OptionType
    default: str | None
    help: str
    example: str = ""
    note: str = "none"
    required: str = ""
    unless: tuple[str, str] | None = None
    formats: tuple[str, ...] = ()


def option(
    name: str,
    type: OptionType,
    default: str | None = None,
    *,
    help: str,
    example: str = "",
    note: str = "none",
    required: str = "",
    unless: tuple[str, str] | None = None,
    formats: tuple[str, ...] = (),
) -> Any:
    """A field of an option group; the arguments are the attributes of `Option`.

    The field's own default is the parsed `default`, or None; a required option has none.
    """
    declared = Option(name, type, default, help, example, note, required, unless, formats)
    shown = type.name != "secret"
    if required:
        return dataclasses.field(metadata={_DECLARED: declared}, repr=shown)
    value = None if default is None else type.parse(default)
    return dataclasses.field(default=value, metadata={_DECLARED: declared}, repr=shown)


def declared(group: type) -> dict[str, Option]:
    """The options of a group: field name -> option, in the order of the fields."""
    return {field.name: field.metadata[_DECLARED] for field in dataclasses.fields(group) if _DECLARED in field.metadata}


def options_of(*groups: type) -> tuple[Option, ...]:
    """The options of all groups, in order."""
    return tuple(option for group in groups for option in declared(group).values())


def build(group: type[Group], values: Mapping[str, Any], **others: Any) -> Group:
    """The group with the values of its options.

    Args:
        group: A frozen dataclass whose fields are declared with `option`.
        values: Option name -> parsed value.
        others: Fields that are no option, or whose value depends on other options too.
    """
    found = {field: values[option.name] for field, option in declared(group).items() if field not in others}
    return group(**found, **others)
