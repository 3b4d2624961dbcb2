"""Relation (a): what Spark's own reader reads, cell by cell, but for what is meant to differ (`differences.py`).

To read one object costs Spark 100 ms, whatever is in it: the objects of a scheme are read in one job,
and the candidates
of a step of shrinking, too. So Hypothesis draws, and `shrink.py` makes small.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queue_source.schema.columns import format_columns
from queue_source.spark.process import arrow_schema
from support.oracle import cases
from support.oracle.cases import TYPED, Case
from support.oracle.counting import Draw, one_of_these, reached
from support.oracle.differences import excuse
from support.oracle.differs import Differs
from support.oracle.results import Result
from support.oracle.rows import Broken, Found, cells, read, refused
from support.oracle.shrink import shrunk
from support.oracle.typed import MARKED, Made, NotWritten
from support.parity import parsed

NAME = "as-spark"
NOT_SPARKS = ("rescuedDataColumn", "readerCaseSensitive", "recordsPath")
"""Options that Spark's own readers lack."""
AT_ONCE = 40
"""Objects of a scheme that are read in one job."""
_NAMES = {"avro": "org.apache.spark.sql.avro.AvroFileFormat"}  # which has no short name where Avro is not added
FORMATS: tuple[str, ...] = ("csv", "csv", "csv", "json", "json", "json", "text", "parquet", "orc", "avro")
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # many files a task, and none in two
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": "1",
}
_FILE = "__file"
_OF_ALL = ("requirement failed", "CHARSET")
"""What Spark says of options that it refuses, whatever is in an object."""

_UNASKED = "QUERY_ONLY_CORRUPT_RECORD_COLUMN"
"""What Spark says where a header has none of the declared columns, so that nothing else is asked for."""


@dataclass
class Reader:
    """Spark's own reader."""

    session: SparkSession
    folder: Path
    numbers: count[int]
    before: dict[str, str | None]
    files: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, session: SparkSession) -> Reader:
        before = {name: session.conf.get(name, None) for name in _SETTINGS}
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        return cls(session, Path(tempfile.mkdtemp(prefix="oracle-")), count(), before)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, value in self.before.items():
            self.session.conf.unset(name) if value is None else self.session.conf.set(name, value)

    def read(self, some: Sequence[Case], *, by_name: bool = True) -> list[Found]:
        """Read objects of one scheme, in one job; those of a job that fails by halves.

        `by_name`: the columns of csv with a header are declared in the header's order.
        """
        if not some:
            return []
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        for number, case in enumerate(some):
            (folder / f"{number:05}").write_bytes(case.bytes)
        try:
            table = self._frame(some[0], folder, by_name).toArrow()
        except (PySparkException, Py4JError) as error:
            if len(some) > 1 and not any(word in str(error) for word in _OF_ALL):
                middle = len(some) // 2
                return self.read(some[:middle], by_name=by_name) + self.read(some[middle:], by_name=by_name)
            return [Found(failure="failed", detail=_first_line(error))] * len(some)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        names = [Path(name).name for name in table.column(table.num_columns - 1).to_pylist()]
        data = table.select(range(table.num_columns - 1))
        columns: list[list[str]] = [cells(column) for column in data.columns]
        rows = [*zip(*columns, strict=True)]
        found: dict[str, list[tuple[str, ...]]] = {f"{number:05}": [] for number in range(len(some))}
        for name, row in zip(names, rows, strict=True):
            found[name].append(row)
        return [Found(tuple(some_rows)) for some_rows in found.values()]

    def written(self, made: Made, file_format: str) -> bytes:
        """A file that Spark writes of these rows. Raises NotWritten."""
        key = f"{file_format} {made!r}"
        if key not in self.files:
            self.files[key] = self._written(made, file_format)
        return self.files[key]

    def _written(self, made: Made, file_format: str) -> bytes:
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        if made.writer == "parquet-mr":
            return self._marked(made, folder / "rows.parquet")
        pq.write_table(made.table, folder / "rows.parquet")
        for name, value in made.settings.items():
            self.session.conf.set(name, value)
        try:
            rows = self.session.read.parquet((folder / "rows.parquet").as_uri())
            rows.write.format(_NAMES.get(file_format, file_format)).save((folder / "out").as_uri())
            (file,) = (folder / "out").glob("part-*")
            return file.read_bytes()
        except (PySparkException, Py4JError) as error:
            raise NotWritten(_first_line(error)) from error
        finally:
            for name in made.settings:
                self.session.conf.unset(name)
            shutil.rmtree(folder)

    def _marked(self, made: Made, path: Path) -> bytes:
        """A file that Parquet's own writer makes of texts, each column marked as its name says."""
        assert self.session._jvm is not None
        java, names = self.session._jvm.org.apache, made.schema.names
        parquet = java.parquet
        columns = (f"optional {MARKED[name].format(name)};" for name in names)
        schema = parquet.schema.MessageTypeParser.parseMessageType(f"message rows {{ {' '.join(columns)} }}")
        file = java.hadoop.fs.Path(path.as_uri())
        writer = parquet.hadoop.example.ExampleParquetWriter.builder(file).withType(schema).build()
        groups = parquet.example.data.simple.SimpleGroupFactory(schema)
        for row in made.rows:
            group = groups.newGroup()
            for name, value in zip(names, row, strict=True):
                data = value.encode()
                data = data[:12].ljust(12) if "fixed" in MARKED[name] else data
                group.append(name, parquet.io.api.Binary.fromConstantByteArray(data))
            writer.write(group)
        writer.close()
        return path.read_bytes()

    def inferred(self, case: Case) -> list[tuple[str, pa.DataType]]:
        """The columns that Spark infers of an object; none where it refuses."""
        path = self.folder / f"{next(self.numbers)}.{case.file_format}"
        path.write_bytes(case.bytes)
        options = {"inferSchema": "true"} if case.file_format == "csv" else {}
        reader = self.session.read.format(_NAMES.get(case.file_format, case.file_format))
        try:
            schema = reader.options(**options, **case.options).load(path.as_uri()).schema
        except (PySparkException, Py4JError):
            return []
        finally:
            path.unlink()
        return [(column.name, column.type) for column in arrow_schema(schema)]

    def _frame(self, case: Case, folder: Path, by_name: bool) -> DataFrame:
        options = {name: value for name, value in case.options.items() if name not in NOT_SPARKS}
        declared = parsed(case.ddl or "")
        read_as, chosen = _by_header(case) if by_name else (case.schema, None)
        if chosen is not None:
            options["columnPruning"] = "false"  # else fields that nobody declares are not counted
        reader = self.session.read.format(_NAMES.get(case.file_format, case.file_format)).options(**options)
        frame = reader.schema(parsed(format_columns(read_as))).load(folder.as_uri())
        file = f.input_file_name().alias(_FILE)
        if chosen is None:
            return frame.select("*", file)
        columns = [
            (f.lit(None).cast(field.dataType) if name is None else f.col(_quoted(name))).alias(field.name)
            for field, name in zip(declared, chosen, strict=True)
        ]
        return frame.select(*columns, file)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def header_of(case: Case) -> list[str] | None:
    """The names of a csv header as a person would read them; None without one."""
    if case.file_format != "csv" or case.options.get("header") != "true":
        return None
    options = case.parsed
    text = case.bytes.decode(case.options.get("encoding", "UTF-8"), "replace").removeprefix("\ufeff")
    ends = [case.line_end] if case.line_end else ["\r\n", "\n", "\r"]
    for end in ends:
        text = text.replace(end, "\n")
    for line in text.split("\n"):
        if line.strip(" \t\0") and not (options.comment and line.startswith(options.comment)):
            return [name.strip(" \t").strip(options.quote or None).strip(" \t") for name in line.split(options.sep)]
    return []


