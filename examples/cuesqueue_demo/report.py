"""The output of `cuesqueue demo` at its end: the table, the proof, and with `--keep` the next commands."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from queue_source.commands.output import print_result

if TYPE_CHECKING:
    from cuesqueue_demo.data import Announced, Layout

Counts = Mapping[str, int]
"""By pipeline."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The content of the store and the queues at one moment."""

    published: Counter[str] = field(default_factory=Counter)  # objects
    names: frozenset[str] = frozenset()  # their URIs
    shards: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    leased: Counter[str] = field(default_factory=Counter)  # messages that a reader holds
    left: Counter[str] = field(default_factory=Counter)  # messages in the queue
    errors: tuple[tuple[str, str, str], ...] = ()  # pipeline, cause, detail
    files: tuple[str, ...] = ()  # published files


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of `cuesqueue reconcile --certify` for the folder of one pipeline; `says` is it in words."""

    number: int
    counts: Counts  # by category
    says: str


@dataclass(frozen=True, slots=True)
class Tour:
    """The course of the demo, with the state at the kill (`before`) and at the end (`after`)."""

    announced: Mapping[str, Announced]
    before: Moment
    after: Moment
    days: int
    expected_rows: int
    wrong_days: list[int]
    killed: int = 0  # processes
    interrupted: list[str] = field(default_factory=list)  # pipelines with a planned, unpublished micro-batch
    orphans: int = 0
    certificates: Mapping[str, Certificate] = field(default_factory=dict)  # by pipeline
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return sum(self.after.rows.values())

    @property
    def problems(self) -> list[str]:
        """What differs from the expected result; if nothing does, the proof holds."""
        differences = [f"day {day // 100}-{day % 100} differs" for day in self.wrong_days]
        if self.rows != self.expected_rows:
            differences.append(f"{self.rows} rows published of {self.expected_rows}")
        for pipeline, announced in self.announced.items():
            causes = sorted(cause for name, cause, _ in self.after.errors if name == pipeline)
            if self.after.published[pipeline] != announced.objects:
                differences.append(
                    f"{pipeline}: {self.after.published[pipeline]} objects published of {announced.objects}"
                )
            if self.after.left[pipeline]:
                differences.append(f"{pipeline}: {self.after.left[pipeline]} messages left in the queue")
            if causes != sorted(announced.bad):
                differences.append(f"{pipeline}: the error table holds {causes}, not {sorted(announced.bad)}")
            differences += self._not_certified(pipeline, announced)
        return differences

    def found_by_listing(self, pipeline: str) -> int:
        """Count the objects that are published although no message announces them."""
        return len(self.after.names.intersection(self.announced[pipeline].lost))

    def _not_certified(self, pipeline: str, announced: Announced) -> Iterator[str]:
        """Yield a sentence where a readable object is not published, or an unreadable one not quarantined."""
        counts = self.certificates[pipeline].counts if pipeline in self.certificates else {}
        others = sum(counts.values()) - counts.get("published", 0)
        if counts.get("published") != announced.objects or others != announced.bad.count("corrupt-object"):
            yield f"{pipeline}: the certificate says {dict(counts)}, and there are {announced.objects} objects"


def _lines(tour: Tour) -> Iterator[tuple[str, Counts]]:
    """Yield the lines of the table: what is counted, and how often."""
    before, after = tour.before, tour.after

    def of(name: str) -> Counter[str]:
        return Counter({pipeline: getattr(what, name) for pipeline, what in tour.announced.items()})

    yield "messages sent", of("messages")
    yield "messages left at the end", after.left
    yield "messages held by readers at the kill", before.leased
    yield "messages that announce nothing", of("ignored")
    yield "announcements of objects", of("announcements")
    yield "duplicates dropped", of("announcements") - of("distinct")
    yield "objects that no message announces", Counter({name: len(what.lost) for name, what in tour.announced.items()})
    yield (
        "of these found by listing and published",
        Counter({name: tour.found_by_listing(name) for name in tour.announced}),
    )
    yield "quarantined", Counter(pipeline for pipeline, _, _ in after.errors)
    yield "objects published before the kill", before.published
    yield "objects published after the kill", after.published - before.published
    yield "micro-batches before the kill", before.attempts
    yield "micro-batches after the kill", after.attempts - before.attempts
    yield "rows published", after.rows


def print_report(tour: Tour, layout: Layout, keep: bool, as_json: bool) -> None:
    """Print the table, the proof and the differences, if there are any; with `keep` also the next commands."""
    right = tour.days - len(tour.wrong_days)
    if as_json:
        result = {
            name: {pipeline: counts.get(pipeline, 0) for pipeline in tour.announced} for name, counts in _lines(tour)
        }
        quarantined = [{"pipeline": pipeline, "cause": cause} for pipeline, cause, _ in tour.after.errors]
        proof = {"days": tour.days, "days_equal": right, "problems": tour.problems}
        written = [
            {"pipeline": pipeline, "certificate": certificate.number, "says": certificate.says}
            for pipeline, certificate in tour.certificates.items()
        ]
        more = {
            "certificates": written,
            "processes_killed": tour.killed,
            "interrupted": tour.interrupted,
            "folder": str(layout.folder),
        }
        seconds = {"seconds": round(tour.seconds, 1)}
        commands = {"commands": _commands(layout)} if keep else {}
        print_result({**result, "quarantined": quarantined, **proof, **more, **seconds, **commands}, True, title="demo")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", title="a year of flights, exactly once", title_justify="left")
    for pipeline in (*tour.announced, "all"):
        table.add_column(pipeline, justify="right")
    for name, counts in _lines(tour):
        each = [counts.get(pipeline, 0) for pipeline in tour.announced]
        table.add_row(name, *(f"{count:,}" for count in (*each, sum(each))))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for pipeline, cause, detail in tour.after.errors:
        short = detail.replace(str(layout.folder), "...")[:110]
        console.print(f"  quarantined from {pipeline}: {cause}: {short}", markup=False)
    console.print(
        f"  killed: {tour.killed} processes, in the middle of a micro-batch of {', '.join(tour.interrupted)}; "
        f"unpublished data files left behind, which no reader ever sees: {tour.orphans}"
    )
    color = "red" if tour.problems else "green"
    console.print(
        f"[{color}]proof: {tour.rows:,} rows published, {tour.expected_rows:,} in the input; "
        f"{right} of {tour.days} days are equal row by row[/{color}]  ({tour.seconds:.0f} s)"
    )
    for certificate in tour.certificates.values():
        said = certificate.says.replace(str(layout.folder), "...")
        console.print(f"certificate {certificate.number}: {said}", markup=False, style=color)
    for problem in tour.problems[:20]:
        console.print(f"  {problem}", markup=False, style="red")
    for line in _commands(layout) if keep and not tour.problems else ():
        console.print(line, markup=False)


def _commands(layout: Layout) -> tuple[str, ...]:
    """Return the next commands, with this very Python, whatever is on the path of the user's shell."""
    python, folder = shlex.quote(sys.executable), shlex.quote(str(layout.folder))
    store, queue = shlex.quote(layout.store), shlex.quote(layout.queue("csv"))
    again = shlex.quote(f"{layout.objects}csv/2013-01-01.csv")
    program = f"{python} -m queue_source.commands.main"
    show = "import sys, shard_store as s; [print(*r) for p in s.open_store(sys.argv[1]).pages('{}') for r in p]"
    return (
        "# the micro-batches that were published, and what was quarantined",
        f"{python} -c {shlex.quote(show.format('attempts'))} {store}",
        f"{program} errors list --store {store}",
        "# announce an object once more, and run the queries again: nothing is published twice",
        f"{program} send {queue} {again}",
        f"PYSPARK_PYTHON={python} {python} -m cuesqueue_demo.query {folder}",
        "# compare the folder with its certificate once more: the same numbers",
        f"{program} reconcile --certificate 1 --store {store}",
        "# what a scheduled prune would remove",
        f"{program} prune --store {store} --dry-run",
        "# remove everything that this demo made",
        f"rm -r {folder}",
    )
