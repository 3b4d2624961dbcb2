"""What a run has written, compared with the run without kills, and the reason where they differ."""

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
from cuesqueue_prove.folder import FOLDER, SETTINGS, Journal
from cuesqueue_prove.runs import Run

_GUARANTEE = "exactly-once"
_DOCUMENTED = "see docs/how-to/foreach-batch.md"


def reasons(run: Run, difference: Difference, made: Made) -> list[str]:
    """Return the reasons, the certain ones first; one sentence each, which ends with what to do."""
    sentences = [
        *shared_checkpoints(run.journal),
        *taken_elsewhere(made, run.states(), run.messages_in_queue(), run.journal),
        *weaker_semantics(run.journal),
        *repeated_batches(run.journal, difference),
    ]
    if not sentences and difference:
        sentences.append("the cause was not found; the journal of the run tells what the job did")
    return sentences


def shared_checkpoints(journal: Journal) -> Iterator[str]:
    """Find checkpoints that different queries were started with, and queries without any."""
    users: dict[str, dict[str, str]] = {}
    for entry in journal.entries("started"):
        users.setdefault(entry["checkpoint"], {}).setdefault(entry["signature"], entry["where"])
    for checkpoint, queries in users.items():
        if checkpoint and len(queries) > 1:
            yield (
                f"the checkpoint {checkpoint.rpartition('/')[2]!r} is shared by {len(queries)} queries, started at "
                f"{_listed(queries.values())}: each takes the other's progress for its own; give each query its own "
                "checkpointLocation"
            )
        if not checkpoint:
            yield (
                f"the query started at {_listed(queries.values())} has no checkpointLocation, so a restart begins "
                "with batch 0 again; set it"
            )


def taken_elsewhere(made: Made, states: Mapping[str, str], waiting: set[str], journal: Journal) -> Iterator[str]:
    """Find objects that no reader has opened although their messages are gone from the queue."""
    gone = [uri for uri in made.uris if uri not in states and uri not in waiting]
    where = sorted({entry["where"] or "unknown place" for entry in journal.entries("acknowledged")})
    if gone or (where and not made.uris):
        places = f"; the job acknowledges messages itself, at {_listed(where)}" if where else ""
        what = f"the messages of {len(gone)} objects ({_some(gone)}) are" if gone else "messages are"
        yield (
            f"{what} gone from the queue, and no reader has opened them: another consumer has acknowledged "
            f"them{places}; let the source alone receive from its queue"
        )


def weaker_semantics(journal: Journal) -> Iterator[str]:
    """Find readers whose option promises less."""
    for entry in journal.entries("reader"):
        if entry["semantics"] != _GUARANTEE:
            yield (
                f"pipeline {entry['pipeline']} has deliverySemantics={entry['semantics']}; leave the option out for "
                f"{_GUARANTEE}"
            )
            return


def repeated_batches(journal: Journal, difference: Difference) -> Iterator[str]:
    """Explain rows by batches that Spark ran again after a kill."""
    calls = _Calls(journal)
    for (query, batch), starts in calls.repeated().items():
        deliveries, effects = calls.deliveries(query, batch), calls.effects(query, batch)
        function = calls.function(query, batch)
        ran = f"Spark ran batch {batch} of {function} {starts} times"
        outside = _listed(f"{effect['by']} at {effect['where']}" for effect in effects)
        if difference.doubled and not deliveries:
            written = f" ({outside})" if outside else ""
            yield (
                f"{ran}, and what it writes{written} is not in `delivery`, so it is written at each; write inside of "
                f"cuesqueue.delivery, by batch.connection: {_DOCUMENTED}"
            )
        elif difference.doubled:
            written = outside or "what it writes"
            yield (
                f"{ran}; it uses `delivery`, but {written} is outside of its transaction, and was written before the "
                f"batch was published; write by batch.connection or batch.output: {_DOCUMENTED}"
            )
        elif difference.lost and any(entry["already"] for entry in deliveries):
            written = outside or "what it writes"
            yield (
                f"{ran}; {written} comes after the block of `delivery`, which had published the batch when the job was "
                f"killed; write inside of the block, by batch.connection: {_DOCUMENTED}"
            )
        elif difference.lost and not deliveries:
            yield (
                f"{ran}, and did not write again what it had lost: it takes the batch for done before its rows are "
                f"written; write inside of cuesqueue.delivery, by batch.connection: {_DOCUMENTED}"
            )
        else:
            continue
        return
    foreign = [entry for entry in journal.entries("started") if entry["format"] not in ("cuesqueue", "foreachBatch")]
    killed = [entry for entry in journal.entries("killed") if entry["batches"]]
    if difference and foreign and killed:
        first, batches = foreign[0], killed[-1]["batches"]
        batch = next(iter(batches.values()))
        yield (
            f"the sink {first['format']!r} took batch {batch} twice, and kept the rows of both: it is not idempotent "
            "by batch id; let it skip a batch id that it has, or write by format('cuesqueue') or with `delivery`"
        )


class _Calls:
    """The calls of functions of foreachBatch, by query and batch."""

    def __init__(self, journal: Journal) -> None:
        self._entries = list(journal.entries("batch-called", "delivery", "effect"))

    def repeated(self) -> dict[tuple[str, int], int]:
        """Return (query, batch) -> how often it was called, where that is more than once; the most telling first."""
        counts = Counter((entry["query"], entry["batch"]) for entry in self._of("batch-called"))
        again = {call: count for call, count in counts.items() if count > 1}
        return dict(sorted(again.items(), key=lambda item: -len(self.effects(*item[0]))))

    def deliveries(self, query: str, batch: int) -> list[dict[str, Any]]:
        return [entry for entry in self._of("delivery") if (entry["query"], entry["batch"]) == (query, batch)]

    def effects(self, query: str, batch: int) -> list[dict[str, Any]]:
        """Return what the calls wrote outside of named outputs and of the delivery's connection."""
        mine = [entry for entry in self._of("effect") if (entry["query"], entry["batch"]) == (query, batch)]
        return [entry for entry in mine if not entry["inside"]]

    def function(self, query: str, batch: int) -> str:
        names = [e["function"] for e in self._of("batch-called") if (e["query"], e["batch"]) == (query, batch)]
        return f"the function {names[0]!r}"

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self._entries if entry["what"] == kind]


def _listed(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(text or "an unknown line" for text in texts))


def _some(names: Sequence[str]) -> str:
    names_only = [name.rpartition("/")[2] for name in names[:3]]
    return ", ".join([*names_only, *(["..."] if len(names) > 3 else [])])


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
            [sys.executable, "-m", "cuesqueue_prove.samples", json.dumps(asked), str(output)],
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
