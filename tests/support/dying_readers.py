"""A query without Spark whose readers die: attempts at one plan, with tasks that are tried again, over a real store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.options import ReaderOptions, parse_reader_options
from queue_source.read import task as reading
from queue_source.read.partitions import PlanStore, partition
from queue_source.read.task import Alone, Beside, Work, read_work
from shard_store.model import BEGINNING, Content, Plan, Range, Semantics, Split, end_at, shard_key
from shard_store.store import ShardStore, open_store
from support.sessions import LEAST
from support.store_backends import Pipeline, rows

SCHEMA = pa.schema([("id", pa.string())])
TRIES = 4
"""How often Spark runs a task before it gives up the batch."""


class Died(BaseException):
    """The process of a task is gone: nothing of ours sees it, or cleans up."""


@dataclass
class Readers:
    """What the tasks meet: whether a reader of some pieces dies or fails, and what has been read."""

    meet: Callable[[Sequence[str]], None] = lambda ids: None
    tried: Counter[str] = field(default_factory=Counter)

    def read(self, work: Work, schema: pa.Schema, report: object) -> Iterator[pa.RecordBatch]:
        ids = [piece.content.shard_id for piece in work.pieces]
        self.tried.update(ids)
        self.meet(ids)
        yield pa.record_batch([ids], schema=schema)

    def kill_by(self, *culprits: str) -> None:
        def meet(ids: Sequence[str]) -> None:
            if set(culprits) & set(ids):
                raise Died

        self.meet = meet

    def fail_by(self, culprit: str, error: Exception) -> None:
        def meet(ids: Sequence[str]) -> None:
            if culprit in ids:
                raise error

        self.meet = meet

    def live(self) -> None:
        self.meet = lambda ids: None


class Query:
    """One pipeline with one plan of the objects `ids`, each of 10 bytes; `groups` are those of ordered ones."""

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str],
        *,
        tasks: int = 4,
        semantics: Semantics = Semantics.EXACTLY_ONCE,
        groups: dict[str, str] | None = None,
        size: int = 10,
        plans_once: bool = False,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        given = {**LEAST, "source": "s", "fileFormat": "csv", "minPartitions": str(tasks)}
        self.options: ReaderOptions = parse_reader_options({**given, "store": f"sqlite:///{folder}/store.db"})
        self.store: ShardStore = open_store(self.options.store.reveal())
        self.readers = Readers()
        self.may_be_cut = False
        monkeypatch.setattr(reading, "read_pieces", self.readers.read)
        self._semantics = semantics
        self.pipeline = Pipeline.start(self.store, semantics=semantics)
        contents = [Content(one, one, size, group=(groups or {}).get(one)) for one in ids]
        if semantics.keeps_shards:
            self.store.open_shards(self.pipeline.token, "s", contents)
        keys = [shard_key("s", one) for one in ids]
        moves = zip(keys, contents, strict=True)
        self.pipeline.write(*(Range(key, content, BEGINNING, end_at(size)) for key, content in moves))
        self.plan: Plan | None = None
        self._plans_once = plans_once  # the store makes the plan, and the test repeats it: for very many objects

    def _make_plan(self) -> Plan:
        before = self.plan
        if before is not None and not self._plans_once:  # only a restart makes a new attempt at a plan
            self.pipeline = Pipeline.start(self.store, semantics=self._semantics)
        if before is None or not self._plans_once:
            return self.pipeline.plan()
        bad = self.store.found_bad(before.identity)
        left = tuple(entry for entry in before.whole if (entry.key, entry.start) not in bad)
        suspected = bool(self.store.read_marks(before.identity))
        return replace(before, ranges=left, attempt=before.attempt + 1, suspected=suspected)

    def works(self) -> list[Work]:
        """What `partitions` of the stream reader gives to the tasks of the next attempt."""
        batches = self.options.batches
        self.plan = plan = self._make_plan()
        assert not plan.published
        tasks = partition(plan, batches.min_partitions, batches.max_partition_bytes, lambda _: self.may_be_cut)
        limit = Alone(self.options.delivery.max_attempts)
        return [
            Work(
                plan.identity,
                pieces,
                self.options.content,
                PlanStore.of(self.options.store, self.store),
                limit if plan.suspected else Beside(task) if plan.attempt > 1 else None,
            )
            for task, pieces in enumerate(tasks)
        ]

    def attempt(self, *, together: bool = False, tries: int = TRIES) -> list[str] | None:
        """Run the batch once: the ids of the rows that it published, or None when it failed.

        `together`: when one task dies, all that run beside it die too, as in one executor.
        """
        left: dict[int, Work] = dict(enumerate(self.works()))
        done: dict[int, list[str]] = {}
        for number in range(tries):
            done.update(self._stage(left, repeated=number > 0, together=together))
            left = {task: work for task, work in left.items() if task not in done}
            if not left:
                ids = [one for task in sorted(done) for one in done[task]]
                assert self.plan is not None
                self.pipeline.publish(self.plan, Split(f"/{self.pipeline.seq}", len(ids), 1))
                return ids
        return None

    def _stage(self, works: dict[int, Work], *, repeated: bool, together: bool) -> dict[int, list[str]]:
        """Each task once, all beside each other; what those read that did not die."""
        running: dict[int, tuple[Iterator[pa.RecordBatch], list[str]]] = {}
        died = False
        for task, work in works.items():
            batches, ids = read_work(work, SCHEMA, repeated=repeated), list[str]()
            try:
                for batch in batches:
                    ids += batch.column(0).to_pylist()
                    if together and isinstance(work.isolation, Beside):
                        running[task] = batches, ids  # still marked: its last batch is on its way
                        break
                else:
                    running[task] = iter(()), ids
            except (Died, KeyError, MemoryError):
                died = True
        if together and died:
            for batches, _ in running.values():
                self._kill(batches)
            return {}
        for batches, ids in running.values():
            ids += [one for batch in batches for one in batch.column(0).to_pylist()]
        return {task: ids for task, (_, ids) in running.items()}

    def _kill(self, batches: Iterator[pa.RecordBatch]) -> None:
        throw = getattr(batches, "throw", None)
        if throw is not None:
            with pytest.raises(Died):
                throw(Died())

    def run_until_published(self, at_most: int = 20, **how: bool) -> list[str]:
        """The rows that are published in the end."""
        for _ in range(at_most):
            ids = self.attempt(**how)
            if ids is not None:
                return ids
        raise AssertionError("the plan fails for ever")

    def quarantined(self) -> list[str]:
        return sorted(row["shard_id"] for row in rows(self.store, "shards") if row["state"] == "quarantined")

    def given_up(self) -> dict[str, str]:
        return {row["subject"]: row["cause"] for row in rows(self.store, "errors")}

    def marks(self) -> int:
        assert self.plan is not None
        return len(self.store.read_marks(self.plan.identity))
