"""`cuesqueue send`, and `queue info/create/delete/peek/purge`: messages are sent, queues are managed."""

from __future__ import annotations

import base64
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any
from urllib.parse import quote_plus

import typer

from queue_source.announcements.contents import iso_time, s3_record
from queue_source.commands.output import Json, print_result, print_table, progress, tell
from queue_source.commands.parameters import QueueUrl, argument, flag, named_options, option
from queue_source.errors import OptionError, QueueConfigurationError, QueueNotFound
from queue_source.queues import open_queue
from queue_source.queues.base import Administered, Queue, administered
from shard_store.redaction import quote

SET = 1000
"""Messages sent in one call: one statement of a SQL queue, a hundred requests to SQS."""

group = typer.Typer(
    name="queue",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show queues and their messages; create, empty and delete queues.",
)

Yes = Annotated[bool, flag("--yes", "Do not ask.")]


class Notification(str, Enum):
    S3 = "s3"


def send(
    queue_url: QueueUrl,
    items: Annotated[list[str], argument("ITEM...", "A message; - reads standard input, a message a line.")],
    tag: Annotated[str, option("TAG", "Tag of the messages: words separated by dots.")] = "",
    header: Annotated[list[str] | None, option("K=V", "Header of the messages; may be repeated.")] = None,
    notification: Annotated[
        Notification | None, option("s3", "Send each item (s3://bucket/key) as S3 announces it.")
    ] = None,
    per_message: Annotated[int, option("N", "With --notification: items in one message.", min=1, max=1000)] = 1,
    as_json: Json = False,
) -> None:
    """Send messages to a queue. The earlier name of this command, `cuesqueue publish`, still works."""
    headers = named_options(header, "--header")
    if notification is None and per_message != 1:
        raise OptionError("--per-message", "only S3 events can share a message; add --notification s3")
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
    now = iso_time(datetime.now(timezone.utc))

    def record(uri: bytes) -> dict[str, object]:
        scheme, _, path = uri.partition(b"://")
        bucket, _, key = path.partition(b"/")
        if not (scheme in (b"s3", b"s3a", b"s3n") and bucket and key):
            text = quote(uri.decode("utf-8", "surrogateescape"))
            raise OptionError("--notification", f"{text} is not an object in S3; write items as s3://bucket/key")
        return s3_record(bucket.decode("utf-8", "surrogateescape"), quote_plus(key, safe="/"), now)

    records = map(record, uris)
    while group := list(itertools.islice(records, per_message)):
        yield json.dumps({"Records": group}).encode()


def s3_event(uri: str) -> bytes:
    """Build the event by which Amazon announces one object."""
    return next(_s3_events([uri.encode("utf-8", "surrogateescape")], 1))


@group.command()
def info(queue_url: QueueUrl, as_json: Json = False) -> None:
    """Show how many messages a queue has, and what its kind can do. Creates nothing.

    SQL: every queue of a table that is there exists, with messages or without.
    """
    with open_queue(queue_url) as queue:
        result: dict[str, Any] = {"queue": queue.name}
        if manager := administered(queue):
            result["exists"] = manager.exists()
        if not result.get("exists", True):
            print_result(result, as_json, title="queue")
            return
        can = queue.capabilities
        if can.reports_depth:
            depth = queue.depth()
            result |= {"ready": depth.ready, "in_flight": depth.in_flight, "delayed": depth.delayed}
        result |= {"ordered_groups": can.ordered_groups, "max_batch_size": can.max_batch_size}
        times = {"max_lease": can.max_lease, "lease_cap": can.lease_cap, "retention": can.retention}
        result |= {f"{name}_seconds": seconds for name, seconds in times.items() if seconds is not None}
        print_result(result, as_json, title="queue")


@group.command()
def create(queue_url: QueueUrl, as_json: Json = False) -> None:
    """Create the queue that the URL names; one that exists already is left as it is."""
    with _administered(queue_url, "create") as (queue, manager):
        existed = manager.exists()
        manager.create()
        print_result({"queue": queue.name, "created": not existed}, as_json, title="queue")


@group.command()
def delete(queue_url: QueueUrl, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a queue with all its messages.

    Kafka: deletes the topic. RabbitMQ: the pool, or the source where the URL names no pool. Pub/Sub: the subscription,
    not its topic. SQL: the messages.
    """
    with _administered(queue_url, "delete") as (queue, manager):
        existed = manager.exists()
        if existed:
            _sure(yes, f"Delete {queue.name} with all its messages?")
            manager.delete()
        print_result({"queue": queue.name, "deleted": existed}, as_json, title="queue")


@group.command()
def purge(queue_url: QueueUrl, yes: Yes = False, as_json: Json = False) -> None:
    """Delete all messages of a queue."""
    with _administered(queue_url, "purge") as (queue, manager):
        _sure(yes, f"Delete all messages of {queue.name}?")
        print_result({"queue": queue.name, "messages": manager.purge()}, as_json, title="deleted")


@group.command()
def peek(
    queue_url: QueueUrl,
    max_messages: Annotated[
        int, option("N", "Show up to N messages.", "--max-messages", "--most", min=1, max=1000)
    ] = 10,
    as_json: Json = False,
) -> None:
    """Show the next messages of a queue; they stay in it.

    SQS and Pub/Sub count this as a delivery, also for their dead-letter policies.
    """
    with _administered(queue_url, "peek") as (queue, manager):
        if not manager.exists():
            raise QueueNotFound(queue.name, "the queue does not exist; create it, or correct its name")
        messages: list[dict[str, Any]] = []
        for message in manager.peek(max_messages):
            try:
                body = {"body": message.body.decode()}
            except UnicodeDecodeError:
                body = {"body_base64": base64.b64encode(message.body).decode()}
            sent = "" if message.sent_at is None else datetime.fromtimestamp(message.sent_at, timezone.utc).isoformat()
            fields = {"message_id": message.message_id, "sent_at": sent, "tag": message.tag, "group": message.group}
            count = message.receive_count
            messages.append({**fields, "headers": dict(message.headers), "receive_count": count, **body})
        if as_json:
            print_result({"queue": queue.name, "messages": messages}, as_json, title="messages")
            return
        rows = []
        for listed in messages:
            text = str(listed.get("body", listed.get("body_base64")))
            text = text if len(text) <= 200 else text[:200] + "..."
            rows.append([listed["sent_at"], listed["tag"], str(listed["receive_count"]), text])
        print_table(f"{len(rows)} of {queue.name}", ("sent at", "tag", "receives", "body"), rows)


@contextmanager
def _administered(url: str, verb: str) -> Iterator[tuple[Queue, Administered]]:
    with open_queue(url) as queue:
        manager = administered(queue)
        if manager is None:
            raise QueueConfigurationError(
                queue.name, f"cuesqueue cannot {verb} queues of this kind; use the service's own console or tools"
            )
        yield queue, manager


def _sure(yes: bool, question: str) -> None:
    if not yes and not sys.stdin.isatty():
        raise OptionError("--yes", "this is not a terminal, so the question cannot be answered; add --yes to skip it")
    if not yes:
        typer.confirm(question, abort=True, err=True)
