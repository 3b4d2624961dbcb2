"""Samples of a job's input, and changes to what is read."""

from __future__ import annotations

import csv
import importlib.util
import inspect
import io
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from cuesqueue_prove.folder import SETTINGS, Places, Settings


def _session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.warehouse.dir", str(Path.cwd() / "spark-warehouse")).getOrCreate()


def call(named: str, places: Places) -> Any:
    """Call the function FILE.py:FUNCTION; its parameters are `spark`, a session, and `where`, both only if it has them.

    `where` returns the path or URL at which the run has what the job wrote to a path or URL.
    """
    file, _, name = named.rpartition(":")
    spec = importlib.util.spec_from_file_location("result_of_a_run", file)
    if spec is None or spec.loader is None or not Path(file).exists():
        raise SystemExit(f"{named!r} is no FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)
    function = getattr(module, name)

    def where(text: str) -> str:
        return places.database(text) if "://" in text and text.startswith(_DATABASES) else places.path(text)

    offered: dict[str, Callable[[], Any]] = {"spark": _session, "where": lambda: where}
    return function(**{name: offered[name]() for name in inspect.signature(function).parameters if name in offered})


_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")


def rows_of(answer: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame of Spark or pandas, of an Arrow table, or of a list of mappings or tuples."""
    if hasattr(answer, "collect"):
        return [row.asDict(recursive=True) for row in answer.collect()]
    if hasattr(answer, "to_pylist"):
        return list(answer.to_pylist())
    if hasattr(answer, "to_dict"):
        return list(answer.to_dict("records"))
    return [dict(row) if hasattr(row, "keys") else _numbered(row) for row in answer]


def _numbered(row: Any) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(row)}


def main() -> None:
    """Write the rows as JSON."""
    asked, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    places = Places(Settings.read(os.environ[SETTINGS]).root)
    if asked["function"]:
        rows = rows_of(call(asked["function"], places))
    else:
        spark = _session()
        rows = []
        for kind, path in asked["places"]:
            try:
                rows += rows_of(spark.read.format(kind).load(path))
            except Exception:  # of any kind, as it is the error of a connector
                if not asked["lenient"]:
                    raise
    output.write_text(json.dumps(rows, default=str), "utf-8")


if __name__ == "__main__":
    main()


Record = dict[str, Any]

_LIKELY = re.compile(r"(^|_)(id|key|uuid|guid|number|no)$", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_ROWS = 50
"""Of a sample: more rows take longer, and prove no more."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the records are written: the reader's `fileFormat`, and its options of CSV."""

    format: str
    separator: str = ","
    header: bool = False


@dataclass(frozen=True, slots=True)
class MadeObject:
    """One object. `keys`: the values of the unique column, as text; empty where there is none."""

    name: str
    body: bytes
    keys: tuple[str, ...] = ()


@dataclass
class Maker:
    """Makes objects of one sample. `key` is the column that becomes unique, None where no column can.

    `numbers` are what its values are made of: one iterator for all samples of a queue.
    """

    form: Form
    sample: bytes
    suffix: str
    key: str | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    records: list[Record] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.records = read_records(self.form, self.sample)
        if self.records is not None:
            del self.records[_MOST_ROWS:]
            self.key = self.key or choose_key(self.records)

    def make(self, number: int) -> MadeObject:
        """Make the object with this number; the values of its key column occur in no other one."""
        name = f"{number:04d}{self.suffix}"
        if not self.records or self.key is None:
            return MadeObject(name, self.sample)
        changed = list(self._unique(self.records))
        body = write_records(self.form, changed, self.sample)
        return MadeObject(name, body, tuple(str(record[self.key]) for record in changed))

    def _unique(self, records: Sequence[Record]) -> Iterator[Record]:
        assert self.key is not None
        for record in records:
            yield {**record, self.key: unique_value(record.get(self.key), next(self.numbers))}


def makers(samples: Sequence[Path], form: Form, key: str | None) -> list[Maker]:
    """Return a maker for each sample file."""
    numbers = count(1)
    return [Maker(form, file.read_bytes(), "".join(file.suffixes[-2:]), key, numbers) for file in samples]


def choose_key(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Choose the column to make unique: named as an id, or else one without repetition; None where none is."""
    if not records:
        return None

    def distinct(name: str) -> bool:
        values = [record.get(name) for record in records]
        usable = all(isinstance(value, (int, str)) and not isinstance(value, bool) for value in values)
        return usable and len(set(values)) == len(values)

    candidates = [name for name in records[0] if distinct(name)]
    by_name = [name for name in candidates if _LIKELY.search(name)]
    numbers = [name for name in candidates if isinstance(records[0][name], int)]
    return next(iter([*by_name, *numbers, *(candidates if len(records) > 1 else [])]), None)


def unique_value(value: object, number: int) -> int | str:
    """Return a value of the same kind that no other number has: small, since columns may be narrow."""
    if isinstance(value, int):
        return number
    text = str(value)
    if text.isdecimal():
        return f"{number:0{len(text)}d}"
    if _UUID.fullmatch(text):
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
    return f"{text}-{number}"


def read_records(form: Form, body: bytes) -> list[Record] | None:
    """Return the records of an object; None where they cannot be changed, and the object is copied as it is."""
    try:
        if form.format == "json":
            records = [json.loads(line) for line in body.decode("utf-8-sig").splitlines() if line.strip()]
            return records if all(isinstance(record, dict) for record in records) else None
        if form.format == "csv":
            rows = list(csv.reader(io.StringIO(body.decode("utf-8-sig")), delimiter=form.separator))
            names = rows.pop(0) if form.header and rows else []
            return [dict(zip(names or map(str, range(len(row))), row, strict=False)) for row in rows if row]
        if form.format == "parquet":
            import pyarrow.parquet as pq

            return list(pq.read_table(io.BytesIO(body)).to_pylist())
    except (ValueError, OSError, csv.Error):
        return None  # compressed, or over several lines: copies are data too
    return None


def write_records(form: Form, records: Sequence[Record], sample: bytes) -> bytes:
    """Write the records in the form, and with the types, of the sample that they were read from."""
    if form.format == "json":
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if form.format == "csv":
        text = io.StringIO()
        writer = csv.writer(text, delimiter=form.separator, lineterminator="\n")
        if form.header:
            writer.writerow(records[0])
        writer.writerows(record.values() for record in records)
        return text.getvalue().encode()
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(records), pq.read_schema(io.BytesIO(sample))), file)
    return file.getvalue()
