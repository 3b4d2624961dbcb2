"""`cuesqueue errors list/show/requeue/drop`: to find what was bad, and to have it read again once it is repaired."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.filters import (
    Everything,
    Ids,
    Match,
    OlderThan,
    Pipeline,
    Since,
    Source,
    criteria,
    refuse_everything,
)
from queue_source.commands.output import FAILED, Json, Store, print_result, print_table, stderr
from queue_source.commands.send import Notification, s3_event
from queue_source.errors import OptionError

if TYPE_CHECKING:
    from shard_store.error_search import Criteria, StoredError

group = typer.Typer(
    name="errors",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Find what could not be processed, and have it processed once it is repaired.",
)

_SHORT = 12  # digits of an id in tables
_TOLD = 20  # refusals that are told one by one


class Scope(str, Enum):
    MESSAGE = "message"
    OBJECT = "object"
    SKIPPED = "skipped"
    RECORD = "record"
    ROW = "row"


class State(str, Enum):
    PENDING = "pending"
    RECORDED = "recorded"
    DELIVERED = "delivered"
    REQUEUED = "requeued"


Scopes = Annotated[
    list[Scope] | None,
    typer.Option("--scope", metavar="SCOPE", help="Only message, object, skipped, record or row; may be repeated."),
]
Causes = Annotated[
    list[str] | None,
    typer.Option("--cause", metavar="WORD", help="Only this cause, as missing-object; may be repeated."),
]
States = Annotated[
    list[State] | None,
    typer.Option("--state", metavar="STATE", help="Only pending, recorded, delivered or requeued; may be repeated."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, the oldest first.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@group.command("list")
def list_errors(
    store: Store,
    ids: Ids = None,
    match: Match = None,
    scope: Scopes = None,
    cause: Causes = None,
    state: States = None,
    source: Source = None,
    pipeline: Pipeline = None,
    older_than: OlderThan = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many, the oldest first.")] = 100,
    as_json: Json = False,
) -> None:
    """List errors, the oldest first. With --json each has up to 65,536 bytes of its input."""
    import shard_store
    from queue_source.coordinator.error_messages import time
    from shard_store import error_search
    from shard_store.error_delivery import MOST_INPUT

    chosen = _criteria(ids, match, scope, cause, state, source, pipeline, older_than, since)
    with shard_store.open_store(store, create=False) as opened:
        pages = error_search.pages(opened.database, chosen, limit=limit + 1, most_input=MOST_INPUT if as_json else 0)
        found = [error for page in pages for error in page]
    more = len(found) > limit
    del found[limit:]
    if as_json:
        print_result({"errors": [_shown(error) for error in found], "more": more}, as_json, title="errors")
        return
    rows = [
        [
            error.key.hex()[:_SHORT],
            (time(error.occurred_at) or "")[:19],
            error.scope,
            error.state,
            error.cause,
            error.subject,
            error.detail,
        ]
        for error in found
    ]
    print_table(
        f"{len(rows)} errors", ("id", "time (UTC)", "scope", "state", "cause", "shard or message", "detail"), rows
    )
    if more:
        stderr().print("there are more; raise --limit, or choose", markup=False)


@group.command()
def show(
    store: Store,
    error_id: Annotated[str, typer.Argument(metavar="ID", help="The error, or the first digits of its id.")],
    as_json: Json = False,
) -> None:
    """Show one error with all of its input."""
    import shard_store
    from shard_store import error_search

    with shard_store.open_store(store, create=False) as opened:
        found = [e for page in error_search.pages(opened.database, criteria([error_id]), limit=2) for e in page]
    if len(found) != 1:
        problem = "has no error" if not found else "has several errors"
        raise OptionError("ID", f"the store {problem} whose id begins with {error_id}; see `cuesqueue errors list`")
    print_result(_shown(found[0]), as_json, title="error")


@group.command()
def requeue(
    store: Store,
    ids: Ids = None,
    match: Match = None,
    scope: Scopes = None,
    cause: Causes = None,
    state: States = None,
    source: Source = None,
    pipeline: Pipeline = None,
    older_than: OlderThan = None,
    since: Since = None,
    everything: Everything = False,
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE_URL", help="Publish to this queue, and not to where each came from.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Tag of the messages; otherwise that which they had, or none.")
    ] = None,
    notification: Annotated[
        Notification | None, typer.Option(metavar="s3", help="Announce objects by S3 events instead of plain URIs.")
    ] = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have it processed again: bad messages are published anew, quarantined objects are opened and announced.

    Records and rows of an object go nowhere without --to, as the rest of their object is published: they are refused,
    and the exit code is 1.
    """
    chosen = _criteria(ids, match, scope, cause, state, source, pipeline, older_than, since)
    refuse_everything(chosen, everything)
    import shard_store
    from queue_source.admin import requeue as requeueing

    announce: Callable[[str], bytes] = s3_event if notification is Notification.S3 else _plain
    with shard_store.open_store(store, create=False) as opened:
        done = requeueing.requeue(opened, chosen, to=to, tag=tag, announce=announce, limit=limit, dry_run=dry_run)
    counts: dict[str, Any] = {"errors": done.errors, "messages": done.messages}
    counts["refused"] = done.refused if as_json else len(done.refused)
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be requeued" if dry_run else "requeued")
    for number, (error_id, why) in enumerate(done.refused.items()):
        if number == _TOLD:
            stderr().print(f"and {len(done.refused) - _TOLD} more; --json names all", markup=False)
            break
        stderr().print(f"{error_id[:_SHORT]} was refused: {why}", markup=False)
    if done.refused:
        raise typer.Exit(FAILED)


@group.command()
def drop(
    store: Store,
    ids: Ids = None,
    match: Match = None,
    scope: Scopes = None,
    cause: Causes = None,
    state: States = None,
    source: Source = None,
    pipeline: Pipeline = None,
    older_than: OlderThan = None,
    since: Since = None,
    everything: Everything = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete errors for good. Objects stay quarantined; errors of a batch that is not published yet stay, too."""
    chosen = _criteria(ids, match, scope, cause, state, source, pipeline, older_than, since)
    refuse_everything(chosen, everything)
    import shard_store
    from shard_store import error_repair, error_search

    with shard_store.open_store(store, create=False) as opened:
        pages = error_search.pages(opened.database, chosen, limit=limit, most_input=0)
        found = [(error.key, error.state) for page in pages for error in page]
        keys = [key for key, state in found if state != State.PENDING.value]
        dropped = len(keys) if dry_run else error_repair.drop(opened.database, keys)
    result = {"errors": dropped, "pending": len(found) - len(keys), "dry_run": dry_run}
    print_result(result, as_json, title="would be dropped" if dry_run else "dropped")


def _criteria(
    ids: list[str] | None,
    match: str | None,
    scope: list[Scope] | None,
    cause: list[str] | None,
    state: list[State] | None,
    source: str | None,
    pipeline: str | None,
    older_than: str | None,
    since: str | None,
) -> Criteria:
    return criteria(
        ids,
        match,
        [s.value for s in state or ()],
        source,
        pipeline,
        older_than,
        since,
        {"scope": [s.value for s in scope or ()], "cause": cause},
    )


def _shown(error: StoredError) -> dict[str, Any]:
    from queue_source.coordinator.error_messages import time, told

    handled = {"delivered_at": time(error.delivered_at), "delivered_to": error.delivered_to}
    return {**told(error), "state": error.state, **handled, "requeued_at": time(error.requeued_at)}


def _plain(uri: str) -> bytes:
    return uri.encode("utf-8", "surrogatepass")
