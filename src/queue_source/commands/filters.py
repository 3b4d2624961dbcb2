"""What commands that look for entries of the store have in common: the options by which they are chosen, and ages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from queue_source.errors import OptionError
from queue_source.options.globs import name_matcher
from queue_source.options.secrets import shown
from queue_source.options.units import parse_duration

if TYPE_CHECKING:
    from shard_store.error_search import Criteria

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Only these: hexadecimal, or the first digits of it.")
]
Match = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB",
        help="Only where the whole id of shard or message matches: *, ?, [a-z], {a,b}.",
        show_default=False,
    ),
]
Source = Annotated[str | None, typer.Option(metavar="S", help="Only this source.")]
Pipeline = Annotated[str | None, typer.Option(metavar="P", help="Only this pipeline.")]
OlderThan = Annotated[str | None, typer.Option(metavar="D", help="Only what is older than this, as in 2h or 7 days.")]
Since = Annotated[str | None, typer.Option(metavar="D", help="Only what is not older than this.")]
Everything = Annotated[bool, typer.Option("--all", help="Really all, where nothing else is chosen.")]


def criteria(
    ids: Sequence[str] | None = None,
    match: str | None = None,
    states: Sequence[str] | None = None,
    source: str | None = None,
    pipeline: str | None = None,
    older_than: str | None = None,
    since: str | None = None,
    words: Mapping[str, Sequence[str] | None] | None = None,
) -> Criteria:
    """The options together; raises OptionError for what none of them can be."""
    from shard_store.error_search import Criteria  # here: it loads SQLAlchemy, and `--help` can do without

    for digits in ids or ():
        if not re.fullmatch(r"[0-9a-fA-F]{4,64}", digits):
            raise OptionError("ID", f"{shown(digits)} is no id; write 4 to 64 hexadecimal digits of one")
    return Criteria(
        ids=tuple(digits.lower() for digits in ids or ()),
        matching=None if match is None else _glob(match),
        states=tuple(states or ()),
        source=source,
        pipeline=pipeline,
        older_than=None if older_than is None else duration_of("--older-than", older_than),
        since=None if since is None else duration_of("--since", since),
        words={name: tuple(values) for name, values in (words or {}).items() if values},
    )


def refuse_everything(chosen: Criteria, everything: bool) -> None:
    """A command that changes what it finds is not run on all by a forgotten option."""
    narrowed = chosen.ids or chosen.matching or chosen.states or chosen.words or chosen.source or chosen.pipeline
    if not (everything or narrowed or chosen.older_than or chosen.since):
        raise OptionError("--all", "nothing is chosen; name ids or options that choose, or write --all for everything")


def _glob(text: str) -> re.Pattern[str]:
    try:
        return name_matcher(text)
    except ValueError as error:
        raise OptionError("--match", f"{shown(text)} {error}; write a glob, as in 's3://bucket/2026/*'") from None


def duration_of(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise OptionError(option, str(error)) from None
