"""`cuesqueue demo`: a year of flights through three queues, killed in the middle, and a proof of every row."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuesqueue_demo.report import Tour, print_report
from queue_source.commands.output import FAILED, Json, Stopped, print_error, progress, tell

if TYPE_CHECKING:
    from cuesqueue_demo.data import Layout

_KILL_AFTER = 0.25  # part of the objects that is finished, by batches of every pipeline
_KILL_AT_LAST = 0.6


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the store and the files, and print commands to look at them.")
    ] = False,
    days: Annotated[
        int, typer.Option(min=12, max=365, metavar="N", help="Take this many days of the year, spread over it.")
    ] = 365,
    as_json: Json = False,
) -> None:
    """Publish a year of flights exactly once: three queues, duplicates, lost notifications, bad objects, a kill -9."""
    from cuesqueue_demo.data import Layout

    layout = Layout(Path(tempfile.mkdtemp(prefix="cuesqueue-demo-")).resolve())
    kept = True  # to find out why it failed
    try:
        tour = _tour(layout, days, as_json)
        kept = keep or bool(tour.problems)
    except Stopped:
        kept = False
        tell("everything that was started is ended, and its files are removed")
        raise
    except Exception:
        tell(f"Spark's log is kept in {layout.log}")
        raise
    finally:
        if not kept:
            shutil.rmtree(layout.folder, ignore_errors=True)
    print_report(tour, layout, keep, as_json)
    if tour.problems:
        print_error(f"the published rows are not the input; everything is kept in {layout.folder}")
        raise typer.Exit(FAILED)


def _tour(layout: Layout, days: int, as_json: bool) -> Tour:
    """Write the objects, run, kill, run again, compare, certify."""
    from cuesqueue_demo import data as demo_data
    from cuesqueue_demo import proof as demo_proof
    from cuesqueue_demo import run as demo_run
    from shard_store import open_store

    def say(text: str) -> None:
        if not as_json:
            tell(text)

    started = time.monotonic()
    flights, chosen = demo_data.read_flights(), demo_data.choose_days(days)
    say(f"1. {days} days of flights become objects (csv, json lines, parquet); three queues announce nine of ten")
    announced = demo_data.lay_out(layout, flights, chosen)
    expected = demo_proof.only_days(demo_data.as_table(flights), chosen)
    objects = sum(what.distinct + len(what.lost) for what in announced.values())

    with open_store(layout.store) as store, progress("objects finished", objects, not as_json) as advance:

        def in_the_middle(finished: int) -> bool:
            if finished < objects * _KILL_AFTER or not demo_run.all_have_published(store):
                return False
            # best when a task has written a file that is not published yet; else at any point of a batch
            late = finished > objects * _KILL_AT_LAST
            return bool(demo_run.interrupted(store)) and (late or demo_run.unpublished_files(layout, store) > 0)

        say("2. three streaming queries publish their rows ...")
        with demo_run.running(layout) as process:
            killed = 0
            while not killed:
                if not demo_run.watch(store, process, advance, in_the_middle):
                    raise RuntimeError("the first run ended before it could be killed; report this as a bug")
                killed = demo_run.kill_session(process, lambda: bool(demo_run.interrupted(store)))
        say(f"3. ... until kill -9 ends all {killed} processes. They are started again, with backfill ...")
        interrupted, orphans = demo_run.interrupted(store), demo_run.unpublished_files(layout, store)
        before = demo_run.moment(layout, store)
        with demo_run.running(layout, "--backfill") as process:
            demo_run.watch(store, process, advance)
        say(
            "4. ... until the queues are empty and listing has found the rest. Now every row is compared with the input"
        )
        after = demo_run.moment(layout, store)
        certificates = demo_proof.certify(layout, store)
    published = demo_proof.read_splits(after.files, expected.schema)
    return Tour(
        announced,
        before,
        after,
        days=len(chosen),
        expected_rows=expected.num_rows,
        wrong_days=demo_proof.days_that_differ(expected, published),
        killed=killed,
        interrupted=interrupted,
        orphans=orphans,
        certificates=certificates,
        seconds=time.monotonic() - started,
    )
