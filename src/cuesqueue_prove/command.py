"""`cuesqueue prove`: kills a user's own job at every named step, and tells whether its sink holds each row once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from queue_source.commands.output import Json, print_result, stderr


def prove(
    job: Annotated[Path, typer.Argument(metavar="JOB.py", help="The job's script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENT...]", help="Arguments of the script.")
    ] = None,
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help=("A file as the job reads them, whose copies are its input. May be repeated. Required."),
        ),
    ] = None,
    result: Annotated[
        str,
        typer.Option(
            metavar="SQL|FILE.py:FUNCTION",
            help="Reads a result that is not in files: a SELECT, or a function that returns rows.",
        ),
    ] = "",
    result_url: Annotated[str, typer.Option(metavar="URL", help="Database of the SELECT; else the store's.")] = "",
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column that differs in each run; may be repeated.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="COLUMN", help="Column that is made unique; else one is chosen.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Tag of the messages.")] = "",
    objects: Annotated[int, typer.Option(min=1, help="Objects for each queue.")] = 12,
    batch: Annotated[int, typer.Option(min=1, help="Objects in a micro-batch, at most.")] = 2,
    step: Annotated[
        list[str] | None, typer.Option(metavar="STEP", help="Kill at this step alone; may be repeated.")
    ] = None,
    random_kills: Annotated[int, typer.Option("--random", min=0, help="Kills at random moments.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Repeats the random moments.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Kill only at the steps at which most mistakes show.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A machine that the job may connect to; may be repeated.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long a start may take.")] = 300.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of the runs, and say where.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a job at every step of a micro-batch, and compare what its sink holds. Touches nothing real."""
    from cuesqueue_prove.proof import prover  # late: it imports Spark
    from cuesqueue_prove.results import Rule

    with _progress(visible=not as_json) as report:
        proof = prover(
            job,
            list(sample or []),
            objects=objects,
            batch=batch,
            key=key,
            tag=tag,
            allowed=allow or [],
            arguments=arguments or [],
            rule=Rule.of(result, result_url, ignore or []),
            random_kills=random_kills,
            steps=step or [],
            fast=fast,
            seconds=timeout,
            report=report,
            seed=seed,
        ).run(keep=keep)
    if as_json:
        print_result(proof.as_dict(), as_json, title="proof")
    else:
        typer.echo(str(proof))
        if proof.folder:
            typer.echo(f"the runs are in {proof.folder}", err=True)
    if not proof:
        raise typer.Exit(1)


@contextmanager
def _progress(*, visible: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show which run is going on, on a terminal."""
    if not visible or not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("starts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    times = (TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn())
    with Progress(*columns, *times, console=stderr(), transient=True) as bar:
        task = bar.add_task("without a kill", total=None)

        def report(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield report
