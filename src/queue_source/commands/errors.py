"""`cuesqueue errors list/show/requeue/drop`: finds what could not be processed, and has it processed once repaired."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.admin.wording import counted
from queue_source.commands.filters import Choice, Everything, State, choosing
from queue_source.commands.output import (
    FAILED,
    WIDTH,
    DryRun,
    Json,
    Store,
    cut,
    hide_secrets,
    line_width,
    print_result,
    tell,
)
from queue_source.commands.send import Notification, s3_event
from queue_source.errors import OptionError

if TYPE_CHECKING:
    from shard_store.error_table.search import StoredError

group = typer.Typer(
    name="errors",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Find what could not be processed, and have it processed once it is repaired.",
)

_SHORT = 12  # digits of an id in tables
_REPORTED = 20  # refusals that are reported one by one


Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most this many, the oldest first.")]


@group.command("list")
@choosing
def list_errors(
    store: Store,
    choice: Choice,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many, the oldest first.")] = 100,
    long: Annotated[bool, typer.Option("--long", help="Show each error's whole text, one after the other.")] = False,
    as_json: Json = False,
) -> None:
    """List errors by cause, one line each. With --json each has up to 65,536 bytes of its input."""
    from shard_store.error_table.handling import MAX_INPUT

    errors = _search(store, choice, limit + 1, MAX_INPUT if as_json else 0)
    more = len(errors) > limit
    del errors[limit:]
    if as_json:
        print_result({"errors": [_as_dict(error) for error in errors], "more": more}, as_json, title="errors")
        return
    for line in _whole(errors) if long else _by_cause(errors, line_width()):
        typer.echo(line)
    if not errors:
        tell("there are none")
    if more:
        tell("there are more; raise --limit, or choose fewer errors")


def _by_cause(errors: Sequence[StoredError], width: int | None) -> Iterator[str]:
    """Yield the lines of a list for people: the most frequent cause first, with the text of its newest error."""
    groups: dict[tuple[str, str], list[StoredError]] = {}
    for error in errors:
        groups.setdefault((error.cause, error.scope), []).append(error)
    for (cause, scope), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield hide_secrets(f"{cause} ({scope}): {counted(len(group), 'error')}")
        yield cut(hide_secrets(f"  {' '.join(group[-1].detail.split())}"), width)
        for error in group:
            state = "" if error.state == State.RECORDED.value else f"{error.state}  "
            begins = f"  {error.key.hex()[:_SHORT]}  {_minute(error)}  {state}"
            yield begins + cut(hide_secrets(error.subject), width and width - len(begins), keep_end=True)


def _whole(errors: Sequence[StoredError]) -> Iterator[str]:
    """Yield all that people need of each error, names in one piece, so that they can be copied."""
    for error in errors:
        words = f"{error.key.hex()[:_SHORT]}  {_minute(error)}  {error.scope}  {error.state}  {error.cause}"
        yield hide_secrets(words)
        yield hide_secrets(f"  {error.subject}")
        yield from textwrap.wrap(
            hide_secrets(error.detail), WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False
        )


def _minute(error: StoredError) -> str:
    from queue_source.coordinator.ending.error_queue import iso_time

    return (iso_time(error.occurred_at) or "")[:16].replace("T", " ")


@group.command()
def show(
    store: Store,
    error_id: Annotated[str, typer.Argument(metavar="ID", help="The error, or the first digits of its id.")],
    as_json: Json = False,
) -> None:
    """Show one error with its whole input."""
    errors = _search(store, Choice([error_id]), 2)
    if len(errors) != 1:
        problem = "has no error" if not errors else "has several errors"
        raise OptionError("ID", f"the store {problem} whose id begins with {error_id}; see `cuesqueue errors list`")
    fields = _as_dict(errors[0])
    if not as_json:  # a table would call what has not happened, as a delivery, unknown
        fields = {name: value for name, value in fields.items() if value is not None}
    print_result(fields, as_json, title="error")


@group.command()
@choosing
def requeue(
    store: Store,
    choice: Choice,
    everything: Everything = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE_URL", help="Send to this queue, not to where each error came from."),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Tag of the messages; without it the tag that each had, if any.")
    ] = None,
    notification: Annotated[
        Notification | None, typer.Option(metavar="s3", help="Announce objects by S3 events instead of plain URIs.")
    ] = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have errors processed again: bad messages are sent again, quarantined objects are released and announced again.

    Bad records, and rejected rows, of an object need --to, since the other rows of their object are published already.
    Without it they are refused, and the exit code is 1.
    """
    chosen = choice.criteria(everything=everything)
    import shard_store
    from queue_source.admin import requeue as requeueing

    announce = s3_event if notification is Notification.S3 else requeueing.plain
    before = 0
    with shard_store.open_store(store, create=False) as opened:
        done = requeueing.requeue(opened, chosen, to=to, tag=tag, announce=announce, limit=limit, dry_run=dry_run)
        if not (done.errors or done.refused or chosen.states):
            before = requeueing.requeued_before(opened, chosen)
    counts: dict[str, Any] = {"errors": done.errors, "messages": done.messages}
    counts["refused"] = done.refused if as_json else len(done.refused)
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be requeued" if dry_run else "requeued")
    if before:
        tell(f"{counted(before, 'error')} like these had been requeued before; --state requeued does it once more")
    elif not (done.errors or done.refused):
        tell("no error is like these")
    for number, (error_id, why) in enumerate(done.refused.items()):
        if number == _REPORTED:
            tell(f"and {len(done.refused) - _REPORTED} more; --json names all")
            break
        tell(f"{error_id[:_SHORT]} was refused: {why}")
    if done.refused:
        raise typer.Exit(FAILED)


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
    """Delete errors for good. Objects stay quarantined, and errors of a batch that is not yet published are kept."""
    chosen = choice.criteria(everything=everything)
    import shard_store
    from shard_store.error_table import search

    with shard_store.open_store(store, create=False) as opened:
        pages = search.pages(opened.database, chosen, limit=limit, max_input=0)
        chosen_errors = [(error.key, error.state) for page in pages for error in page]
        keys = [key for key, state in chosen_errors if state != State.PENDING.value]
        dropped = len(keys) if dry_run else opened.drop_errors(keys)
    result = {"errors": dropped, "pending": len(chosen_errors) - len(keys), "dry_run": dry_run}
    print_result(result, as_json, title="would be dropped" if dry_run else "dropped")


def _search(store: str, choice: Choice, limit: int, max_input: int | None = None) -> list[StoredError]:
    import shard_store
    from shard_store.error_table import search

    criteria = choice.criteria()
    with shard_store.open_store(store, create=False) as opened:
        pages = search.pages(opened.database, criteria, limit=limit, max_input=max_input)
        return [error for page in pages for error in page]


def _as_dict(error: StoredError) -> dict[str, Any]:
    from queue_source.coordinator.ending.error_queue import error_as_dict, iso_time

    handled = {"delivered_at": iso_time(error.delivered_at), "delivered_to": error.delivered_to}
    again = {"requeued_at": iso_time(error.requeued_at), "reopened_at": iso_time(error.reopened_at)}
    return {**error_as_dict(error), "state": error.state, **handled, **again}
