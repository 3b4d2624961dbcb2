"""`cuesqueue demo`: a year of flights through three queues, killed in the middle, and the proof that nothing is lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import FAILED, Json, print_error, print_result, stderr

if TYPE_CHECKING:
    from rich.table import Table

    from queue_source.commands.demo_data import Announced, Layout

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
        from queue_source.commands.demo_data import Layout

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
    _tell(tour, layout, as_json)
    if not tour.proved:
        print_error(f"the published rows are not the input; everything is kept in {layout.folder}")
        raise typer.Exit(FAILED)
    if keep and not as_json:
        _print_commands(layout)


@dataclass(slots=True)
class _Tour:
    """What happened. By pipeline, where it is a dict."""

    announced: Mapping[str, Announced]
    started: float = field(default_factory=time.monotonic)
    finished_before: dict[str, int] = field(default_factory=dict)
    attempts_before: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)  # messages that were leased when the power went
    interrupted: list[str] = field(default_factory=list)  # pipelines with a planned, unpublished micro-batch
    killed: int = 0
    published: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, str, str]] = field(default_factory=list)  # pipeline, cause, detail
    left: dict[str, int] = field(default_factory=dict)
    orphans: int = 0
    expected_rows: int = 0
    days: int = 0
    wrong_days: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """What is not as it has to be; none: the proof holds."""
        found = [f"day {day // 100}-{day % 100} differs" for day in self.wrong_days]
        if sum(self.rows.values()) != self.expected_rows:
            found.append(f"{sum(self.rows.values())} rows published of {self.expected_rows}")
        for pipeline, announced in self.announced.items():
            causes = sorted(cause for name, cause, _ in self.errors if name == pipeline)
            if self.published[pipeline] != announced.objects:
                found.append(f"{pipeline}: {self.published[pipeline]} objects published of {announced.objects}")
            if self.left[pipeline]:
                found.append(f"{pipeline}: {self.left[pipeline]} messages left in the queue")
            if causes != sorted(announced.bad):
                found.append(f"{pipeline}: the error table holds {causes}, not {sorted(announced.bad)}")
        return found

    @property
    def proved(self) -> bool:
        return not self.problems


def _tour(layout: Layout, days: int, as_json: bool) -> _Tour:
    """Lay out, run, kill, run again, compare."""
    from queue_source.commands import demo_data, demo_proof, demo_run
    from queue_source.queues import open_queue
    from shard_store import open_store

    say = (lambda text: None) if as_json else stderr().print
    flights, chosen = demo_data.read_flights(), demo_data.choose_days(days)
    say(f"1. {days} days of flights become objects (csv, json lines, parquet), announced on three queues")
    tour = _Tour(demo_data.lay_out(layout, flights, chosen))
    objects = sum(announced.distinct for announced in tour.announced.values())
    expected = demo_proof.only_days(demo_data.as_table(flights), chosen)
    tour.expected_rows, tour.days = expected.num_rows, len(chosen)

    with open_store(layout.store) as store:

        def in_the_middle(finished: int) -> bool:
            if finished < objects * _KILL_AFTER:
                return False
            attempts = _by_pipeline(demo_run.rows_of(store, "attempts"))
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
            tour.finished_before = _by_pipeline(shard for shard in shards if shard["state"] == "done")
            tour.attempts_before = _by_pipeline(demo_run.rows_of(store, "attempts"))
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
        tour.attempts = _by_pipeline(demo_run.rows_of(store, "attempts"))
    tour.shards = _by_pipeline(shards)
    tour.published = _by_pipeline(shard for shard in shards if shard["state"] == "done")
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


def _by_pipeline(rows: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["pipeline"]] = counts.get(row["pipeline"], 0) + 1
    return counts


def _lines(tour: _Tour) -> Iterator[tuple[str, dict[str, int]]]:
    """The lines of the table: what, and how much by pipeline."""
    announced = tour.announced

    def of(name: str) -> dict[str, int]:
        return {pipeline: getattr(what, name) for pipeline, what in announced.items()}

    def minus(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        return {pipeline: first.get(pipeline, 0) - second.get(pipeline, 0) for pipeline in announced}

    quarantined = _by_pipeline({"pipeline": pipeline} for pipeline, _, _ in tour.errors)
    yield "messages sent", of("messages")
    yield "messages left at the end", tour.left
    yield "messages leased at the kill", tour.in_flight
    yield "messages that announce nothing", of("ignored")
    yield "objects announced", of("announcements")
    yield "duplicates dropped", minus(of("announcements"), tour.shards)
    yield "quarantined", quarantined
    yield "objects published before the kill", tour.finished_before
    yield "objects published after the kill", minus(tour.published, tour.finished_before)
    yield "attempts before the kill", tour.attempts_before
    yield "attempts after the kill", minus(tour.attempts, tour.attempts_before)
    yield "rows published", tour.rows


def _tell(tour: _Tour, layout: Layout, as_json: bool) -> None:
    if as_json:
        result = {name: dict(by_pipeline) for name, by_pipeline in _lines(tour)}
        quarantined = [{"pipeline": pipeline, "cause": cause} for pipeline, cause, _ in tour.errors]
        proof = {"days": tour.days, "days_equal": tour.days - len(tour.wrong_days), "problems": tour.problems}
        more = {"processes_killed": tour.killed, "interrupted": tour.interrupted, "folder": str(layout.folder)}
        print_result(
            {**result, "quarantined": quarantined, **proof, **more, "seconds": round(tour.seconds, 1)},
            True,
            title="demo",
        )
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(tour))
    for pipeline, cause, detail in tour.errors:
        console.print(f"  quarantined from {pipeline}: {cause}: {_short(detail, layout)}", markup=False)
    interrupted = ", ".join(tour.interrupted) or "no pipeline"
    console.print(
        f"  killed: {tour.killed} processes, in the middle of a micro-batch of {interrupted}; "
        f"{tour.orphans} data files stayed behind that no reader ever sees",
    )
    right = tour.days - len(tour.wrong_days)
    color = "green" if tour.proved else "red"
    console.print(
        f"[{color}]proof: {sum(tour.rows.values()):,} rows published, {tour.expected_rows:,} in the input; "
        f"{right} of {tour.days} days are equal row by row[/{color}]  ({tour.seconds:.0f} s)"
    )
    for problem in tour.problems[:20]:
        console.print(f"  {problem}", markup=False, style="red")


def _table(tour: _Tour) -> Table:
    from rich.table import Table

    table = Table(title="a year of flights, exactly once", title_justify="left")
    table.add_column("")
    for pipeline in (*tour.announced, "all"):
        table.add_column(pipeline, justify="right")
    for name, counts in _lines(tour):
        table.add_row(
            name, *(f"{counts.get(pipeline, 0):,}" for pipeline in tour.announced), f"{sum(counts.values()):,}"
        )
    return table


def _short(detail: str, layout: Layout) -> str:
    return detail.replace(str(layout.folder), "...")[:110]


def _print_commands(layout: Layout) -> None:
    """What to paste next: this very Python, whatever is on the path of the reader's shell."""
    from rich.console import Console

    python, folder = shlex.quote(sys.executable), shlex.quote(str(layout.folder))
    store, queue = shlex.quote(layout.store), shlex.quote(layout.queue("csv"))
    again = shlex.quote(f"{layout.objects}csv/2013-01-01.csv")
    program = f"{python} -m queue_source.commands.main"
    show = "from shard_store import open_store as s; [print(r) for p in s(__import__('sys').argv[1]).pages('{}') for r in p]"
    lines = (
        ("the micro-batches that were published, and what was quarantined", ""),
        ("", f"{python} -c {shlex.quote(show.format('attempts'))} {store}"),
        ("", f"{python} -c {shlex.quote(show.format('errors'))} {store}"),
        ("announce an object once more, and run the queries again: nothing is published twice", ""),
        ("", f"{program} publish {queue} {again}"),
        ("", f"PYSPARK_PYTHON={python} {python} -m queue_source.commands.demo_query {folder}"),
        ("what a scheduled prune would forget", ""),
        ("", f"{program} prune --store {store} --dry-run"),
        ("the end", ""),
        ("", f"rm -r {folder}"),
    )
    console = Console(highlight=False, soft_wrap=True)
    for comment, command in lines:
        console.print(f"# {comment}" if comment else command, markup=False)


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
    """SIGTERM and SIGHUP end the command as Ctrl-C does, with everything tidied up; afterwards they mean what they did."""

    def handle(number: int, frame: object) -> None:
        raise _Ended(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
