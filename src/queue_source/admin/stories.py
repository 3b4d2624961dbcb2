"""A shard and its story as JSON values: for `cuesqueue shards`, and for the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from queue_source.coordinator.ending.error_queue import error_as_dict, iso_time
from shard_store.operators.shards import FoundShard, ShardStory


def shard_as_dict(shard: FoundShard) -> dict[str, Any]:
    """Return the shard as JSON values."""
    fields = asdict(shard)
    times = {name: iso_time(fields.pop(name)) for name in ("opened_at", "finished_at")}
    return {"key": fields.pop("key").hex(), **fields, **times}


def story_as_dict(story: ShardStory) -> dict[str, Any]:
    """Return all that the store knows of one shard, as JSON values."""
    planned = story.planned
    plan = None
    if planned is not None:
        seqs = [planned.identity.start_seq, planned.identity.end_seq]
        plan = {"delivery_hash": planned.identity.delivery_hash, "seqs": seqs, "attempt": planned.attempt}
    attempts = [asdict(attempt) for attempt in story.attempts]
    for attempt in attempts:
        attempt |= {name: iso_time(attempt[name]) for name in ("planned_at", "published_at")}
    return {
        "outcome": story.outcome,
        "shard": None if story.shard is None else shard_as_dict(story.shard),
        "planned": plan,
        "attempts": attempts,
        "errors": [
            {**error_as_dict(e), "state": e.state, "reopened_at": iso_time(e.reopened_at)} for e in story.errors
        ],
        "changes": [
            {
                "changed_at": iso_time(stored.changed_at),
                "action": stored.change.action,
                "actor": stored.change.actor,
                "reason": stored.change.reason,
                "message_id": stored.change.message_id,
                "before": stored.before,
                "after": stored.after,
            }
            for stored in story.changes
        ],
    }
