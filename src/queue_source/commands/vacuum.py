"""`cuesqueue vacuum`: removes split files and staged messages that no transaction has published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import DryRun, Json, Store, print_result, progress


def vacuum(
    store: Store,
    path: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Folder of the data files, as the sink's option path; without it only staged messages are removed.",
        ),
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="D", help="What is younger stays; choose a time longer than any micro-batch takes.")
    ] = "2 days",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove what was never published: files in the sink's folder, and messages staged in the store's database."""
    age = duration_of("--older-than", older_than)
    import shard_store
    from queue_source.admin import vacuum as vacuuming
    from queue_source.admin import vacuum_staged as staging

    counts: dict[str, int] = {}
    with shard_store.open_store(store, create=False) as opened:
        if path is not None:
            folder = path if "://" in path else str(Path(path).absolute())
            with progress("files", None, not as_json) as advance:
                files = vacuuming.vacuum(opened, folder, older_than=age, dry_run=dry_run, progress=advance)
            counts = {
                "files": files.found,
                "published": files.published,
                "too_young": files.young,
                "removed": files.removed,
                "bytes": files.bytes,
            }
        messages = staging.vacuum_staged(opened, older_than=age, dry_run=dry_run)
    counts |= {"staged_messages": messages.found, "staged_removed": messages.removed}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be removed" if dry_run else "vacuum")
