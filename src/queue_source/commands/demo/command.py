"""`cuesqueue demo`: a year of flights through three queues, killed in the middle, and a proof of every row."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queue_source.commands.demo.report import Tour, by_pipeline, print_commands, tell
from queue_source.commands.output import FAILED, Json, print_error, stderr

if TYPE_CHECKING:
    from queue_source.commands.demo.data import Layout

_KILL_AFTER = 0.25  # of the objects finished, by batches of every pipeline
_KILL_AT_LAST = 0.6
_INTERRUPTED = 128


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the store and the files, and print commands to look at them.")
    ] = False,
    days: Annotated[
        int, typer.Option(min=12, max=365, metavar="N", help="Take this many days of the year, spread over it.")
    ] = 365,
    as_json: Json = False,
) -> None:
    """Publish a year of flights exactly once: three queues, duplicates, bad objects, and a kill -9 in the middle."""
    with _signals_as_exceptions():
        from queue_source.commands.demo.data import Layout

        layout = Layout(Path(tempfile.mkdtemp(prefix="cuesqueue-demo-")).resolve())
        kept = True  # for those who want to know why it failed
        try:
            tour = _tour(layout, days, as_json)
            kept = keep or not tour.proved
        except (KeyboardInterrupt, _Ended) as stopped:
            kept = False
            number = signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else stopped.number
            stderr().print("stopped; everything that was started is ended, and its files are removed")
            raise typer.Exit(_INTERRUPTED + number) from None
        except Exception:
            stderr().print(f"Spark's log is kept in {layout.log}", markup=False)
            raise
        finally:
            if not kept:
                shutil.rmtree(layout.folder, ignore_errors=True)
    tell(tour, layout, as_json)
    if not tour.proved:
        print_error(f"the published rows are not the input; everything is kept in {layout.folder}")
        raise typer.Exit(FAILED)
    if keep and not as_json:
        print_commands(layout)


def _tour(layout: Layout, days: int, as_json: bool) -> Tour:
    """Lay out, run, kill, run again, compare."""
    from queue_source.commands.demo import data as demo_data
    from queue_source.commands.demo import proof as demo_proof
    from queue_source.commands.demo import run as demo_run
    from queue_source.queues import open_queue
    from shard_store import open_store

    def say(text: str) -> None:
        if not as_json:
            stderr().print(text, markup=False)

    flights, chosen = demo_data.read_flights(), demo_data.choose_days(days)
    say(f"1. {days} days of flights become objects (csv, json lines, parquet), announced on three queues")
    tour = Tour(demo_data.lay_out(layout, flights, chosen))
    objects = sum(announced.distinct for announced in tour.announced.values())
    expected = demo_proof.only_days(demo_data.as_table(flights), chosen)
    tour.expected_rows, tour.days = expected.num_rows, len(chosen)

    with open_store(layout.store) as store:

        def in_the_middle(finished: int) -> bool:
            if finished < objects * _KILL_AFTER:
                return False
            attempts = by_pipeline(demo_run.rows_of(store, "attempts"))
            if len(attempts) < len(demo_data.MONTHS) or not demo_run.in_flight(store):
                return False
            # best when a task has written its file and nobody has published it; else whatever is under way
            return finished > objects * _KILL_AT_LAST or bool(demo_run.unpublished_files(layout, store))

        with _progress(objects, as_json) as progress:
            say("2. three streaming queries publish them ...")
            with demo_run.running(layout) as process:
                if not demo_run.watch(store, process, progress, in_the_middle):
                    raise RuntimeError("the first run ended before it could be killed; report this as a bug")
                tour.killed = demo_run.kill_session(process)
            say(f"3. ... until kill -9 ends all {tour.killed} processes; they are started again ...")
            shards = demo_run.rows_of(store, "shards")
            tour.finished_before = by_pipeline(shard for shard in shards if shard["state"] == "done")
            tour.attempts_before = by_pipeline(demo_run.rows_of(store, "attempts"))
            tour.interrupted = demo_run.in_flight(store)
            tour.orphans = len(demo_run.unpublished_files(layout, store))
            for pipeline in demo_data.MONTHS:
                with open_queue(layout.queue(pipeline)) as queue:
                    tour.in_flight[pipeline] = queue.depth().in_flight
            with demo_run.running(layout) as process:
                demo_run.watch(store, process, progress)
        say("4. ... until the queues are empty. Now every row is compared with the input")
        shards = demo_run.rows_of(store, "shards")
        splits = demo_run.rows_of(store, "splits")
        errors = demo_run.rows_of(store, "errors")
        tour.attempts = by_pipeline(demo_run.rows_of(store, "attempts"))
    tour.shards = by_pipeline(shards)
    tour.published = by_pipeline(shard for shard in shards if shard["state"] == "done")
    tour.errors = [(str(e["pipeline"]), str(e["cause"]), str(e["detail"])) for e in errors if e["final"]]
    for split in splits:
        pipeline, rows = str(split["pipeline"]), split["rows"]
        assert isinstance(rows, int)
        tour.rows[pipeline] = tour.rows.get(pipeline, 0) + rows
    for pipeline in demo_data.MONTHS:
        with open_queue(layout.queue(pipeline)) as queue:
            tour.left[pipeline] = queue.depth().total
    published = demo_proof.read_splits([str(split["path"]) for split in splits], expected.schema)
    tour.wrong_days = demo_proof.days_that_differ(expected, published)
    tour.seconds = time.monotonic() - tour.started
    return tour


@contextmanager
def _progress(objects: int, as_json: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal: objects finished of all; it stays the same over the crash."""
    if as_json or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("objects published"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task("", total=objects)
        yield lambda count: bar.update(task, completed=count)


class _Ended(BaseException):
    """A signal asks the command to end; `number` is which."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, with everything tidied up; afterwards all is as before."""

    def handle(number: int, frame: object) -> None:
        raise _Ended(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
