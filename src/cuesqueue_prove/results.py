"""What a sink holds after a run, as rows that are compared with those of the undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cuesqueue import OptionError, published
from cuesqueue_prove.folder import FOLDER, SETTINGS
from cuesqueue_prove.runs import Run

_LONGEST_READING = 600
"""Seconds."""
_ASK = "name how the result is read: a SELECT on the store's database, or FILE.py:FUNCTION, which returns the rows"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a result is read.

    Attributes:
        text: A SELECT statement, or FILE.py:FUNCTION; "" for what the job's own sinks hold.
        url: SQLAlchemy URL that the SELECT runs on; "" for the store's.
        ignored: Columns that are different in each run, such as times.
    """

    text: str = ""
    url: str = ""
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, url: str = "", ignored: Sequence[str] = ()) -> Rule:
        """Build a rule; a file may be relative to this process's folder. Raises OptionError where it is absent."""
        rule = cls(text, url, tuple(ignored))
        if not text or rule.is_statement:
            return rule
        file, _, function = text.rpartition(":")
        if not Path(file).is_file():
            raise OptionError("--result", f"{text!r} is no way to read a result; {_ASK}")
        return cls(f"{Path(file).resolve()}:{function}", url, rule.ignored)

    @property
    def is_statement(self) -> bool:
        return self.text.lstrip().upper().startswith(("SELECT ", "SELECT\n", "WITH "))


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that a run has more often than the undisturbed one, and those that it has less often, with how often."""

    doubled: Counter[str]
    lost: Counter[str]

    def __bool__(self) -> bool:
        return bool(self.doubled or self.lost)


def compare(expected: Counter[str], actual: Counter[str]) -> Difference:
    """Compare two results as multisets of rows."""
    return Difference(actual - expected, expected - actual)


def read_result(run: Run, rule: Rule) -> Counter[str]:
    """Return the rows of a run as texts, each with how often it is there. Raises OptionError.

    A rule tells how one sink is read: where the job has several queries, what can be read without it is compared too.
    """
    started = list({entry["query"]: entry for entry in run.journal.entries("started")}.values())
    rows: list[Mapping[str, Any]] = []
    if rule.is_statement:
        rows += _selected(run, rule)
    elif rule.text:
        rows += _read_elsewhere(run, rule.text, ())
    for entry in started:
        if not rule.text and entry["format"] != "cuesqueue" and not entry["target"]:
            raise OptionError("--result", f"is needed for the sink {entry['format']!r}; {_ASK}")
    if not rule.text or len(started) > 1:
        if files := [entry for entry in started if entry["format"] != "cuesqueue" and entry["target"]]:
            rows += _read_elsewhere(run, "", files, lenient=bool(rule.text))
        rows += _held_by_ours(run, [entry for entry in started if entry["format"] == "cuesqueue"])
    return as_texts(run, rows, rule)


def as_texts(run: Run, rows: Iterable[Mapping[str, Any]], rule: Rule) -> Counter[str]:
    """Count the rows, as JSON without the ignored columns, and without the name of the run's folder."""
    ignored, folder = {*rule.ignored, "_metadata"}, str(run.settings.root)
    counts: Counter[str] = Counter()
    for row in rows:
        chosen = {name: value for name, value in row.items() if name not in ignored}
        counts[json.dumps(chosen, default=str, ensure_ascii=False).replace(folder, "")] += 1
    return counts


def _selected(run: Run, rule: Rule) -> Iterator[dict[str, Any]]:
    stores = sorted({entry["store"] for entry in run.journal.entries("reader")})
    engine = sa.create_engine(run.whole(rule.url or stores[0]))
    try:
        with engine.connect() as connection:
            for row in connection.execute(sa.text(rule.text)):
                yield dict(row._mapping)
    except sa.exc.OperationalError as error:
        raise OptionError("--result", f"cannot be read: {error.orig}") from None
    finally:
        engine.dispose()


def _held_by_ours(run: Run, started: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in started:
        store, pipeline = run.whole(entry["store"]), entry["pipeline"].split(",")[0].strip()
        if entry["table"]:
            from pyiceberg.catalog import load_catalog

            rows = load_catalog("cuesqueue", type="sql", uri=store).load_table(entry["table"]).scan().to_arrow()
        elif entry["delta"]:
            from deltalake import DeltaTable

            uri = entry["delta"]
            rows = DeltaTable(uri if "://" in uri else str(run.settings.root / uri)).to_pyarrow_table()
        else:
            rows = published(store, pipeline=pipeline).to_arrow()
        for row in rows.to_pylist():
            yield row if len(started) == 1 else {"pipeline": pipeline, **row}


def _read_elsewhere(
    run: Run, function: str, started: Sequence[Mapping[str, Any]], *, lenient: bool = False
) -> list[dict[str, Any]]:
    """Read with Spark, or by the user's function, in a process of its own; `lenient`: only what Spark can read."""
    places = [[entry["format"], entry["target"]] for entry in started]
    asked = {"function": function, "places": places, "lenient": lenient}
    output = run.settings.root / "prove" / "result.json"
    environment = {**os.environ, SETTINGS: str(run.settings.write()), FOLDER: str(run.settings.root)}
    environment |= {"PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cuesqueue_prove.reading", json.dumps(asked), str(output)],
            cwd=run.settings.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_READING,
        )
    except subprocess.TimeoutExpired:
        raise OptionError("--result", f"was not read within {_LONGEST_READING} s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise OptionError("--result", f"cannot be read: {said}; {_ASK}")
    rows: list[dict[str, Any]] = json.loads(output.read_text("utf-8"))
    return rows


@dataclass(frozen=True, slots=True)
class Made:
    """What was made in a run: URIs of objects, the unique column, and from its values (as text) to their object."""

    uris: tuple[str, ...]
    key: str
    keys: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> Made:
        """Read what the run's first process has written down."""
        uris: list[str] = []
        keys: dict[str, str] = {}
        key = ""
        for file in sorted((run.settings.root / "prove").glob("made-*.json")):
            made = json.loads(file.read_text("utf-8"))
            uris += made["uris"]
            key = key or made["key"] or ""
            for value, uri in made["keys"].items():  # two queues have the same values, so that their rows can be joined
                name = uri.rpartition("/objects/")[2]
                keys[value] = f"{keys[value]} or {name}" if value in keys else name
        return cls((*uris,), key, keys)

    def object_of(self, row: str) -> str:
        """Return the object that a row is from; empty where the row does not tell."""
        values = json.loads(row)
        return self.keys.get(str(values.get(self.key, "")), "") if isinstance(values, dict) else ""
