"""`cuesqueue errors list/show/requeue/drop`: finds what could not be processed, and has it processed once repaired.

Programs call `requeue`, too: bad messages are sent once more, quarantined objects are released and announced again.
Decision 0064 explains what keeps exactly once.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from queue_source.announcements.contents import version_headers
from queue_source.commands.output import (
    WIDTH,
    Json,
    counted,
    cut,
    end_with_refused,
    hide_secrets,
    line_width,
    print_change,
    print_result,
    tell,
    without_unknown,
)
from queue_source.commands.parameters import (
    DryRun,
    Everything,
    Pipeline,
    Source,
    Store,
    argument,
    choosing,
    criteria_of,
    flag,
    option,
)
from queue_source.commands.queue import Notification, s3_event
from queue_source.errors import OptionError, QueueConfigurationError
from queue_source.messages import Outgoing
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import republished, send_possible
from queue_source.queues.sql.database import parse_address
from queue_source.queues.urls import scheme
from queue_source.uris import written_uri
from shard_store import open_store
from shard_store.error_table import search
from shard_store.error_table.handling import MAX_INPUT, Reopened
from shard_store.error_table.search import Criteria, StoredError
from shard_store.model import WITHOUT_MESSAGE, ShardKey, iso_time
from shard_store.redaction import HIDDEN, quote
from shard_store.shards.changes import Audit
from shard_store.store import ShardStore

_SHORT = 12  # digits of an id in tables

group = typer.Typer(
    name="errors",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Find what could not be processed, and have it processed once it is repaired.",
)
Limit = Annotated[int | None, option("N", "At most this many, the oldest first.", min=1)]
Announce = Callable[[str], bytes]
"""The body of a message that announces a URI."""


class Scope(str, Enum):
    MESSAGE = "message"
    OBJECT = "object"
    PART = "part"
    SKIPPED = "skipped"
    RECORD = "record"
    ROW = "row"


class State(str, Enum):
    PENDING = "pending"
    RECORDED = "recorded"
    DELIVERED = "delivered"
    REQUEUED = "requeued"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class Choice:
    """The options by which a command with `@choosing` chooses errors."""

    ids: Annotated[list[str] | None, argument("ID...", "Only these errors: first digits of ids.")] = None
    match: Annotated[
        str | None, option("GLOB", "Only where the whole id of shard or message matches: *, ?, [a-z], {a,b}.")
    ] = None
    scope: Annotated[
        list[Scope] | None, option("SCOPE", "Only message, object, part, skipped, record or row; may be repeated.")
    ] = None
    cause: Annotated[list[str] | None, option("WORD", "Only this cause, as in missing-object; may be repeated.")] = None
    state: Annotated[
        list[State] | None, option("STATE", "Only pending, recorded, delivered, requeued or reopened; may be repeated.")
    ] = None
    source: Source = None
    pipeline: Pipeline = None
    older_than: Annotated[str | None, option("D", "Only older errors, as 2h.")] = None
    since: Annotated[str | None, option("D", "Only younger errors.")] = None

    def criteria(self, *, everything: bool = True) -> Criteria:
        """Return the options for the store, as `criteria_of`."""
        for text in self.ids or ():
            if not re.fullmatch(r"[0-9a-fA-F]{4,64}", text):
                raise OptionError("ID", f"{quote(text)} is not an id; write 4 to 64 hexadecimal digits of one")
        words = {"scope": tuple(scope.value for scope in self.scope or ()), "cause": tuple(self.cause or ())}
        return criteria_of(
            Criteria,
            self,
            everything=everything,
            ids=tuple(text.lower() for text in self.ids or ()),
            words={name: values for name, values in words.items() if values},
        )


@group.command("list")
@choosing
def list_errors(
    store: Store,
    choice: Choice,
    limit: Annotated[int, option("N", "At most this many, the oldest first.", min=1)] = 100,
    long: Annotated[bool, flag("--long", "Show each error's whole text.")] = False,
    as_json: Json = False,
) -> None:
    """List errors by cause, one line each. With --json each has up to 65,536 bytes of its input."""
    errors = _search(store, choice, limit + 1, MAX_INPUT if as_json else 0)
    more = len(errors) > limit
    del errors[limit:]
    if as_json:
        print_result({"errors": [_as_dict(error) for error in errors], "more": more}, as_json, title="errors")
        return
    if long:  # names in one piece, so that they can be copied
        for error in errors:
            words = f"{error.key.hex()[:_SHORT]}  {_minute(error)}  {error.scope}  {error.state}  {error.cause}"
            typer.echo(hide_secrets(words))
            typer.echo(hide_secrets(f"  {error.subject}"))
            for line in textwrap.wrap(hide_secrets(error.detail), WIDTH - 2, break_long_words=False):
                typer.echo(f"  {line}")
    else:  # the most frequent cause first, and of its texts, each of which stands above the errors that have it
        width = line_width()
        groups: dict[tuple[str, str], dict[str, list[StoredError]]] = {}
        for error in errors:
            text = cut(hide_secrets(f"  {' '.join(error.detail.split())}"), width)
            groups.setdefault((error.cause, error.scope), {}).setdefault(text, []).append(error)
        counts = {kind: sum(map(len, texts.values())) for kind, texts in groups.items()}
        for (cause, scope), texts in sorted(groups.items(), key=lambda item: (-counts[item[0]], item[0])):
            typer.echo(hide_secrets(f"{cause} ({scope}): {counted(counts[cause, scope], 'error')}"))
            for text, alike in sorted(texts.items(), key=lambda item: -len(item[1])):
                typer.echo(text)
                for error in alike:
                    state = "" if error.state == State.RECORDED.value else f"{error.state}  "
                    begins = f"  {error.key.hex()[:_SHORT]}  {_minute(error)}  {state}"
                    typer.echo(begins + cut(hide_secrets(error.subject), width and width - len(begins), keep_end=True))
    if not errors:
        tell("there are none")
    if more:
        tell("there are more; raise --limit, or choose fewer errors")


def _minute(error: StoredError) -> str:
    return (iso_time(error.occurred_at) or "")[:16].replace("T", " ")


@group.command()
def show(
    store: Store,
    error_id: Annotated[str, argument("ID", "The first digits of its id.")],
    as_json: Json = False,
) -> None:
    """Show one error with its whole input."""
    errors = _search(store, Choice([error_id]), 2)
    if len(errors) != 1:
        problem = "has no error" if not errors else "has several errors"
        raise OptionError("ID", f"the store {problem} whose id begins with {error_id}; see `cuesqueue errors list`")
    fields = _as_dict(errors[0])
    print_result(fields if as_json else without_unknown(fields), as_json, title="error")


@group.command("requeue")
@choosing
def requeue_errors(
    store: Store,
    choice: Choice,
    everything: Everything = False,
    to: Annotated[str | None, option("QUEUE_URL", "Send to this queue, not to that of each error.")] = None,
    tag: Annotated[str | None, option("TAG", "Tag of the messages; else the one that each had.")] = None,
    notification: Annotated[
        Notification | None, option("s3", "Announce objects by S3 events instead of plain URIs.")
    ] = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Process errors again: bad messages are sent again, quarantined objects released and announced again.

    Bad records and rejected rows of an object need --to, since its other rows are published; else they are refused
    (exit code 1).
    """
    chosen = choice.criteria(everything=everything)
    announce = s3_event if notification is Notification.S3 else plain
    before = 0
    with open_store(store, create=False) as opened:
        done = requeue(opened, chosen, to=to, tag=tag, announce=announce, limit=limit, dry_run=dry_run)
        if not (done.errors or done.refused or chosen.states):  # those that requeue leaves alone
            handled = replace(chosen, states=("requeued", "reopened"))
            before = sum(map(len, search.pages(opened.database, handled, max_input=0)))
    refused = done.refused if as_json else len(done.refused)
    counts = {"errors": done.errors, "messages": done.messages, "refused": refused}
    print_change(counts, "requeued", dry_run=dry_run, as_json=as_json)
    if before:
        tell(f"{counted(before, 'error')} like these had been requeued before; --state requeued does it once more")
    elif not (done.errors or done.refused):
        tell("no error is like these")
    end_with_refused(done.refused, _SHORT)


