"""The queries that run beside each other in an exploration, and the kinds of steps that may happen."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

TABLES = ("delta", "iceberg", "iceberg-inside")
"""Sinks whose rows are in a target with a commit of its own."""

KINDS = {
    "versions": "objects are overwritten, emptied, filled, damaged, also while a batch is read; their notifications "
    "come late, repeated, in any order, with all facts or as URIs alone",
    "repairs": "what was found bad or empty, and is known to be unread, is written anew at the end, and announced",
    "routes": "two sources are fed by a receiver, and read the same objects",
    "cleaning": "a source of routes deletes what it has read",
    "tables": "sinks are tables of Delta Lake or Iceberg, and drivers die between their commit and that of the store",
    "heirs": "another pipeline of the source takes what a pipeline with a table has left between the two commits",
    "orders": "a query of several pipelines names them in another order when it starts again",
    "lost-checkpoints": "the checkpoint of an unfinished batch is lost",
    "restores": "store, tables and checkpoints are put back to one moment, each or not",
    "meetings": "between any two transactions of a step others come in, of the same process and of others; or it dies",
    "certificates": "what is there is compared with the store, and the certificate with what was published",
    "failpoints": "a process dies at any failpoint of the code, or between two transactions of the store",
    "limits": "pages, statements and caps of the code are so small that a few objects reach them",
    "operators": "every command of operators, with kills, retries, and other steps in the middle",
    "listings": "sources find objects by listings as well",
    "spellings": "tables are put back as clients do it, with commits of others and clean-ups afterwards",
    "beginnings": "the store goes back behind the very first batch of a pipeline",
    "clones": "two sources have the same objects and a queue each; one has versions in its ids, one deletes",
}
"""The kinds of steps that may be left out, by name."""
BY_DEFAULT = frozenset(KINDS)
VARIABLE = "CUESQUEUE_EXPLORE_KINDS"
"""Names those of KINDS that an exploration takes, separated by commas; `all`, and none where it is empty."""


@dataclass(frozen=True)
class Kind:
    """A query: its pipelines and their sources, and what becomes of its rows.

    `sink`: "ours", "other", "delivery", or one of TABLES.
    """

    pipelines: tuple[tuple[str, str], ...]
    sink: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pipeline for pipeline, _ in self.pipelines)


class Cast(NamedTuple):
    """Some queries. `routed`: their sources are fed by routes, with the same objects; `cleans`: one deletes them.

    `versioned`: sources whose ids have versions (`allowOverwrites`). `steps`: the only steps, with their weights, of a
    short exploration, without the kinds of `without`: what is rare among all steps comes often there. `focus`: the file
    of the source at which it looks closely, instead of one of `meetings.FOCUS`.
    """

    kinds: tuple[Kind, ...]
    needs: str = ""
    routed: bool = False
    cleans: str | None = None
    versioned: tuple[str, ...] = ()
    steps: Mapping[str, float] = {}
    without: frozenset[str] = frozenset()
    focus: str = ""

    @property
    def shared(self) -> bool:
        """Whether all sources have the same objects."""
        return self.routed or self.needs == "clones"


def _cast(
    *queries: tuple[str, str],
    needs: str = "",
    routed: bool = False,
    cleans: str | None = None,
    versioned: tuple[str, ...] = (),
    without: str = "",
    focus: str = "",
    **steps: float,
) -> Cast:
    """Of each query its pipelines with their sources (`p:s x:t`), and its sink."""
    kinds = [Kind(tuple((name[0], name[2]) for name in names.split()), sink) for names, sink in queries]
    return Cast(tuple(kinds), needs, routed, cleans, versioned, steps, frozenset(without.split()), focus)


CASTS = (
    _cast(("p:s", "ours"), ("q:s", "ours")),
    _cast(("p:s", "ours"), ("q:s", "delivery"), ("r:u", "other")),
    _cast(("p:s", "delivery"), ("q:s", "delivery")),
    _cast(("p:s x:t", "ours"), ("q:s", "delivery")),
    _cast(("p:s x:t", "delivery"), ("q:t", "ours")),
    _cast(("p:s x:t", "delivery"), ("q:s y:t", "ours")),
    _cast(("p:s", "other"), ("q:t", "other")),
    _cast(("p:s", "delta"), needs="tables"),
    _cast(("p:s", "iceberg"), needs="tables"),
    _cast(("p:s x:t", "delta"), ("q:u", "ours"), needs="tables"),
    _cast(("p:s", "delta"), ("q:s", "iceberg"), needs="heirs"),
    _cast(("p:s x:t", "delta"), ("q:s", "ours"), needs="heirs"),
    _cast(("p:s", "ours"), ("q:t", "ours"), needs="routes", routed=True),
    _cast(("p:s", "delivery"), ("q:s", "ours"), ("r:t", "other"), needs="routes", routed=True),
    _cast(("p:s", "ours"), ("q:t", "ours"), needs="cleaning", routed=True, cleans="s"),
    _cast(("p:s", "ours"), ("q:t", "ours"), needs="clones", cleans="s", versioned=("t",)),
    _cast(("p:s", "ours"), ("q:t", "delivery"), needs="clones", cleans="s", versioned=("s",)),
    _cast(("p:s", "iceberg-inside"), needs="spellings"),
    _cast(("p:s x:t", "iceberg-inside"), ("q:u", "ours"), needs="spellings"),
    # short ones: tables that are put back, what is bad in a table's batch, files that are joined, what is deleted,
    # what is looked at by two, and stores that go back to their beginning
    _cast(("p:s", "delta"), needs="spellings", without="meetings failpoints", announce=4, trigger=6),
    _cast(("p:s", "iceberg"), needs="spellings", without="meetings failpoints", announce=4, trigger=6),
    _cast(("p:s", "iceberg-inside"), needs="spellings", without="meetings failpoints", announce=4, trigger=6),
    _cast(("p:s", "delta"), needs="tables", without="meetings", announce=4, trigger=6, change_an_object=4),
    _cast(
        ("p:s", "ours"), needs="operators", focus="commands/compact.py",
        announce=4, trigger=6, compact=4, reset=1, prune_data=1, vacuum=1,
    ),
    _cast(
        ("p:s", "ours"), ("q:t", "ours"), needs="clones", cleans="s", versioned=("t",), without="meetings limits",
        announce=5, trigger=6, clean=5, write=3,
    ),
    _cast(
        ("p:s", "ours"), ("q:t", "ours"), needs="clones", cleans="s", versioned=("s",), without="meetings limits",
        announce=5, trigger=6, clean=5, write=3,
    ),
    _cast(
        ("p:s", "ours"), needs="operators", cleans="s", without="meetings limits", announce=3, trigger=3, clean=6,
        adopt=4, change_an_object=2,
    ),
    _cast(
        ("p:s", "ours"), ("q:s", "ours"), needs="meetings", focus="coordinator/opening.py",
        announce=4, trigger=5, work=5, write=4,
    ),
    _cast(("p:s", "ours"), needs="beginnings", without="meetings", announce=4, trigger=6, go_back=3, put_back=3),
    _cast(("p:s", "delivery"), needs="beginnings", without="meetings", announce=4, trigger=6, go_back=3, put_back=3),
)  # fmt: skip
"""One of these is chosen for each exploration.

A query with a sink of another kind has its source for itself: such a sink is not fenced, and may publish what another
pipeline has acquired meanwhile.
"""


def kinds_taken() -> frozenset[str]:
    """Return the kinds of steps that the environment names. Raises ValueError."""
    text = os.environ.get(VARIABLE)
    names = BY_DEFAULT if text is None else frozenset(filter(None, text.split(",")))
    if unknown := names - {*KINDS, "all"}:
        raise ValueError(f"{VARIABLE} names {sorted(unknown)}; the kinds of steps are all, {', '.join(KINDS)}")
    return frozenset(KINDS) if "all" in names else names


def casts_of(kinds: Collection[str]) -> list[Cast]:
    return [cast for cast in CASTS if not cast.needs or cast.needs in kinds]
