"""One declaration for an option: a field of its frozen group says its name, type, default, help and example.

    @dataclass(frozen=True, slots=True)
    class QueueOptions:
        receive_threads: int = option("receiveThreads", types.number(1, 256), "2", help="...", example="4")

Parsing, the defaults of the dataclass, the reference page and "did you mean" are derived from it. The groups stay plain
dataclasses, because executors unpickle them: they need the standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from queue_source.options.types import OptionType

_DECLARED = "option"
Group = TypeVar("Group")
Attributes = ParamSpec("Attributes")


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option.

    Attributes:
        default: Text as a user would write it; None: there is none, or `note` says what it is.
        note: What the page has in the column "default" when `default` is None.
        required: Why the option cannot be omitted, for the error message; "" when it can be.
        unless: (another option, its value) with which a required option may be omitted all the same; the
            value None stands for any.
        formats: The file formats that it acts on; with another one it is refused, since it would do nothing.
        beside: Other options beside which it acts whatever the format.
    """

    name: str
    type: OptionType
    default: str | None = None
    _: dataclasses.KW_ONLY
    help: str
    example: str = ""
    note: str = "none"
    required: str = ""
    unless: tuple[tuple[str, str | None], ...] = ()
    formats: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


def _field(declare: Callable[Attributes, Option]) -> Callable[Attributes, Any]:
    def field(*positional: Attributes.args, **named: Attributes.kwargs) -> Any:
        declared = declare(*positional, **named)
        shown = declared.type.name != "secret"
        if declared.required:
            return dataclasses.field(metadata={_DECLARED: declared}, repr=shown)
        value = None if declared.default is None else declared.type.parse(declared.default)
        return dataclasses.field(default=value, metadata={_DECLARED: declared}, repr=shown)

    return field


option = _field(Option)
"""A field of an option group; the arguments are the attributes of `Option`.

The field's own default is the parsed `default`, or None; a required option has none.
"""


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