@group.command()
@choosing
def drop(
    store: Store,
    choice: Choice,
    everything: Everything = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete errors for good. Objects stay quarantined, and errors of an unpublished batch are kept."""
    chosen = choice.criteria(everything=everything)
    with open_store(store, create=False) as opened:
        pages = search.pages(opened.database, chosen, limit=limit, max_input=0)
        chosen_errors = [(error.key, error.state) for page in pages for error in page]
        keys = [key for key, state in chosen_errors if state != State.PENDING.value]
        dropped = len(keys) if dry_run else opened.drop_errors(keys)
    counts = {"errors": dropped, "pending": len(chosen_errors) - len(keys)}
    print_change(counts, "dropped", dry_run=dry_run, as_json=as_json)


def _search(store: str, choice: Choice, limit: int, max_input: int | None = None) -> list[StoredError]:
    criteria = choice.criteria()
    with open_store(store, create=False) as opened:
        pages = search.pages(opened.database, criteria, limit=limit, max_input=max_input)
        return [error for page in pages for error in page]


def _as_dict(error: StoredError) -> dict[str, Any]:
    handled = {"delivered_at": iso_time(error.delivered_at), "delivered_to": error.delivered_to}
    again = {"requeued_at": iso_time(error.requeued_at), "reopened_at": iso_time(error.reopened_at)}
    return {**error.as_dict(), "state": error.state, **handled, **again}


def plain(uri: str) -> bytes:
    """Return the URI itself as the body; it may hold bytes that are not UTF-8."""
    return written_uri(uri).encode("utf-8", "surrogatepass")


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
    with ExitStack() as opened:
        outbox = _Outbox(store, to, tag, announce, dry_run, opened, done)
        for page in search.pages(store.database, criteria, limit=limit):
            outbox.requeue(page)
    return done


_NOWHERE = ""
"""Where those are sent that need no message: what is released is taken by a reader without one."""


@dataclass
class _Outbox:
    """Sends what errors are about, a page at a time; the queues stay open until the end.

    What can fail without a change comes first. Each queue's errors are marked as soon as its messages are sent: so a
    call that ends at another queue has done nothing, or all, for each error, and the next call goes on from there.
    """

    store: ShardStore
    to: str | None
    tag: str | None
    announcement: Announce
    dry_run: bool
    opened: ExitStack
    done: Requeued
    _queues: dict[str, Queue] = field(default_factory=dict)

    def requeue(self, page: Sequence[StoredError]) -> None:
        possible = self._without(page, {error.key: _problem(error, self.to) for error in page})
        inputs = [error for error in possible if not _is_object(error)]
        inputs = self._without(inputs, {error.key: self._unreachable(self.to or error.queue) for error in inputs})
        objects = [error for error in possible if _is_object(error)]
        would = self.store.reopen(objects, dry_run=True)
        objects = self._without(objects, would.refused)
        problems = {key: self._unreachable(self._place(shard), shard) for key, shard in would.shards.items()}
        objects = self._without(objects, {error.key: problems[_shard_of(error)] for error in objects})
        shards = {key: would.shards[key] for key in map(_shard_of, objects)}
        waiting: dict[str, list[tuple[Outgoing, list[StoredError]]]] = {_NOWHERE: []}
        for error in inputs:
            waiting.setdefault(self.to or error.queue, []).append((self._copy(error), [error]))
        for key, shard in shards.items():
            of_shard = [error for error in objects if error.shard_key == key]
            waiting.setdefault(self._place(shard), []).append((self._announce(shard), of_shard))
        if self.dry_run:
            self.done.errors += len(inputs) + len(objects)
            self.done.messages += sum(len(messages) for place, messages in waiting.items() if place != _NOWHERE)
            return
        for place in waiting.keys() - self._queues.keys() - {_NOWHERE}:
            self._queues[place] = self.opened.enter_context(open_queue(place))
        audit = Audit.of_user("its error is requeued")
        refused = {key.hex(): why for key, why in self.store.reopen(objects, audit=audit).refused.items()}
        self.done.refused |= refused  # since something else has changed them meanwhile
        for place, messages in waiting.items():
            remaining = [
                (message, [error for error in of_message if error.key.hex() not in refused])
                for message, of_message in messages
            ]
            self._send(place, [(message, of_message) for message, of_message in remaining if of_message])

    def _send(self, place: str, messages: Sequence[tuple[Outgoing, Sequence[StoredError]]]) -> None:
        problems: dict[int, str] = {}
        if place != _NOWHERE:
            problems = send_possible(self._queues[place], [message for message, _ in messages])
            self.done.messages += len(messages) - len(problems)
        for number, problem in problems.items():
            words = f"its queue cannot carry it ({problem}); name another one with --to"
            self.done.refused |= {error.key.hex(): words for error in messages[number][1]}
        sent = [error.key for number, (_, errors) in enumerate(messages) for error in errors if number not in problems]
        self.store.mark_requeued(sent)
        self.done.errors += len(sent)

    def _without(self, errors: Sequence[StoredError], problems: Mapping[bytes, str]) -> list[StoredError]:
        """Return the errors that have no problem; note the others as refused."""
        self.done.refused |= {key.hex(): problem for key, problem in problems.items() if problem}
        return [error for error in errors if not problems.get(error.key)]

    def _place(self, shard: Reopened) -> str:
        return self.to or (_NOWHERE if shard.known and shard.queue in WITHOUT_MESSAGE else shard.queue)

    def _unreachable(self, queue: str, shard: Reopened | None = None) -> str:
        """Return why the queue cannot be opened, by its name alone; "" where nothing speaks against it.

        Raises QueueConfigurationError for a file that is not there.
        """
        if shard is not None and queue == _NOWHERE and shard.queue in WITHOUT_MESSAGE:
            return ""
        if not queue:
            return "its queue is not known; name one with --to"
        if queue in WITHOUT_MESSAGE:
            return "the store has forgotten its object, which no message had announced; name a queue with --to"
        if HIDDEN in queue:
            return f"the password of its queue {queue} is not in the store; name the queue with --to"
        if scheme(queue).startswith("sql+sqlite"):
            address = parse_address(queue)
            file = address.url.database
            # opening the queue would create the file; a relative path counts from the query's folder, not from ours
            if file is not None and not address.url.query.get("uri") and not Path(file).exists():
                problem = f"there is no file {file!r} here; run this in the query's folder, or name the queue with --to"
                raise QueueConfigurationError(address.name, problem)
        return ""

    def _copy(self, error: StoredError) -> Outgoing:
        """Return the error's input, unchanged.

        A message that is a shard is counted as republished, which makes a new shard.
        """
        tag = error.tag if self.tag is None else self.tag
        headers = republished(error.headers) if error.scope == "object" else error.headers
        return Outgoing(error.input or b"", tag, headers, error.group)

    def _announce(self, shard: Reopened) -> Outgoing:
        headers = version_headers(shard.version, shard.size, shard.etag) if shard.version else {}
        body = b"" if self._place(shard) == _NOWHERE else self.announcement(shard.uri)
        return Outgoing(body, self.tag or "", headers, shard.group)


def _problem(error: StoredError, to: str | None) -> str:
    """Explain why this error's input cannot be sent again, whatever the queue; "" if it can."""
    if error.state == "pending":
        return "its batch is not published yet: it may still be repeated"
    if error.scope == "skipped":
        return "its object was skipped, as the options say (skip); parts of it may be published"
    if error.scope == "part" and to is None:
        return (
            "other tasks, or another reading of its batch, have read its object, and their rows may be published; "
            "look for them where they went; if none are there, have the object read again with `cuesqueue shards "
            "forget` and a new announcement: any that are there would come twice"
        )
    stays = error.scope == "row" or (error.scope == "record" and not _is_of_message(error))
    if stays and to is None:
        return (
            f"it is a {error.scope} of something whose other rows are published, so that cannot be read again; "
            "repair it under another name, or name with --to the queue that is to get the input alone"
        )
    if not _is_object(error) and not error.whole:
        kept = 0 if error.input is None else len(error.input)
        size = "unknown number of" if error.input_size is None else error.input_size
        return f"the error table keeps {kept} of its {size} bytes"
    return ""


def _shard_of(error: StoredError) -> ShardKey:
    """Return the shard of an error that `reopen` has not refused."""
    assert error.shard_key is not None
    return error.shard_key


def _is_object(error: StoredError) -> bool:
    """Tell whether the error is about an object, which is read again; not a message that is bad itself."""
    return error.scope == "object" and not _is_of_message(error)


def _is_of_message(error: StoredError) -> bool:
    """Tell whether the shard of the error is a message: its id is `queue#key`."""
    return bool(error.message_id) and error.subject.startswith(f"{error.queue}#{error.message_id}")
