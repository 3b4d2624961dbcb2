"""Relation (e): what is loaded into a target, and what is registered in one, is what the reader gives as rows.

The same objects, with the same options, through a sink's own calls as Spark makes them: into files (`path`), a Delta
table, an Iceberg table; of Parquet objects also by `register`. Rows, what is bad, and which objects are, are the same.
A target may refuse columns that it cannot have.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyiceberg.table import DataScan

from queue_source.errors import OptionError
from queue_source.formats.types import inner_types
from support.iceberg_tables import Lake
from support.oracle import cases
from support.oracle.cases import TEXTUAL, Case
from support.oracle.counting import reached
from support.oracle.rows import Broken, Row, general, rows_of
from support.oracle.tasks import Announced, Read, read_task
from support.oracle.values import Strategy
from support.registering import Loading, Referencing, Registering
from support.store_backends import StoreBackend, rows

NAME = "loaded-is-read"
TARGETS = ("path", "delta", "iceberg")
_TRANSFORMS = ("day({})", "hour({})", "month({})", "year({})", "bucket(4, {})", "truncate(3, {})")
_numbers = itertools.count()


@dataclass(frozen=True)
class Loaded:
    """An object and those beside it, in two tasks, into a target, by one of its columns."""

    case: Case
    target: str
    by: int | None = None
    how: str = "{}"

    def count(self) -> None:
        self.case.count()
        reached(f"loaded into {self.target}: {self.case.file_format}")
        if self.partition is not None:
            reached(f"loaded by {self.how.format(general(self.partition.type))}: {self.target}")

    @property
    def partition(self) -> pa.Field | None:
        schema = self.case.schema
        if self.by is None or self.target not in ("delta", "iceberg") or len(schema) < 2:
            return None
        plain = [field for field in schema if not pt.is_nested(field.type)]
        return plain[self.by % len(plain)] if plain else None


def strategy() -> Strategy:
    by, how = st.one_of(st.none(), st.integers(0, 9)), st.sampled_from(["{}", "{}", "{}", *_TRANSFORMS])

    def of(file_format: str) -> Strategy:
        if file_format in TEXTUAL:
            some = cases.schemes(file_format).flatmap(
                lambda scheme: st.builds(
                    lambda content, others: cases.case_of(scheme, content, beside=others),
                    cases.objects(scheme, 5),
                    st.lists(cases.objects(scheme, 2), max_size=2),
                )
            )
            return st.builds(Loaded, some, st.sampled_from(TARGETS), by, how)
        typed = cases.typed_cases(file_format)
        loaded = st.builds(Loaded, typed, st.sampled_from(TARGETS), by, how)
        if file_format != "parquet":
            return loaded
        as_written = typed.map(_as_written)
        return st.one_of(loaded, st.builds(Loaded, as_written, st.just("register")))

    return st.sampled_from(["csv", "json", "text", "parquet", "parquet", "avro", "orc"]).flatmap(of)


def _as_written(case: Case) -> Case:
    assert case.made is not None
    return replace(case, ddl=case.made.ddl, options={})


def check(loaded: Loaded) -> None:
    case = loaded.case
    options = {"timeZone": "Europe/Berlin", **case.options} if case.file_format in ("csv", "json") else case.options
    with tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-") as name:
        folder, contents = Path(name), [case.bytes, *case.beside]
        paths = [folder / "in" / f"{at}.data" for at in range(len(contents))]
        (folder / "in").mkdir()
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        assert case.ddl is not None
        try:
            read = read_task([_announced(path) for path in paths], case.file_format, case.ddl, options)
        except (OptionError, ValueError):
            reached(f"loaded, the end of {loaded.target}: not read")
            return  # the reader would not start
        query = _query(loaded, folder, options)
        try:
            query.objects(*[paths[at::2] for at in range(2) if paths[at::2]])
        except OptionError:
            reached(f"loaded, the end of {loaded.target}: refused")
            return
        except Exception as error:
            if "by which no Delta table can be partitioned" in str(error):
                reached("loaded, the end of delta: a partition that no reader of Delta takes")
                return
            raise Broken(
                NAME, loaded, f"{loaded.target}: {case.file_format}: {type(error).__name__}", str(error)
            ) from error
        _compare(loaded, read, query, folder)


def _announced(path: Path) -> Announced:
    return Announced(f"file://{path}", path.stat().st_size)


@cache
def store_of_this_process() -> StoreBackend:
    folder = tempfile.mkdtemp(prefix="cuesqueue-oracle-store-")
    backend = StoreBackend("sqlite", f"sqlite:///{folder}/store.db")

    def end() -> None:
        backend.close()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    backend.open()
    return backend


def _query(loaded: Loaded, folder: Path, options: dict[str, str]) -> Referencing:
    if loaded.partition is not None:
        options = options | {"partitionBy": loaded.how.format(loaded.partition.name)}
    if loaded.target == "register":
        return query_of(loaded.target, folder, options)
    return query_of(loaded.target, folder, {"load": loaded.case.file_format, "schema": str(loaded.case.ddl), **options})


def query_of(target: str, folder: Path, options: dict[str, str]) -> Referencing:
    """A query of a pipeline of its own into a target below the folder."""
    backend, number = store_of_this_process(), next(_numbers)
    name, given = f"p{number}", {"store": backend.url}
    if target in ("path", "delta"):
        given[target] = str(folder / "out")
    else:
        given |= {"table": f"db.t{number}", "warehouse": str(folder / "warehouse")}
    lake = Lake(backend.views[0], given, {"type": "sql", "uri": backend.url}, name=f"db.t{number}")
    if target == "register":
        return Registering(lake, name)
    query = Loading(lake, name, options)
    if "schema" not in options:
        del query.options["schema"]
    return query


def tables_of(target: str, query: Referencing, folder: Path, *, in_files: bool = False) -> list[pa.Table]:
    """What a target holds. `in_files`: where PyIceberg makes structs anew, which has no lists of them that are null."""
    if target == "path":
        here = [
            split["path"] for split in rows(store_of_this_process().views[0], "splits") if str(folder) in split["path"]
        ]
        return [pq.read_table(path, partitioning=None) for path in here]
    if target == "delta":
        is_table = DeltaTable.is_deltatable(str(folder / "out"))
        return [pa.table(DeltaTable(str(folder / "out")).scan())] if is_table else []
    with query.lake.catalog() as catalog:
        if not catalog.table_exists(query.lake.name):
            return []
        scan = catalog.load_table(query.lake.name).scan()
        return [_of_files(scan, target)] if in_files else [scan.to_arrow()]


def _stored(loaded: Loaded, query: Referencing, folder: Path) -> list[Row]:
    """The rows of the target in the columns and types that were declared."""
    is_made_anew = any(map(_has_lists_of_structs, loaded.case.schema.types))
    tables = tables_of(loaded.target, query, folder, in_files=is_made_anew)
    schema = loaded.case.schema
    found: list[Row] = []
    for table in tables:
        columns = [table.column(field.name).cast(field.type) for field in schema]
        found += rows_of([pa.Table.from_arrays(columns, schema=schema)]) if table.num_rows else []
    return found


def _has_lists_of_structs(kind: pa.DataType) -> bool:
    inner = inner_types(kind)
    return (not pt.is_struct(kind) and any(map(pt.is_struct, inner))) or any(map(_has_lists_of_structs, inner))


def _of_files(scan: DataScan, target: str) -> pa.Table:
    """Read the files of the table: ours have its columns in its order, those that are registered have their names."""
    tables = [pq.read_table(task.file.file_path.removeprefix("file://")) for task in scan.plan_files()]
    names = [field.name for field in scan.table_metadata.schema().fields]
    if target == "register":
        tables = [table.select([name for name in names if name in table.column_names]) for table in tables]
        return pa.concat_tables(tables, promote_options="permissive") if tables else scan.to_arrow()
    return pa.concat_tables([table.rename_columns(names) for table in tables]) if tables else scan.to_arrow()


def _compare(loaded: Loaded, read: Read, query: Referencing, folder: Path) -> None:
    case, target = loaded.case, loaded.target
    expected = Counter(row for rows_of_one in read.rows.values() for row in rows_of_one)
    if target == "delta" and loaded.partition is not None:  # Delta has no empty text there
        at = case.schema.names.index(loaded.partition.name)
        without = {row: (*row[:at], "null", *row[at + 1 :]) if row[at] == repr("") else row for row in expected}
        expected = Counter(without[row] for row in expected.elements())
    try:
        found = Counter(_stored(loaded, query, folder))
    except (pa.ArrowException, KeyError) as error:
        raise Broken(NAME, loaded, f"{target}: {case.file_format}: cannot be compared", repr(error)) from error
    if target == "register" and not found and query.causes():
        reached(f"loaded, the end of {target}: refused")
        return  # a file whose types are stored in another way than the table's specification wants
    if expected != found:
        only_read, only_loaded = expected - found, found - expected
        kind = "other rows"
        if expected.total() == found.total():
            pairs = zip(next(iter(only_read)), next(iter(only_loaded)), case.schema, strict=True)
            kind = next((f"another {general(field.type)}" for one, other, field in pairs if one != other), kind)
        raise Broken(NAME, loaded, f"{target}: {case.file_format}: {kind}", f"{only_read}\n  or\n{only_loaded}")
    reached(f"loaded, the end of {target}: {'rows' if expected else 'no rows'}")
    bad = Counter(row["scope"] for row in query._rows("errors"))
    known = Counter({"object": len(read.verdicts), "record": sum(read.bad_records.values())})
    if +bad != +known and target != "register":
        raise Broken(NAME, loaded, f"{target}: {case.file_format}: other errors", f"{known}\n  or\n{bad}")
