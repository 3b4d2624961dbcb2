"""What `cuesqueue demo` tells at its end: the table, the proof, and with `--keep` what to paste next."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from queue_source.commands.output import print_result

if TYPE_CHECKING:
    from rich.table import Table

    from queue_source.commands.demo.data import Announced, Layout


@dataclass(slots=True)
class Tour:
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


def by_pipeline(rows: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """How many of the rows each pipeline has."""
    counts: dict[str, int] = {}
    for row in rows:
        pipeline = str(row["pipeline"])
        counts[pipeline] = counts.get(pipeline, 0) + 1
    return counts


def _lines(tour: Tour) -> Iterator[tuple[str, dict[str, int]]]:
    """The lines of the table: what, and how much by pipeline."""
    announced = tour.announced

    def of(name: str) -> dict[str, int]:
        return {pipeline: getattr(what, name) for pipeline, what in announced.items()}

    def minus(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        return {pipeline: first.get(pipeline, 0) - second.get(pipeline, 0) for pipeline in announced}

    quarantined = by_pipeline({"pipeline": pipeline} for pipeline, _, _ in tour.errors)
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


def tell(tour: Tour, layout: Layout, as_json: bool) -> None:
    """Print the table, the proof and what is wrong, if anything is."""
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


def _table(tour: Tour) -> Table:
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


def print_commands(layout: Layout) -> None:
    """What to paste next: this very Python, whatever is on the path of the reader's shell."""
    from rich.console import Console

    python, folder = shlex.quote(sys.executable), shlex.quote(str(layout.folder))
    store, queue = shlex.quote(layout.store), shlex.quote(layout.queue("csv"))
    again = shlex.quote(f"{layout.objects}csv/2013-01-01.csv")
    program = f"{python} -m queue_source.commands.main"
    show = "import sys, shard_store as s; [print(*r) for p in s.open_store(sys.argv[1]).pages('{}') for r in p]"
    lines = (
        ("the micro-batches that were published, and what was quarantined", ""),
        ("", f"{python} -c {shlex.quote(show.format('attempts'))} {store}"),
        ("", f"{python} -c {shlex.quote(show.format('errors'))} {store}"),
        ("announce an object once more, and run the queries again: nothing is published twice", ""),
        ("", f"{program} send {queue} {again}"),
        ("", f"PYSPARK_PYTHON={python} {python} -m queue_source.commands.demo.query {folder}"),
        ("what a scheduled prune would forget", ""),
        ("", f"{program} prune --store {store} --dry-run"),
        ("the end", ""),
        ("", f"rm -r {folder}"),
    )
    console = Console(highlight=False, soft_wrap=True)
    for comment, command in lines:
        console.print(f"# {comment}" if comment else command, markup=False)
