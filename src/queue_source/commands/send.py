"""`cuesqueue send`: items of the command line or of standard input become messages, in batches of 1,000."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated
from urllib.parse import quote_plus

import typer

from queue_source.commands.output import Json, named_options, print_result, progress, tell
from queue_source.errors import OptionError
from shard_store.redaction import quote

SET = 1000
"""Messages sent in one call: one statement of a SQL queue, a hundred requests to SQS."""


class Notification(str, Enum):
    S3 = "s3"


def send(
    queue_url: Annotated[str, typer.Argument(metavar="QUEUE_URL", help="The queue, as in the option queueUrl.")],
    items: Annotated[
        list[str],
        typer.Argument(metavar="ITEM...", help="One message each; - reads standard input, one message a line."),
    ],
    tag: Annotated[str, typer.Option(metavar="TAG", help="Tag of the messages: words separated by dots.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Header of the messages; may be repeated.")
    ] = None,
    notification: Annotated[
        Notification | None,
        typer.Option(metavar="s3", help="Send each item (s3://bucket/key) as the event by which S3 announces it."),
    ] = None,
    per_message: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="With --notification: how many items share one message.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Send messages to a queue. The earlier name of this command, `cuesqueue publish`, still works."""
    headers = named_options(header or [], "--header")
    if notification is None and per_message != 1:
        raise OptionError("--per-message", "only S3 events can share a message; add --notification s3")
    from queue_source.queues import open_queue

    sent = 0
    bodies: Iterable[bytes] = _lines(items)
    if notification is Notification.S3:
        bodies = _s3_events(bodies, per_message)
    total = None if "-" in items else len(items)
    many = total is None or total > SET
    with open_queue(queue_url) as queue, progress("messages sent", total, many and not as_json) as advance:
        try:
            while batch := list(itertools.islice(bodies, SET)):
                queue.send(batch, tag=tag, headers=headers)
                sent += len(batch)
                advance(sent)
        except BaseException:
            if sent:
                tell(f"{sent} messages were sent before this")
            raise
        print_result({"queue": queue.name, "messages": sent}, as_json, title="sent")


def _lines(items: Iterable[str]) -> Iterator[bytes]:
    """Yield the items as bytes, untouched; lines of standard input without their end, empty ones skipped."""
    for item in items:
        if item != "-":
            yield item.encode("utf-8", "surrogateescape")
            continue
        for line in sys.stdin.buffer:
            if body := line.rstrip(b"\r\n"):
                yield body


def _s3_events(uris: Iterable[bytes], per_message: int) -> Iterator[bytes]:
    """Yield S3 events as Amazon sends them: keys form-encoded, any number of records in a message."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    records = (_s3_record(uri, now) for uri in uris)
    while group := list(itertools.islice(records, per_message)):
        yield json.dumps({"Records": group}).encode()


def s3_event(uri: str) -> bytes:
    """Build the event by which Amazon announces one object."""
    return next(_s3_events([uri.encode("utf-8", "surrogateescape")], 1))


def _s3_record(uri: bytes, now: str) -> dict[str, object]:
    text = uri.decode("utf-8", "surrogateescape")
    scheme, separator, path = text.partition("://")
    bucket, slash, key = path.partition("/")
    if not (separator and scheme in ("s3", "s3a", "s3n") and bucket and slash and key):
        raise OptionError("--notification", f"{quote(text)} is not an object in S3; write items as s3://bucket/key")
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": now,
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": quote_plus(uri.partition(b"://")[2].partition(b"/")[2], safe="/")},
        },
    }
