"""One declaration for an option: a field of its frozen group says all of it, also beside which others it acts.

    @dataclass(frozen=True, slots=True)
    class QueueOptions:
        receive_threads: int = option("receiveThreads", types.number(1, 256), "2", help="...", example="4")

Parsing, the defaults of the dataclass, the errors, the reference page and "did you mean" are derived from it. The
groups stay plain dataclasses, because executors unpickle them: they need the standard library only. No pydantic here: a
model would be a second list of the same names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

from queue_source.errors import OptionError
from queue_source.options.types import OptionType

_DECLARED = "option"
Group = TypeVar("Group")
Attributes = ParamSpec("Attributes")


class OnChange(str, Enum):
    """When another value takes effect that an option has at the next start: the sentence of the reference page."""

    AT_ONCE = "With the start. No row depends on it."
    NEXT_BATCH = "With the next batch. A recorded batch that is not yet published stays as it is."
    ANNOUNCED = (
        "For what is received or listed from then on. A recorded batch is read all the same; a message that comes "
        "again is looked at anew."
    )
    READ = (
        "For all that is read from then on, also when an unpublished batch is read again (as a whole). What an earlier "
        "attempt found bad stays bad. Of an object that is published in part, the rest is read with the new value."
    )
    DELIVERED = (
        "For what is published from then on, also by the next attempt at an unpublished batch. What is published stays "
        "where it is."
    )
    REFUSED_IN_PART = (
        "Refused while an object is published in part (`maxBytesPerTrigger`), since its rest would begin elsewhere. "
        "Otherwise for all that is read from then on."
    )
    REFUSED_UNFINISHED = (
        "Refused while anything that the pipeline has begun is not published: first run the query as it was until "
        "nothing is left (trigger `availableNow`)."
    )


class Rule(NamedTuple):
    """Beside which other options one does not act: it is refused then, if it is given and does something.

    Attributes:
        conditions: Each is `NAME` (that option acts), `NAME=VALUE|VALUE` or `NAME!=VALUE|VALUE`, or several of these
            joined by `&`.
        refuses: Whether the option is refused where one of them holds; else where none does.
        problem: The error's text. `{NAME}` is the value of that option, `{other}` the condition that holds.
        even_default: Whether it is refused also where it is given and does nothing.
    """

    conditions: tuple[str, ...]
    refuses: bool
    problem: str
    even_default: bool = False


def excludes(*conditions: str, problem: str) -> tuple[Rule, ...]:
    """Declare that an option is refused where one of the conditions holds."""
    return (Rule(conditions, True, problem),)


def only_with(*conditions: str, problem: str, even_default: bool = False) -> tuple[Rule, ...]:
    """Declare that an option is refused where none of the conditions holds."""
    return (Rule(conditions, False, problem, even_default),)


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        default: Text as a user would write it; None: there is none, or `note` describes it.
        note: The text of the page's column "default" when `default` is None.
        required: Why the option cannot be omitted, for the error message; "" when it can be.
        unless: Conditions, as of `Rule`, of which one makes it an option that can be omitted.
        when: Conditions of which one makes it required, which it is not otherwise; `required` is the whole text then.
        rules: Beside which other options it does not act.
        formats: The file formats that it acts on; with another one it is refused, since it would do nothing.
        instead: What to do with other formats, for the error message.
        beside: Other options with which it acts whatever the format.
        on_change: What happens when it is another one at the next start; a sentence of its own where no other fits.
            None: the one of its group (`ON_CHANGE`), or nothing continues from one start to the next.
        value: The default as a value.
    """

    name: str
    type: OptionType
    default: str | None = None
    _: dataclasses.KW_ONLY
    help: str
    example: str = ""
    note: str = "none"
    required: str = ""
    unless: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    formats: tuple[str, ...] = ()
    instead: str = ""
    beside: tuple[str, ...] = ()
    on_change: OnChange | str | None = None
    value: Any = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", None if self.default is None else self.type.parse(self.default))


