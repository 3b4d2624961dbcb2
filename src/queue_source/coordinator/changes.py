"""Refuses options that differ from those with which unfinished work was begun, before anything is done.

Each option declares whether this concerns it (`Option.on_change`); the store keeps the values of the last start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from queue_source.errors import OptionError
from queue_source.options import ReaderOptions
from queue_source.options.places import WHILE_PARTLY_READ, WHILE_UNFINISHED
from shard_store.batches.starting import Started
from shard_store.model import BEGINNING, Content, is_end

_SHOWN = 300  # characters of an id: senders of messages choose them


class _Unfinished(NamedTuple):
    """What an earlier reader left unfinished; `in_part`: of which a part is published."""

    content: Content
    in_part: bool


def refuse_changes(options: ReaderOptions, started: Started) -> None:
    """Raise OptionError, with the next step, where unfinished work could not be finished as it was begun."""
    unfinished = list(_unfinished_work(options, started))
    if not unfinished:
        return
    changed = {name: was for name, was in started.settings.items() if options.settings.get(name, was) != was}
    for name in WHILE_UNFINISHED:
        if name in changed:
            raise _refusal(name, changed[name], options.settings[name], unfinished)
    in_part = [item for item in unfinished if item.in_part]
    for name in WHILE_PARTLY_READ:
        if name in changed and in_part:
            raise _refusal(name, changed[name], options.settings[name], in_part, ", of which a part is published")
    if "allowedPrefixes" in changed and options.content.kind.is_announced:
        _check_prefixes(options, [item.content for item in unfinished])


def _unfinished_work(options: ReaderOptions, started: Started) -> Iterator[_Unfinished]:
    """Yield what is unfinished and ours, in a batch or not, unless an operator gave it up.

    Where the store keeps no shards, or calls them done already, only the batches have it.
    """
    ranges = [entry for snapshot in started.unconfirmed for entry in snapshot.ranges]
    cut = {entry.key for entry in ranges if entry.start != BEGINNING or not is_end(entry.end)}
    ours = {shard.key for shard in started.unfinished}
    for shard in started.unfinished:
        if shard.key not in started.given_up:
            yield _Unfinished(shard.content, shard.position != BEGINNING or shard.key in cut)
    if options.delivery.delivery_semantics != "exactly-once":
        for entry in ranges:
            if entry.key not in ours:
                yield _Unfinished(entry.content, entry.key in cut)


def _check_prefixes(options: ReaderOptions, contents: Iterable[Content]) -> None:
    allowed = options.notifications.allowed_prefixes
    outside = [content.uri for content in contents if not content.uri.startswith(allowed)]
    if outside:
        raise OptionError(
            "allowedPrefixes",
            f"allows {len(outside):,} unfinished object(s) no longer, such as {outside[0][:_SHOWN]!r}; run the query "
            "with the prefixes that it had until nothing is left (trigger availableNow), or give these objects up with "
            "cuesqueue shards quarantine",
        )


def _refusal(name: str, was: str, now: str, unfinished: list[_Unfinished], why: str = "") -> OptionError:
    return OptionError(
        name,
        f"was {was or 'not given'!r} and is {now or 'not given'!r}, and {len(unfinished):,} object(s) or message(s) "
        f"are not finished{why}, such as {unfinished[0].content.shard_id[:_SHOWN]!r}; run the query with "
        f"{was or 'none'!r} until nothing is left (trigger availableNow), and then with {now or 'none'!r}; or give "
        "the new query another 'pipeline'",
    )
