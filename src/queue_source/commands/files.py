"""`cuesqueue files`: what the sink with `path` has published, for programs that read Parquet without Spark."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from queue_source.commands.output import Store, tell

if TYPE_CHECKING:
    from queue_source.spark.published import PublishedFile


def files(
    store: Store,
    pipeline: Annotated[str | None, typer.Option(metavar="P", help="Only this pipeline.")] = None,
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source.")] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was published at this time (UTC).")
    ] = None,
    as_of_attempt: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="Only what was published by this attempt and those before it: its delivery_hash."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON object a line: path, rows, bytes, published_at, delivery_hash, source and pipeline.",
        ),
    ] = False,
) -> None:
    """List the Parquet files that the sink with path has published: one path a line, in the order of publication.

    The list is one state of the store: it has all files of a publish or none, and what is published meanwhile is not
    in it. Without any file nothing is printed, and the exit code is 0.
    """
    import shard_store
    from queue_source.spark.published import published

    with shard_store.open_store(store, create=False) as opened:
        state = published(opened, pipeline=pipeline, source=source, as_of=as_of, as_of_attempt=as_of_attempt)
        empty = True
        try:
            for file in state.files():
                empty = False
                sys.stdout.write(_as_json(file) if as_json else f"{file.path}\n")
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough; what is still in the buffer must not fail at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if empty:
        tell("no such file is published; `cuesqueue status` shows the pipelines of the store")


def _as_json(file: PublishedFile) -> str:
    fields = {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "published_at": file.published_at.isoformat(timespec="microseconds"),
        "delivery_hash": file.delivery_hash,
        "source": file.source,
        "pipeline": file.pipeline,
    }
    return json.dumps(fields).replace("\x7f", "\\u007f") + "\n"
