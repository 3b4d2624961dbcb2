"""What came of two verbs: the tables and the readers as they are, without times, and the harm that is done by it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import sqlalchemy as sa

from shard_store.completeness.comparing import ListedShard
from shard_store.model import BEGINNING, WITHOUT_MESSAGE, Position, ShardState, is_end
from shard_store.sql import schema
from shard_store.upkeep.cleaning import DONE
from support.races.prepared import TABLES, World, rows_of
from support.races.reader import SOURCE

_TIME = ("_at", "_before", "_until", "_since")
"""Ends of the names of columns of which only counts whether they are empty."""

_LEFT_OUT = {
    "cuesqueue_shards": {"shard_key", "end_seq", "receive_count"},
    "cuesqueue_pipelines": {"activity", "report", "changes", "settings", "plan_hash", "stores"},
    "cuesqueue_snapshots": {"contents", "moves", "sent"},
    "cuesqueue_attempts": {"delivery_hash", "lead_hash", "bytes"},
    "cuesqueue_splits": {"id", "delivery_hash", "name_key", "first_id"},
    "cuesqueue_errors": {"error_key", "shard_key", "delivery_hash", "message"},
    "cuesqueue_shard_changes": {"id", "shard_key", "before", "after"},
    "cuesqueue_leases": {"holder", "until"},
    "cuesqueue_sources": {"forgotten_before"},
    "cuesqueue_read_marks": {"delivery_hash"},
}
"""Columns of random ids and of what counts up; and `forgotten_before`, which is a time and 0."""

Facts = frozenset[tuple[str, str]]


def facts_of(world: World) -> Facts:
    """The outcome: each row that matters, and what the readers and the queue know."""
    facts = Counter[tuple[str, str]]()
    with world.operator.database.engine.connect() as connection:
        for table in TABLES:
            if table is not schema.history:
                for row in rows_of(connection, table):
                    facts[table.name, _text(table.name, row)] += 1
    for name, reader in world.readers.items():
        facts[f"reader {name}", f"{sorted(s.content.shard_id for s in reader.ready.values())} ready"] += 1
        facts[f"reader {name}", f"{sorted(e.content.shard_id for e in reader.in_plan.values())} planned"] += 1
    facts["queue", f"acknowledged {sorted(world.queue.acknowledged)}"] += 1
    facts["table", f"{sorted(world.queue.table.values())}"] += 1
    return frozenset((kind, f"{text} x{number}") for (kind, text), number in facts.items())


def early(world: World) -> set[str]:
    """Messages that are acknowledged though what they announced is open, and nothing but them leads to it."""
    with world.operator.database.engine.connect() as connection:
        c = schema.shards.c
        is_open = c.finished_at.is_(None), c.queue.not_in(WITHOUT_MESSAGE)
        names = set(connection.execute(sa.select(c.shard_id).where(*is_open)).scalars())
    done = {message: world.queue.messages[message].shard_id for message in world.queue.acknowledged}
    return {f"{message} is acknowledged, and {name} is open" for message, name in done.items() if name in names}


def _text(table: str, row: dict[str, Any]) -> str:
    said = {}
    for name, value in row.items():
        if name in _LEFT_OUT.get(table, ()) or value is None:
            continue
        if name == "naming":
            value = "reset" in json.loads(value)
        is_any = name.endswith(_TIME) or name == "replaced_by" or isinstance(value, bytes)
        said[name] = "set" if is_any else value
    return repr(said)


def harm_of(world: World, raised: list[str]) -> set[str]:
    """What a user would have lost, doubled, or waits for, once all has gone on. In words, without what changes."""
    with world.operator.database.engine.connect() as connection:
        shards = {row.shard_id: row for row in connection.execute(sa.select(schema.shards))}
        c = schema.splits.c
        files = connection.execute(sa.select(c.path, c.pipeline).where(c.replaced_by.is_(None))).all()
        c = schema.cleanings.c
        cleaned = connection.execute(sa.select(c.uri, c.etag).where(c.outcome == DONE)).all()
        c = schema.errors.c
        in_part = set(connection.execute(sa.select(c.subject).where(c.scope == "part")).scalars())
        counted = connection.execute(sa.select(schema.pipelines.c.pipeline, schema.pipelines.c.data_files)).all()
    parts: dict[str, list[tuple[str, str, str]]] = {}
    for path in [*(file.path for file in files), *world.queue.table.values()]:
        for part in filter(None, path.split("/")[1].split("+")):
            name, start, end, etag = part.split(":")
            parts.setdefault(name, []).append((start, end, etag))
    harm = {_kind(text) for text in raised}
    harm |= {f"{name} was read after it was deleted" for name in world.queue.read_when_gone}
    harm |= {f"{c.uri} is said to be cleaned" for c in cleaned if (c.uri, c.etag) not in world.queue.gone}
    numbers = Counter(file.pipeline for file in files)
    harm |= {f"the data files of {name} are miscounted" for name, n in counted if n is not None and n != numbers[name]}
    messages = world.queue.messages
    harm |= {f"message {m} is not acknowledged" for m in messages.keys() - world.queue.acknowledged}
    names = {content.shard_id for content in messages.values()} | shards.keys()
    for name in sorted(names):
        reached, row = BEGINNING, shards.get(name)
        for start, end, _ in sorted(parts.get(name, [])):
            if start < reached:
                harm.add(f"{name} is published twice")
            reached = max(reached, Position(end))
        if row is not None and row.finished_at is None:
            harm.add(f"{name} is open for ever")
        is_named = row is not None and (row.state == ShardState.QUARANTINED.value or row.pending is not None)
        is_named |= row is not None and (row.queue == "adopted" or row.size == 0)
        if not is_end(reached) and not is_named and (row is None or row.finished_at is not None):
            harm.add(f"{name} is not published, and nothing says so")
        is_bad = row is not None and row.state == ShardState.QUARANTINED.value and name not in in_part
        if is_bad and is_end(reached):
            harm.add(f"{name} is published, and said to be bad")
    return harm | _untrue(world, parts)


def _untrue(world: World, parts: dict[str, list[tuple[str, str, str]]]) -> set[str]:
    """Objects that are called published, though their newest version is not."""
    newest: dict[str, str] = {}
    for content in world.queue.messages.values():
        if content.etag is not None:
            newest[content.shard_id] = max(newest.get(content.shard_id, ""), content.etag)
    names = sorted(newest)
    found = world.operator.compare(SOURCE, [ListedShard(name, None, newest[name], 0) for name in names])
    published = {name for name, finding in zip(names, found, strict=True) if finding.category.value == "published"}
    read = {name: {etag for _, _, etag in parts.get(name, [])} for name in published}
    return {f"{name} is called published" for name in published if read[name] and not read[name] & {newest[name], ""}}


def _kind(text: str) -> str:
    """An error, without what differs each time."""
    return f"{text.split(': ')[0]}: {text.split(': ')[1]}"


def difference(one: Facts, other: Facts) -> str:
    """What is in one of two outcomes alone."""
    lines = [f"      race    {kind}: {text}" for kind, text in sorted(one - other)]
    return "\n".join([*lines, *(f"      serial  {kind}: {text}" for kind, text in sorted(other - one))])
