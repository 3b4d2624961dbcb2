"""Builds the error records of bad records, of bad objects, and of objects that end their readers' processes."""

from __future__ import annotations

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.messages import kept_message
from queue_source.read.partitions import Piece
from shard_store.model import ErrorRecord, PlanIdentity, position_at

KILLS = "kills-its-reader"


def bad_records(piece: Piece, identity: PlanIdentity, problems: BadRecords) -> list[ErrorRecord]:
    """Build records of the first errors, each at its position; and of the number of others, at the last position."""

    def record(
        cause: str, offset: int, detail: str, input: bytes | None = None, size: int | None = None
    ) -> ErrorRecord:
        content = piece.content
        return ErrorRecord(
            scope="record",
            cause=cause,
            detail=detail,
            subject=content.shard_id,
            plan_hash=identity.delivery_hash,
            position=position_at(offset),
            queue=content.queue,
            message_id=content.message_id,
            input=input,
            input_size=size,
        )

    records = [record("bad-record", bad.offset, bad.reason, bad.record, bad.size) for bad in problems.reported]
    if problems.omitted:
        detail = f"{problems.omitted} more bad records, the last of them at byte {problems.last}"
        records.append(record("bad-records", problems.last, detail))
    return records


def bad_object(piece: Piece, identity: PlanIdentity, error: BadObject, *, skipped: bool) -> ErrorRecord:
    """Build the record of a bad object. Scopes `object` and `part` quarantine the shard when its plan is published.

    `skipped` ones count as done. All pieces of a range report it at one position, so that it is one error, and a
    repeated plan recognises its range.
    """
    content, payload = piece.content, piece.content.payload
    message = {} if payload is None else kept_message(payload.value, payload.tag, payload.headers, content.group)
    return ErrorRecord(
        scope="skipped" if skipped else "object" if piece.is_whole else "part",
        cause=error.cause,
        detail=error.detail,
        subject=content.shard_id,
        plan_hash=identity.delivery_hash,
        position=piece.planned.start,
        queue=content.queue,
        message_id=content.message_id,
        **message,
    )


def fatal_object(piece: Piece, identity: PlanIdentity, killed: int) -> ErrorRecord:
    detail = (
        f"{killed} readers died, or failed with an unknown error, while they read this object alone (out of memory, a "
        "crash of native code, a bug); read it with more memory, or report it; 'maxAttempts' is how many may die"
    )
    return bad_object(piece, identity, BadObject(KILLS, detail), skipped=False)