def _by_header(case: Case) -> tuple[pa.Schema, list[str | None] | None]:
    """The columns as they are in the object, since Spark goes by position; and for each declared one its name there."""
    header = header_of(case)
    if header is None:
        return case.schema, None
    data = {field.name.strip().casefold(): field for field in case.data}
    read_as: list[pa.Field] = []
    for at, name in enumerate(header):
        known = data.pop(name.casefold(), None)
        read_as.append(pa.field(f"__{at}", pa.string()) if known is None else known)
    missing = {field.name for field in data.values()}
    read_as += [field for field in case.schema if field.name not in case.data.names]
    return pa.schema(read_as), [None if name in missing else name for name in case.schema.names]


def _first_line(error: Exception) -> str:
    text = str(error) if not isinstance(error, PySparkException) else (error.getCondition() or str(error))
    return f"{type(error).__name__}: {(text.strip().splitlines() or [''])[0][:200]}"


_READER: list[Reader] = []


def use(session: SparkSession) -> None:
    """Set the session whose reader is asked."""
    _READER[:] = [Reader.of(session)]


def the_reader() -> Reader:
    if not _READER:
        from support.engine.queries import build_session

        use(build_session("local[1]", {"spark.ui.showConsoleProgress": "false"}))  # which would stand before a finding
    return _READER[0]


def end() -> None:
    """Forget the session."""
    while _READER:
        _READER.pop().close()


def shown(case: Case) -> tuple[str, str]:
    """What Spark reads, and what is read here, for examples: rows, or in brackets why there are none.

    Of a case without declared columns: those that are inferred.
    """
    if case.ddl is None:
        from support.oracle import inferred

        sides = the_reader().inferred(case), inferred.here(case)
        theirs_, ours_ = (format_columns(pa.schema(side)) for side in sides)
        return theirs_, ours_
    problem = refused(case)
    (theirs,) = the_reader().read([case], by_name=False)
    ours = Found(failure="refused when the query starts") if problem else read(case)
    return as_text(theirs), as_text(ours)


def as_text(found: Found) -> str:
    return f"({found.failure})" if found.failure else " / ".join(", ".join(row) for row in found.rows) or "(no rows)"


