"""Processes errors again: bad messages are sent once more, quarantined objects are released and announced again.

Used by the command `cuesqueue errors requeue`, and by programs. Decision 0023 explains what keeps exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from queue_source.admin.audit import audit
from queue_source.announcements.contents import OBJECT_VERSION
from queue_source.errors import QueueConfigurationError, QueueError
from queue_source.messages import Outgoing
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import Unsendable, republished, send_messages
from queue_source.queues.urls import scheme
from shard_store.error_table import handling, search
from shard_store.error_table.search import Criteria, StoredError
from shard_store.model import STORE
from shard_store.redaction import HIDDEN
from shard_store.store import ShardStore

Announce = Callable[[str], bytes]
"""The body of a message that announces a URI."""


def plain(uri: str) -> bytes:
    """Return the URI itself as the body; it may hold bytes that are not UTF-8."""
    return uri.encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Requeued:
    """How many messages were sent for how many errors; `refused`: error id -> the reason why it was skipped."""

    errors: int = 0
    messages: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def requeue(
    store: ShardStore,
    criteria: Criteria,
    *,
    to: str | None = None,
    tag: str | None = None,
    announce: Announce = plain,
    limit: int | None = None,
    dry_run: bool = False,
) -> Requeued:
    """Send again what errors are about, and mark them as requeued.

    A bad message goes back to its queue. A quarantined object is released and announced. Of bad records and rejected
    rows, which are parts of what is published, the input alone is sent to the queue `to`, and a bad record of a message
    also to the queue of the message. If a call is killed, run it again; an object that is announced twice is read once.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which errors; those requeued before only if it names that state.
        to: URL of the queue to send to, instead of those that they came from.
        tag: Tag of the messages, instead of their own.
        announce: The body of the message that announces a URI; by default the URI itself.
        limit: Maximum number of errors; None for all.
        dry_run: Send and mark nothing.

    Returns:
        How many messages were (or would be) sent for how many errors, and which errors were refused.

    Raises:
        QueueError: A queue cannot be opened, or a message cannot be sent.
        ShardStoreError: The store failed.

    Process:
        Any; running queries go on meanwhile.
    """
    done = Requeued()
    criteria = criteria if criteria.states else replace(criteria, states=("pending", "recorded", "delivered"))
    with _Outbox(to, tag, dry_run) as outbox:
        for page in search.pages(store.database, criteria, limit=limit):
            _requeue(store, page, outbox, announce, done)
    done.messages = outbox.sent
    return done


def requeued_before(store: ShardStore, criteria: Criteria) -> int:
    """Count the errors that `requeue` leaves alone, since they were requeued or reopened before."""
    handled = replace(criteria, states=("requeued", "reopened"))
    return sum(len(page) for page in search.pages(store.database, handled, max_input=0))


def _requeue(
    store: ShardStore, page: Sequence[StoredError], outbox: _Outbox, announce: Announce, done: Requeued
) -> None:
    problems = {error.key: outbox.problem(error) for error in page}
    done.refused |= {key.hex(): problem for key, problem in problems.items() if problem}
    possible = [error for error in page if not problems[error.key]]
    objects = [error for error in possible if _is_object(error)]
    opened = store.reopen(objects, dry_run=outbox.dry_run, audit=audit("its error is requeued"))
    done.refused |= {key.hex(): why for key, why in opened.refused.items()}
    possible = [error for error in possible if error.key not in opened.refused]
    for error in possible:
        if not _is_object(error):
            outbox.put(error)
    for shard in opened.shards.values():
        outbox.announce(shard, announce(shard.uri))
    outbox.send()
    if not outbox.dry_run:
        store.mark_requeued([error.key for error in possible])
    done.errors += len(possible)


class _Outbox:
    """Messages by the queue they go to; the queues stay open until the end."""

    def __init__(self, to: str | None, tag: str | None, dry_run: bool) -> None:
        self.to = to
        self.tag = tag
        self.dry_run = dry_run
        self.sent = 0
        self._waiting: dict[str, list[Outgoing]] = {}
        self._queues: dict[str, Queue] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def problem(self, error: StoredError) -> str:
        """Explain why this error's input cannot be sent again; "" if it can."""
        if error.state == "pending":
            return "its batch is not published yet: it may still be repeated"
        if error.scope == "skipped":
            return "its object was skipped, as the options say (skip); parts of it may be published"
        if error.scope == "part" and self.to is None:
            return (
                "other tasks, or another reading of its batch, have read its object, and their rows may be published; "
                "look for them where they went; if none are there, have the object read again with `cuesqueue shards "
                "forget` and a new announcement: any that are there would come twice"
            )
        stays = error.scope == "row" or (error.scope == "record" and not _is_of_message(error))
        if stays and self.to is None:
            return (
                f"it is a {error.scope} of something whose other rows are published, so that cannot be read again; "
                "repair it under another name, or name with --to the queue that is to get the input alone"
            )
        if not _is_object(error) and not error.whole:
            kept = 0 if error.input is None else len(error.input)
            size = "unknown number of" if error.input_size is None else error.input_size
            return f"the error table keeps {kept} of its {size} bytes"
        queue = self.to or error.queue
        if not queue:
            return "its queue is not known; name one with --to"
        if HIDDEN in queue:
            return f"the password of its queue {queue} is not in the store; name the queue with --to"
        _refuse_absent_file(queue)
        return ""

    def put(self, error: StoredError) -> None:
        """Add the error's input, unchanged.

        A message that is a shard is counted as republished, which makes a new shard.
        """
        tag = error.tag if self.tag is None else self.tag
        headers = republished(error.headers) if error.scope == "object" else error.headers
        message = Outgoing(error.input or b"", tag, headers, error.group)
        self._waiting.setdefault(self.to or error.queue, []).append(message)

    def announce(self, shard: handling.Reopened, body: bytes) -> None:
        if shard.queue == STORE and self.to is None:
            return  # it is released: the next reader of its source takes it
        headers = {OBJECT_VERSION: shard.version} if shard.version else {}
        message = Outgoing(body, self.tag or "", headers, shard.group)
        self._waiting.setdefault(self.to or shard.queue, []).append(message)

    def send(self) -> None:
        for url, messages in self._waiting.items():
            if not self.dry_run:
                queue = self._queue(url)
                try:
                    send_messages(queue, messages)
                except Unsendable as error:
                    raise QueueError(queue.name, f"cannot carry the input of an error: {error}") from error
            self.sent += len(messages)
        self._waiting = {}

    def _queue(self, url: str) -> Queue:
        if url not in self._queues:
            self._queues[url] = self._open.enter_context(open_queue(url))
        return self._queues[url]


def _is_object(error: StoredError) -> bool:
    """Tell whether the error is about an object, which is read again; not a message that is bad itself."""
    return error.scope == "object" and not _is_of_message(error)


def _is_of_message(error: StoredError) -> bool:
    """Tell whether the shard of the error is a message: its id is `queue#key`."""
    return bool(error.message_id) and error.subject.startswith(f"{error.queue}#{error.message_id}")


def _refuse_absent_file(url: str) -> None:
    """Refuse the URL of an absent SQLite file, which opening the queue would create.

    A relative path counts from the query's folder, and not from this process's.
    """
    if not scheme(url).startswith("sql+sqlite"):
        return
    from queue_source.queues.sql.database import parse_address  # here: other queues do without SQLAlchemy

    address = parse_address(url)
    file = address.url.database
    if file is not None and not address.url.query.get("uri") and not Path(file).exists():
        raise QueueConfigurationError(
            address.name, f"there is no file {file!r} here; run this in the query's folder, or name the queue with --to"
        )
