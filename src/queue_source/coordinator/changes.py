"""Refuses options that differ from those with which unfinished work was begun, before anything is done.

Each option declares whether this concerns it (`Option.on_change`); the store keeps the values of the last start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from queue_source.errors import OptionError
from queue_source.messages import MESSAGE_URI
from queue_source.options import ReaderOptions
from queue_source.options.content import ContentKind
from queue_source.options.places import WHILE_PARTLY_READ, WHILE_UNFINISHED
from queue_source.uris import azure_uri
from shard_store.batches.starting import Started
from shard_store.model import BEGINNING, Content, Position, is_end

_SHOWN = 300  # characters of an id: senders of messages choose them


class _Unfinished(NamedTuple):
    """What an earlier reader left unfinished: `planned` in a batch, `in_part` published in part."""

    content: Content
    planned: bool
    in_part: bool


def refuse_changes(options: ReaderOptions, started: Started) -> None:
    """Raise OptionError, with the next step, where unfinished work could not be finished as it was begun."""
    unfinished = list(_unfinished_work(options, started))
    if not unfinished:
        return
    if started.settings is None:
        _compare_with_contents(options, unfinished, had_versions=started.names.had_versions)
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
    planned = {entry.key for entry in ranges}
    cut = {entry.key for entry in ranges if _in_part(entry.start) or not is_end(entry.end)}
    ours = {shard.key for shard in started.unfinished}
    for shard in started.unfinished:
        if shard.key not in started.given_up:
            yield _Unfinished(shard.content, shard.key in planned, _in_part(shard.position) or shard.key in cut)
    if options.delivery.delivery_semantics != "exactly-once":
        for entry in ranges:
            if entry.key not in ours:
                yield _Unfinished(entry.content, True, entry.key in cut)


def _in_part(position: Position) -> bool:
    return position != BEGINNING


def _compare_with_contents(options: ReaderOptions, unfinished: Iterable[_Unfinished], *, had_versions: bool) -> None:
    """Compare with the unfinished contents after a version before 0.3, which recorded no options.

    `had_versions`: a later version ran before that one, with `allowOverwrites`. Then an ETag that is not part of the id
    was asked for by the driver, and not announced.
    """
    kind = options.content.kind
    versions = options.notifications.allow_overwrites
    for item in unfinished:
        content = item.content
        if (content.uri == MESSAGE_URI) is kind.is_announced:
            was = ContentKind.MESSAGE if kind.is_announced else ContentKind.OBJECT
            raise _refusal("content", was.value, kind.value, [item])
        if not kind.is_announced:
            continue
        if (item.planned or item.in_part) and (content.reference is not None) is kind.is_read:
            was = ContentKind.REFERENCE if kind.is_read else ContentKind.OBJECT
            raise _refusal("content", was.value, kind.value, [item])
        named = content.shard_id != content.uri
        if options.delivery.delivery_semantics == "exactly-once" and (
            (named and not versions) or (versions and not named and content.etag is not None and not had_versions)
        ):
            raise _refusal("allowOverwrites", *(("true", "false") if named else ("false", "true")), [item])


def _check_prefixes(options: ReaderOptions, contents: Iterable[Content]) -> None:
    allowed = options.notifications.allowed_prefixes
    outside = [uri for uri in (content.uri for content in contents) if not (azure_uri(uri) or uri).startswith(allowed)]
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
