"""An error as JSON: what the error queue receives, and what `cuesqueue errors --json` prints."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from typing import Any

from queue_source.messages import Outgoing
from shard_store.error_search import StoredError
from shard_store.model import is_end, offset_of


def told(error: StoredError) -> dict[str, Any]:
    """All that is known of the error. `error_id` is the same however often it is sent: duplicates are known by it.

    `input` is text, or `input_base64` where it is none, and has the first bytes of `input_bytes`.
    """
    is_message = error.scope == "message"
    found: dict[str, Any] = {
        "error_id": error.key.hex(),
        "scope": error.scope,
        "cause": error.cause,
        "detail": error.detail,
        "source": error.source,
        "pipeline": error.pipeline,
        "plan": None if error.seqs is None else {"start_seq": error.seqs[0], "end_seq": error.seqs[1]},
        "delivery_hash": error.delivery_hash or None,
        "shard_id": None if is_message else error.subject or None,
        "position": None if is_message or is_end(error.position) else offset_of(error.position),
        "queue": error.queue,
        "message_id": error.message_id,
        "occurred_at": time(error.occurred_at),
    }
    if is_message or error.tag or error.headers or error.group:
        found |= {"tag": error.tag, "headers": dict(error.headers), "group": error.group}
    if error.input is not None:
        found |= {**_input(error.input), "input_bytes": error.input_size}
    return found


def outgoing(error: StoredError) -> Outgoing:
    """The message for the error queue; its tag is `error.message`, `error.object` ..., for consumers to choose by.

    The body is ASCII, since ids may hold what no UTF-8 can.
    """
    error_id = error.key.hex()
    headers = {"Content-Type": "application/json", "Error-Id": error_id, "Error-Scope": error.scope}
    headers |= {"Source": error.source, "Pipeline": error.pipeline}
    if error.delivery_hash:
        headers["Delivery-Hash"] = error.delivery_hash
    body = json.dumps(told(error), separators=(",", ":")).encode("ascii")
    return Outgoing(body, f"error.{error.scope}", headers, deduplication_id=error_id)


def time(micros: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    if micros is None:
        return None
    return datetime.fromtimestamp(micros / 1_000_000, timezone.utc).isoformat(timespec="milliseconds")


def _input(data: bytes) -> dict[str, str]:
    try:
        return {"input": data.decode()}
    except UnicodeDecodeError:
        return {"input_base64": base64.b64encode(data).decode("ascii")}
