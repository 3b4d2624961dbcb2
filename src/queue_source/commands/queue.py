"""`cuesqueue queue info/create/delete/peek/purge`: shows, creates, empties and deletes queues of any kind."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import Json, print_result, print_table
from queue_source.errors import OptionError, QueueConfigurationError

if TYPE_CHECKING:
    from queue_source.messages import Received
    from queue_source.queues.base import Administered, Queue

group = typer.Typer(
    name="queue",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show queues and their messages; create, empty and delete queues.",
)

QueueUrl = Annotated[str, typer.Argument(metavar="QUEUE_URL", help="The queue, as in the option queueUrl.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@group.command()
def info(queue_url: QueueUrl, as_json: Json = False) -> None:
    """Show how many messages a queue has, and what its kind can do. Creates nothing.

    SQL: every queue of a table that is there exists, with messages or without; so it does after `queue delete`.
    """
    from queue_source.queues import open_queue
    from queue_source.queues.base import administered

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

    Kafka: deletes the topic, for all groups. RabbitMQ: deletes the pool, or the source where the URL names no pool.
    Pub/Sub: deletes the subscription; its topic stays. SQL: deletes the messages; the table stays, since other queues
    may be in it.
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
        int, typer.Option("--max-messages", "--most", min=1, max=1000, metavar="N", help="Show up to N messages.")
    ] = 10,
    as_json: Json = False,
) -> None:
    """Show the next messages of a queue; they stay in it.

    RabbitMQ marks them as redelivered. SQS and Pub/Sub count this as a delivery, also for their dead-letter policies.
    """
    with _administered(queue_url, "peek") as (queue, manager):
        exists = manager.exists()
        messages = [_as_dict(message) for message in manager.peek(max_messages)] if exists else []
        if as_json:
            print_result({"queue": queue.name, "messages": messages}, as_json, title="messages")
            return
        rows = [
            [message["sent_at"], message["tag"], str(message["receive_count"]), _text(message)] for message in messages
        ]
        print_table(f"{len(rows)} of {queue.name}", ("sent at", "tag", "receives", "body"), rows)


def _as_dict(message: Received) -> dict[str, Any]:
    """Return a message as a dict: a body that is text as `body`, any other as `body_base64`."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    sent = "" if message.sent_at is None else datetime.fromtimestamp(message.sent_at, timezone.utc).isoformat()
    return {
        "message_id": message.message_id,
        "sent_at": sent,
        "tag": message.tag,
        "group": message.group,
        "headers": dict(message.headers),
        "receive_count": message.receive_count,
        **body,
    }


def _text(message: Mapping[str, Any]) -> str:
    body = str(message.get("body", message.get("body_base64")))
    return body if len(body) <= 200 else body[:200] + "..."


@contextmanager
def _administered(url: str, verb: str) -> Iterator[tuple[Queue, Administered]]:
    from queue_source.queues import open_queue
    from queue_source.queues.base import administered

    with open_queue(url) as queue:
        manager = administered(queue)
        if manager is None:
            raise QueueConfigurationError(
                queue.name, f"cuesqueue cannot {verb} queues of this kind; use the service's own console or tools"
            )
        yield queue, manager


def _sure(yes: bool, question: str) -> None:
    if yes:
        return
    if not _on_a_terminal():
        raise OptionError("--yes", "this is not a terminal, so the question cannot be answered; add --yes to skip it")
    typer.confirm(question, abort=True, err=True)


def _on_a_terminal() -> bool:
    return sys.stdin.isatty()
