"""Why rows are doubled or lost: found in the journal of the run, its stores and its queues, and not guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cuesqueue_prove.folder import Journal
from cuesqueue_prove.results import Difference, Made
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
