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
from enum import Enum
from typing import Any, ParamSpec, TypeVar

from queue_source.options.types import OptionType

_DECLARED = "option"
Group = TypeVar("Group")
Attributes = ParamSpec("Attributes")


class OnChange(str, Enum):
    """What happens when an option is another one at the next start: the sentence of the reference page."""

    AT_ONCE = "It takes effect with the start. No row depends on it."
    NEXT_BATCH = "It takes effect with the next batch. A recorded batch that is not yet published stays as it is."
    ANNOUNCED = (
        "It takes effect for what is received or listed from then on. A recorded batch is read all the same; a message "
        "that comes again is looked at anew."
    )
    READ = (
        "It takes effect for all that is read from then on, also when an unpublished batch is read again (as a whole). "
        "What an earlier attempt at that batch found bad stays bad. Of an object that is published in part, the rest "
        "is read with the new value."
    )
    DELIVERED = (
        "It takes effect for what is published from then on, also by the next attempt at an unpublished batch. What is "
        "published stays where it is."
    )
    REFUSED_IN_PART = (
        "Refused while an object is published in part (`maxBytesPerTrigger`), since its rest would begin elsewhere. "
        "Otherwise it takes effect for all that is read from then on."
    )
    REFUSED_UNFINISHED = (
        "Refused while anything that the pipeline has begun is not published: first run the query as it was until "
        "nothing is left (trigger `availableNow`)."
    )


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        default: Text as a user would write it; None: there is none, or `note` describes it.
        note: The text of the page's column "default" when `default` is None.
        required: Why the option cannot be omitted, for the error message; "" when it can be.
        unless: (another option, its value) with which a required option may be omitted all the same; the
            value None stands for any.
        formats: The file formats that it acts on; with another one it is refused, since it would do nothing.
        instead: What to do with other formats, for the error message.
        beside: Other options with which it acts whatever the format.
        on_change: What happens when it is another one at the next start; a sentence of its own where no other fits.
            None: the one of its group (`ON_CHANGE`), or nothing continues from one start to the next.
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
    instead: str = ""
    beside: tuple[str, ...] = ()
    on_change: OnChange | str | None = None


def _field(declare: Callable[Attributes, Option]) -> Callable[Attributes, Any]:
    def field(*positional: Attributes.args, **named: Attributes.kwargs) -> Any:
        declared = declare(*positional, **named)
        in_repr = declared.type.name != "secret"
        if declared.required:
            return dataclasses.field(metadata={_DECLARED: declared}, repr=in_repr)
        value = None if declared.default is None else declared.type.parse(declared.default)
        return dataclasses.field(default=value, metadata={_DECLARED: declared}, repr=in_repr)

    return field


option = _field(Option)
"""A field of an option group; the arguments are the attributes of `Option`.

The field's own default is the parsed `default`, or None; a required option has none.
"""


def declared(group: type) -> dict[str, Option]:
    """Return the options of a group: field name -> option, in the order of the fields."""
    options = {
        field.name: field.metadata[_DECLARED] for field in dataclasses.fields(group) if _DECLARED in field.metadata
    }
    of_group: OnChange | None = getattr(group, "ON_CHANGE", None)
    if of_group is None:
        return options
    return {
        field: option if option.on_change else dataclasses.replace(option, on_change=of_group)
        for field, option in options.items()
    }


def options_of(*groups: type) -> tuple[Option, ...]:
    """Return the options of all groups, in order."""
    return tuple(option for group in groups for option in declared(group).values())


def build(group: type[Group], values: Mapping[str, Any], **others: Any) -> Group:
    """Build the group with the values of its options.

    Args:
        group: A frozen dataclass whose fields are declared with `option`.
        values: Option name -> parsed value.
        others: Fields that are no option, or whose value depends on other options too.
    """
    own_values = {field: values[option.name] for field, option in declared(group).items() if field not in others}
    return group(**own_values, **others)