def check(case: Case) -> None:
    """Compare one object. Raises Broken."""
    (broken,) = compared([case])
    if broken is not None:
        raise broken


def compared(some: Sequence[Case]) -> list[Broken | None]:
    """Compare objects of one scheme: what is broken with each."""
    if refused(some[0]):
        return [None] * len(some)
    alike: dict[object, list[int]] = {}
    for at, case in enumerate(some):
        alike.setdefault(tuple(header_of(case) or ()), []).append(at)
    found: list[Broken | None] = [None] * len(some)
    for places in alike.values():
        group = [some[at] for at in places]
        for at, case, theirs in zip(places, group, the_reader().read(group), strict=True):
            found[at] = _compared(case, theirs, read(case))
    return found


def _compared(case: Case, theirs: Found, ours: Found) -> Broken | None:
    if _UNASKED in theirs.detail:
        return None
    for differs in differing(case, theirs, ours):
        row = excuse(differs)
        if row is None:
            return Broken(
                NAME, case, differs.kind, f"Spark: {theirs}\n  here:\n{ours}\n{ours.bad or ''}\n{differs.shown}"
            )
        reached(f"difference: {row}")
    return None


def differing(case: Case, theirs: Found, ours: Found) -> list[Differs]:
    """All differences between two readings."""
    if theirs.failure and ours.failure:
        return []
    whole = Differs(case, theirs, ours, "object")
    if theirs.failure or ours.failure:
        return [whole]
    if len(theirs.rows) != len(ours.rows):
        return [replace(whole, what="rows")]
    return [
        Differs(case, theirs, ours, "cell", row, field, this, that)
        for row, (these, those) in enumerate(zip(theirs.rows, ours.rows, strict=True))
        for field, this, that in zip(case.schema, these, those, strict=True)
        if this != that
    ]


def written(some: list[Case]) -> list[Case]:
    """Those that their writer can write."""
    found = []
    for case in some:
        with suppress(NotWritten):
            found += [case] if case.bytes else []
    if not found:
        reject()
    return found


@st.composite
def groups(draw: Draw) -> list[Case]:
    """Draw objects of one scheme, with one header."""
    file_format = draw(one_of_these(FORMATS))
    if file_format in TYPED and draw(st.booleans()):
        return written(_by_spark(draw, cases.typed_files(draw, file_format, 3, "spark", NOT_SPARKS)))
    if file_format in TYPED:
        return written(cases.typed_files(draw, file_format, 8, without=NOT_SPARKS))
    scheme = draw(cases.schemes(file_format, NOT_SPARKS))
    header = cases.csv_header(draw, scheme) if scheme.options.get("header") == "true" else None
    number = 6 if scheme.options.get("mode") == "FAILFAST" else AT_ONCE
    most = (1, 1, 1, 3)
    contents = [cases.an_object(draw, scheme, draw(one_of_these(most)), header) for _ in range(number)]
    return [cases.case_of(scheme, content) for content in contents]


_WRITING: dict[str, dict[str, tuple[str, ...]]] = {
    "parquet": {
        "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"),
        "spark.sql.parquet.writeLegacyFormat": ("true",),
        "spark.sql.parquet.datetimeRebaseModeInWrite": ("LEGACY", "CORRECTED"),
        "spark.sql.parquet.int96RebaseModeInWrite": ("LEGACY", "CORRECTED"),
    },
    "avro": {"spark.sql.avro.datetimeRebaseModeInWrite": ("LEGACY", "CORRECTED")},
    "orc": {},
}
"""Settings of a session that change what it writes."""


def _by_spark(draw: Draw, some: list[Case]) -> list[Case]:
    """Files that Spark writes: so few, since each is a job."""
    found = []
    for case in some:
        assert case.made is not None
        choices = _WRITING[case.file_format].items()
        how = {name: draw(one_of_these(values)) for name, values in choices if draw(st.booleans())}
        found.append(replace(case, made=replace(case.made, settings=how)))
    return found


def one_round(seed: int, rounds: int, result: Result, until: float | None) -> list[Broken]:
    """Compare so many groups; each new kind of failure is shrunk, kept and returned."""
    found: list[Broken] = []

    @with_seed(seed)
    @settings(
        max_examples=rounds, deadline=None, database=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(groups())
    def tried(some: list[Case]) -> None:
        if until is not None and time.monotonic() > until:
            return
        result.tried[NAME] += len(some)
        some[0].count()
        for broken in compared(some):
            if broken is not None:
                key = (NAME, broken.kind)
                result.seen[key] += 1
                if key not in result.broken:
                    result.broken[key] = broken
                    found.append(broken)

    with suppress(FlakyFailure):
        tried()
    for at, broken in enumerate(found):
        kind = broken.kind

        def breaks(some: Sequence[Case], kind: str = kind) -> list[Broken | None]:
            return [other if other is not None and other.kind == kind else None for other in compared(some)]

        assert isinstance(broken.case, Case)
        found[at] = result.broken[NAME, kind] = shrunk(broken.case, breaks) or broken
    return found
