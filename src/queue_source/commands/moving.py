"""`cuesqueue export` and `import`: a source's progress goes from one store to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queue_source.commands.output import Json, Store, print_result, progress, tell

if TYPE_CHECKING:
    from queue_source.admin.moving import Progress


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; there must be none.")],
    source: Annotated[str, typer.Option(metavar="S", help="The source, as in the reader's option source.")],
    store: Store,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store that the source moves to; it is created if there is none. From then on queries that run on "
            "the old one are refused.",
        ),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="A copy to keep: the source stays where it is, and queries may go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write all that the store knows of a source into a file, to move it to another database, or as a copy.

    Stop its queries first. A move that was interrupted is continued by running the command again.
    """
    import shard_store
    from queue_source.admin.moving import export as export_source
    from queue_source.errors import OptionError

    if (to is None) != copy:
        raise OptionError("--to", "names the store that the source moves to, or --copy says that it stays: give one")
    with ExitStack() as opened:
        origin = opened.enter_context(shard_store.open_store(store, create=False))
        target = None if to is None else opened.enter_context(shard_store.open_store(to))
        with _bar(not as_json) as advance:
            exported = export_source(origin, source, file, to=target, progress=advance)
        if target is not None:
            tell(f"source {source} is in {target.database.name} from now on: import the file there, and start its "
                 "queries with that store")  # fmt: skip
    print_result({"source": source, **_totals(exported.rows), "moved": not copy}, as_json, title="exported")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A file of export.")],
    store: Store,
    as_json: Json = False,
) -> None:
    """Read a file of `cuesqueue export` into a store, all or nothing; running it again changes nothing.

    The store is created if there is none. A source of the same name may not be in it. Checkpoints of the source's
    pipelines go on with this store.
    """
    import shard_store
    from queue_source.admin.moving import check, import_file

    check(file)  # before a store is created
    with shard_store.open_store(store) as target, _bar(not as_json) as advance:
        imported = import_file(target, file, progress=advance)
    print_result(
        {"source": imported.source, **_totals(imported.rows), "already": imported.already}, as_json, title="imported"
    )


def _totals(rows: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix("cuesqueue_"): number for name, number in rows.items()}


@contextmanager
def _bar(visible: bool) -> Iterator[Progress]:
    """Show a progress bar, whose length is known with the first page."""
    with ExitStack() as opened:
        bars: list[Callable[[int], None]] = []

        def advance(done: int, all_rows: int) -> None:
            if not bars:
                bars.append(opened.enter_context(progress("rows", all_rows, visible)))
            bars[0](done)

        yield advance