def _field(declare: Callable[Attributes, Option]) -> Callable[Attributes, Any]:
    def field(*positional: Attributes.args, **named: Attributes.kwargs) -> Any:
        declared = declare(*positional, **named)
        in_repr = declared.type.name != "secret"
        if declared.required and not declared.when:
            return dataclasses.field(metadata={_DECLARED: declared}, repr=in_repr)
        return dataclasses.field(default=declared.value, metadata={_DECLARED: declared}, repr=in_repr)

    return field


option = _field(Option)
"""A field of an option group; the arguments are the attributes of `Option`.

The field's own default is the parsed `default`, or None; a required option has none.
"""


@cache
def declared(group: type) -> Mapping[str, Option]:
    """Return the options of a group: field name -> option, in the order of the fields."""
    of_group: OnChange | None = getattr(group, "ON_CHANGE", None)
    options = {
        field.name: field.metadata[_DECLARED] for field in dataclasses.fields(group) if _DECLARED in field.metadata
    }
    return {
        field: option if option.on_change else dataclasses.replace(option, on_change=of_group)
        for field, option in options.items()
    }


def options_of(*groups: type) -> tuple[Option, ...]:
    """Return the options of all groups, in order."""
    return tuple(option for group in groups for option in declared(group).values())


class Values(dict[str, Any]):
    """Option name -> value, of the options that were given; a look-up of another one returns its default.

    So an option that was not set is neither parsed nor checked. One that the place does not have is None.
    """

    def __init__(self, options: Mapping[str, Option], set_values: Mapping[str, Any]) -> None:
        super().__init__(set_values)
        self.options = options

    def __missing__(self, name: str) -> Any:
        return self.options[name].value if name in self.options else None

    def holds(self, condition: str) -> bool:
        """Tell whether a condition holds, as described at `Rule`."""
        for part in condition.split("&"):
            name, sign, choices = part.partition("=")
            is_so = as_text(self[name.removesuffix("!")]) in choices.split("|") if sign else self._acts(name)
            if is_so is name.endswith("!"):
                return False
        return True

    def _acts(self, name: str) -> bool:
        value = self.get(name)
        return bool(value) and (name not in self.options or value != self.options[name].value)

    def check(self, call: str) -> None:
        """Raise OptionError for an option that does not act beside the others, and for one that is missing.

        Args:
            call: What a user calls before `format("cuesqueue")`.
        """
        for option in self.options.values():
            if option.name in self:
                self._check_given(option)
            elif option.required and not any(map(self.holds, option.unless)):
                if any(map(self.holds, option.when)):
                    raise OptionError(option.name, option.required)
                if not option.when:
                    example = f".option({option.name!r}, {option.example!r}) after {call}"
                    raise OptionError(option.name, f"is required: {option.required}; write {example}")

    def _check_given(self, option: Option) -> None:
        for rule in option.rules:
            other = next((condition for condition in rule.conditions if self.holds(condition)), None)
            if (other is not None) is rule.refuses and (rule.even_default or self._acts(option.name)):
                problem = rule.problem.replace("{other}", other or "")
                raise OptionError(option.name, re.sub(r"\{(\w+)\}", lambda name: as_text(self[name[1]]), problem))
        name = "fileFormat" if "fileFormat" in self.options else "load"  # of a reader, of a sink
        if option.formats and self[name] not in option.formats and not any(map(self.holds, option.beside)):
            formats, instead = " and ".join(option.formats), option.instead and f"; {option.instead}"
            problem = f"acts only on {name} {formats}, but {name} is {self[name] or 'not set'}; leave it out{instead}"
            raise OptionError(option.name, problem)


def as_text(value: object) -> str:
    """Return a value as text, "" for None; of a secret three stars."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def build(group: type[Group], values: Mapping[str, Any], **others: Any) -> Group:
    """Build the group with the values of its options.

    Args:
        group: A frozen dataclass whose fields are declared with `option`; it has the defaults.
        values: Option name -> value, of those that were given.
        others: Fields that are no option, or whose value depends on other options too.
    """
    options = declared(group)  # type: ignore[arg-type]  # a class is hashable
    own = {field: values[option.name] for field, option in options.items() if option.name in values}
    return group(**{**own, **others})
