"""`cuesqueue publish`: items of the command line or of standard input become messages, in sets of 1,000."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated
from urllib.parse import quote_plus

import typer

from queue_source.commands.output import Json, print_result, stderr
from queue_source.errors import OptionError
from queue_source.options.secrets import shown

SET = 1000
"""Messages given to the queue at once: one statement of a SQL queue, a hundred calls of SQS."""


class Notification(str, Enum):
    S3 = "s3"


def publish(
    queue_url: Annotated[str, typer.Argument(metavar="QUEUE_URL", help="The queue, as in the option queueUrl.")],
    items: Annotated[
        list[str],
        typer.Argument(metavar="ITEM...", help="One message each; - reads one a line from standard input."),
    ],
    tag: Annotated[str, typer.Option(metavar="TAG", help="Tag of the messages, words parted by dots.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Header of the messages; may be repeated.")
    ] = None,
    notification: Annotated[
        Notification | None,
        typer.Option(metavar="s3", help="Wrap items (s3://bucket/key) as S3 events."),
    ] = None,
    per_message: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="With --notification: URIs in one message.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Publish messages to a queue."""
    headers = _headers(header or [])
    if notification is None and per_message != 1:
        raise OptionError("--per-message", "only wrapped items can share a message; add --notification s3")
    from queue_source.queues import open_queue

    published = 0
    bodies: Iterable[bytes] = _lines(items)
    if notification is Notification.S3:
        bodies = _s3_events(bodies, per_message)
    with open_queue(queue_url) as queue, _progress(items, as_json) as advance:
        try:
            while batch := list(itertools.islice(bodies, SET)):
                queue.send(batch, tag=tag, headers=headers)
                published += len(batch)
                advance(len(batch))
        except BaseException:
            if published:
                stderr().print(f"{published} messages were published before this", markup=False)
            raise
        print_result({"queue": queue.name, "messages": published}, as_json, title="published")


def _headers(given: Iterable[str]) -> dict[str, str]:
    headers = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError("--header", "a header needs a name and a value; write it as NAME=VALUE")
        headers[name] = value
    return headers


def _lines(items: Iterable[str]) -> Iterator[bytes]:
    """The items as bytes, untouched; lines of standard input without their end, empty ones left out."""
    for item in items:
        if item != "-":
            yield item.encode("utf-8", "surrogateescape")
            continue
        for line in sys.stdin.buffer:
            if body := line.rstrip(b"\r\n"):
                yield body


def _s3_events(uris: Iterable[bytes], per_message: int) -> Iterator[bytes]:
    """S3 events as Amazon sends them: keys form-encoded, any number of records in a message."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    records = (_s3_record(uri, now) for uri in uris)
    while group := list(itertools.islice(records, per_message)):
        yield json.dumps({"Records": group}).encode()


def s3_event(uri: str) -> bytes:
    """One object as Amazon announces it."""
    return next(_s3_events([uri.encode("utf-8", "surrogateescape")], 1))


def _s3_record(uri: bytes, now: str) -> dict[str, object]:
    text = uri.decode("utf-8", "surrogateescape")
    scheme, separator, rest = text.partition("://")
    bucket, slash, key = rest.partition("/")
    if not (separator and scheme in ("s3", "s3a", "s3n") and bucket and slash and key):
        raise OptionError("--notification", f"{shown(text)} is no object in S3; write items as s3://bucket/key")
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


@contextmanager
def _progress(items: list[str], as_json: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, when there is more than one set or nobody knows how much."""
    if as_json or not sys.stderr.isatty() or (len(items) <= SET and "-" not in items):
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("publishing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task("publishing", total=None if "-" in items else len(items))
        yield lambda count: bar.advance(task, count)
