"""The parameters that commands share, and how their texts are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from queue_source.common.globs import name_matcher
from queue_source.common.times import parse_duration
from queue_source.errors import OptionError
from queue_source.options.connections import DEFAULT_STORE
from shard_store.redaction import quote

Criteria = TypeVar("Criteria")


def option(value: str, meaning: str, *names: str, **settings: Any) -> Any:
    """Declare an option: what stands for its value in the help, and what it does."""
    return typer.Option(*names, metavar=value, help=meaning, **settings)


def flag(name: str, meaning: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, help=meaning)


def argument(value: str, meaning: str, **settings: Any) -> Any:
    """Declare an argument, as `option`."""
    return typer.Argument(metavar=value, help=meaning, **settings)


def _default_store() -> str:
    """Return the reader's own default store, if it exists.

    Commands never create a store because a name was forgotten.
    """
    file = DEFAULT_STORE.removeprefix("sqlite:///")
    if Path(file).is_file():
        return DEFAULT_STORE
    raise OptionError(
        "--store", f"there is no {file} in this folder; name the store with --store URL or CUESQUEUE_STORE=URL"
    )


DryRun = Annotated[bool, flag("--dry-run", "Show what would be done, and do nothing.")]
Everything = Annotated[bool, flag("--all", "Choose all; needed where no other option chooses.")]
QueueUrl = Annotated[str, argument("QUEUE_URL", "The queue, as in the option queueUrl.")]
Store = Annotated[
    str,
    option(
        "URL",
        "Database of the store, an SQLAlchemy URL; else sqlite:///cuesqueue.db, if that file is there.",
        "--store",
        envvar="CUESQUEUE_STORE",
        default_factory=_default_store,
        show_default=False,
    ),
]
NewStore = Annotated[str, option("URL", "Database of the store; it may be new.", envvar="CUESQUEUE_STORE")]
Pipeline = Annotated[str | None, option("P", "Only this pipeline.")]
Source = Annotated[str | None, option("S", "Only this source.")]


def named_options(pairs: Iterable[str] | None, declared: str = "--option") -> dict[str, str]:
    """Return what the options of this name give as NAME=VALUE. Raises OptionError."""
    options = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(declared, "needs a name and a value; write it as NAME=VALUE")
        options[name] = value
    return options


def duration_of(option: str, text: str) -> timedelta:
    """Parse a length of time as the reader's options do; raises OptionError, which names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise OptionError(option, str(error)) from None


def duration_if_any(option: str, text: str | None) -> timedelta | None:
    """Parse as `duration_of`, an option that may be absent."""
    return None if text is None else duration_of(option, text)


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the fields of the command's parameter `choice`, a dataclass, as options after its first parameter."""
    parameters_of = inspect.signature(command, eval_str=True).parameters
    kind = parameters_of["choice"].annotation
    options = inspect.signature(kind, eval_str=True).parameters
    first, *others = [p for p in parameters_of.values() if p.name != "choice"]

    def run(**arguments: Any) -> None:
        command(choice=kind(**{name: arguments.pop(name) for name in options}), **arguments)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (first, *options.values(), *others)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def criteria_of(kind: Callable[..., Criteria], choice: Any, *, everything: bool, **own: Any) -> Criteria:
    """Build what the store looks for: what `choice` has of the options that errors and shards share, and its `own`.

    Raises OptionError for wrong values, and without `everything` where nothing is chosen: a command that changes things
    is not run on all of them because an option was forgotten.
    """
    try:
        matching = None if choice.match is None else name_matcher(choice.match)
    except ValueError as error:
        problem = f"{quote(choice.match)} {error}; write a glob, as in 's3://bucket/2026/*'"
        raise OptionError("--match", problem) from None
    chosen = own | {
        "matching": matching,
        "states": tuple(state.value for state in choice.state or ()),
        "source": choice.source,
        "pipeline": choice.pipeline,
        "older_than": duration_if_any("--older-than", choice.older_than),
        "since": duration_if_any("--since", choice.since),
    }
    if not everything and not any(chosen.values()):
        raise OptionError("--all", "nothing is chosen; name ids or options that choose, or write --all for everything")
    return kind(**chosen)
