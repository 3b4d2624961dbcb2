"""The options by which `cuesqueue errors` and `shards` choose, declared once, and ages in commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queue_source.common.globs import name_matcher
from queue_source.common.times import parse_duration
from queue_source.errors import OptionError
from shard_store.redaction import quote

if TYPE_CHECKING:
    from shard_store.error_table.search import Criteria
    from shard_store.operators.shards import ShardCriteria


T = TypeVar("T", bound="Criteria | ShardCriteria")


class Scope(str, Enum):
    MESSAGE = "message"
    OBJECT = "object"
    PART = "part"
    SKIPPED = "skipped"
    RECORD = "record"
    ROW = "row"


class State(str, Enum):
    PENDING = "pending"
    RECORDED = "recorded"
    DELIVERED = "delivered"
    REQUEUED = "requeued"
    REOPENED = "reopened"


class ShardState(str, Enum):
    OPEN = "open"
    DONE = "done"
    QUARANTINED = "quarantined"


Everything = Annotated[bool, typer.Option("--all", help="Choose all; needed where no other option chooses.")]


@dataclass(frozen=True, slots=True)
class Choice:
    """The options by which a command with `@choosing` chooses errors."""

    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Only these errors: the first digits of their ids.")
    ] = None
    match: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Only where the whole id of the shard or message matches: *, ?, [a-z], {a,b}."
        ),
    ] = None
    scope: Annotated[
        list[Scope] | None,
        typer.Option(metavar="SCOPE", help="Only message, object, skipped, record or row; may be repeated."),
    ] = None
    cause: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only this cause, as in missing-object; may be repeated."),
    ] = None
    state: Annotated[
        list[State] | None,
        typer.Option(metavar="STATE", help="Only pending, recorded, delivered, requeued or reopened; may be repeated."),
    ] = None
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source.")] = None
    pipeline: Annotated[str | None, typer.Option(metavar="P", help="Only this pipeline.")] = None
    older_than: Annotated[
        str | None, typer.Option(metavar="D", help="Only errors older than this, as in 2h or 7 days.")
    ] = None
    since: Annotated[str | None, typer.Option(metavar="D", help="Only errors that are not older than this.")] = None

    def criteria(self, *, everything: bool = True) -> Criteria:
        """Return the options for the store. Raises OptionError for wrong values.

        Without `everything` it is also raised where nothing is chosen: a command that changes errors is not run on all
        of them because an option was forgotten.
        """
        from shard_store.error_table.search import Criteria  # here: it loads SQLAlchemy, which `--help` does not need

        words = {"scope": tuple(scope.value for scope in self.scope or ()), "cause": tuple(self.cause or ())}
        chosen = Criteria(
            ids=tuple(map(_digits, self.ids or ())),
            matching=None if self.match is None else _glob(self.match),
            states=tuple(state.value for state in self.state or ()),
            source=self.source,
            pipeline=self.pipeline,
            older_than=None if self.older_than is None else duration_of("--older-than", self.older_than),
            since=None if self.since is None else duration_of("--since", self.since),
            words={name: values for name, values in words.items() if values},
        )
        return chosen if everything else _chosen(chosen)


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """The options by which a command with `@choosing` chooses shards."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...", help="Only these shards: URIs, or the first digits of the keys that list shows."
        ),
    ] = None
    match: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Only where the whole id of the shard matches: *, ?, [a-z], {a,b}."),
    ] = None
    state: Annotated[
        list[ShardState] | None,
        typer.Option(metavar="STATE", help="Only open, done or quarantined; may be repeated."),
    ] = None
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source.")] = None
    pipeline: Annotated[
        str | None, typer.Option(metavar="P", help="Only shards that this pipeline owns, or has finished.")
    ] = None
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="Only what was finished (or opened, if unfinished) longer ago, as in 2h or 7 days."
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(metavar="D", help="Only what was finished (or opened, if unfinished) not longer ago.")
    ] = None

    def criteria(self, *, everything: bool = True) -> ShardCriteria:
        """Return the options for the store, as `Choice.criteria`."""
        # here: it loads SQLAlchemy, which `--help` does not need
        from shard_store.operators.shards import ShardCriteria

        chosen = ShardCriteria(
            ids=tuple(self.ids or ()),
            matching=None if self.match is None else _glob(self.match),
            states=tuple(state.value for state in self.state or ()),
            source=self.source,
            pipeline=self.pipeline,
            older_than=None if self.older_than is None else duration_of("--older-than", self.older_than),
            since=None if self.since is None else duration_of("--since", self.since),
        )
        return chosen if everything else _chosen(chosen)


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the command's parameter `choice` after its first one; it gets their values as `choice`."""
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


def duration_of(option: str, text: str) -> timedelta:
    """Parse a length of time as the reader's options do; raises OptionError, which names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise OptionError(option, str(error)) from None


def _chosen(criteria: T) -> T:
    """Refuse empty criteria: a command that changes things is not run on all because an option was forgotten."""
    if not any(getattr(criteria, field.name) for field in fields(criteria)):
        raise OptionError("--all", "nothing is chosen; name ids or options that choose, or write --all for everything")
    return criteria


def _digits(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{4,64}", text):
        raise OptionError("ID", f"{quote(text)} is not an id; write 4 to 64 hexadecimal digits of one")
    return text.lower()


def _glob(text: str) -> re.Pattern[str]:
    try:
        return name_matcher(text)
    except ValueError as error:
        raise OptionError("--match", f"{quote(text)} {error}; write a glob, as in 's3://bucket/2026/*'") from None
