"""One mark: how a batch is known in a target with a commit of its own, for all of them (decision 0092).

Such a target is committed to just before the store. Under the lock of the pipelines' rows it is asked whether it has
the batch already: by the batch's delivery hash, which the commit of each attempt carries, in what the target is made of
now. So the hash of a commit that was undone (by a restore, a rollback) does not count.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from queue_source.sinks.base import Batch
from shard_store.batches.publishing import Looked, Published, Unpublished
from shard_store.batches.takeover import Committed, Left
from shard_store.errors import LostProgress
from shard_store.failpoints import reach
from shard_store.model import PlanIdentity
from shard_store.sql.database import Transaction
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_MARK = "cuesqueue."
HASH, STORE, PIPELINE, END = (f"{_MARK}{name}" for name in ("delivery-hash", "store", "pipeline", "end-seq"))
_ATTEMPT, _VERDICTS, _BROUGHT, _BATCH = (f"{_MARK}{name}" for name in ("attempt", "verdicts", "brought", "batch-id"))
_LOST = f"{_MARK}lost"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the commit of a batch says of it. `plans` are in the order of their pipelines' names.

    `attempt` is unlike those of all others, also of this batch: the store may have its transaction run again.
    """

    store_id: str
    plans: Sequence[PlanIdentity]
    batch_id: int
    delivery_hash: str
    attempt: str

    @property
    def first(self) -> PlanIdentity:
        return self.plans[0]

    @property
    def pipelines(self) -> list[str]:
        return [plan.token.pipeline for plan in self.plans]

    def properties(self, brought: tuple[int, int], lost: int, verdicts: str | None) -> dict[str, str]:
        """Return the mark as texts of a commit; values of several pipelines are separated by commas.

        `lost`: how many shards of the plans had passed to other pipelines by then, and are not in it.
        """
        values: dict[str, Sequence[object]] = {
            "source": [plan.source for plan in self.plans],
            "pipeline": [plan.token.pipeline for plan in self.plans],
            "start-seq": [plan.start_seq for plan in self.plans],
            "end-seq": [plan.end_seq for plan in self.plans],
            "batch-id": [self.batch_id],
            "brought": brought,
            "lost": [lost],
        }
        texts = {f"{_MARK}{name}": ",".join(map(str, value)) for name, value in values.items()}
        texts |= {HASH: self.delivery_hash, _ATTEMPT: self.attempt, STORE: self.store_id}
        return texts if verdicts is None else {**texts, _VERDICTS: verdicts}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a target; those of other stores and other programs have no properties here.

    `replaces`: it may have taken away what others before it had added; `undoes`: it has undone others before it, and
    nothing tells how many.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    replaces: bool = False
    undoes: bool = False

    @classmethod
    def of(cls, newest: Mapping[str, tuple[str, int]]) -> Commit | None:
        """Return the newest batches of several pipelines, each with its hash and its end, as that of the first one."""
        if not newest:
            return None
        hashes, ends = zip(*newest.values(), strict=True)
        return cls({HASH: hashes[0], PIPELINE: ",".join(newest), END: ",".join(map(str, ends))})

    @property
    def delivery_hash(self) -> str:
        return self.properties.get(HASH, "")

    @property
    def ends(self) -> dict[str, int]:
        """Return up to which seq of each pipeline its batch goes."""
        if not {HASH, PIPELINE, END} <= self.properties.keys():
            return {}
        names, ends = (self.properties[name].split(",") for name in (PIPELINE, END))
        return dict(zip(names, map(int, ends), strict=True))

    @property
    def batch_id(self) -> int:
        return int(self.properties.get(_BATCH, 0))

    @property
    def brought(self) -> tuple[int, int] | None:
        rows, _, size = self.properties.get(_BROUGHT, "").partition(",")
        return (int(rows), int(size)) if size else None

    @property
    def lost(self) -> int | None:
        """Return how many shards of its plans are not in it, since they had passed to others; None up to 0.4.0."""
        return int(text) if (text := self.properties.get(_LOST)) else None


class Target(Protocol):
    """A table with a commit of its own, as it is when it was opened last. `name` is what people call it.

    `brought`: the rows and bytes of this attempt.
    """

    name: str
    brought: tuple[int, int]

    def open(self, transaction: Transaction) -> bool:
        """Open it anew, since others write to it; returns whether it is there."""

    def noted(self, mark: Mark) -> Commit | None:
        """Return the newest batch that was ever committed: the hash, or its beginning, of the first pipeline with one.

        Its ends are of each pipeline by itself, which may have been in another query.
        """

    def lineage(self) -> Iterator[Commit]:
        """Yield the commits of which it is made now, the newest first, as far as its log goes."""

    def was_undone(self, delivery_hash: str, since: int | None) -> bool:
        """Tell whether there is proof that the commit whose hash begins so is none of those any more.

        `since`: when the store has published it (microseconds since 1970 UTC): then a sign is enough, too.
        """

    def has_files(self) -> bool:
        """Tell whether it has files now that some attempt at this very batch has written."""

    def choose(self, transaction: Transaction) -> None:
        """Settle what is appended, now that the batch is known not to be there: `brought` may be less then."""

    def append(self, mark: Mapping[str, str]) -> None:
        """Append the batch, if it has rows, in one commit, on exactly what was opened."""


class Verdict(Enum):
    """What a target says of a batch that the store has not published."""

    NEW = "it has never had it"
    OURS = "this very attempt has committed it, and the store's transaction is run again"
    SHOWN = "an attempt before has committed it"
    GONE = "it has had it, and that commit was undone"


class Unsure(Exception):
    """It cannot be right that the batch is written, or nothing tells whether it is there: why, and what to do."""


def decide(target: Target, mark: Mark, batch: Unpublished) -> tuple[Verdict, Commit | None]:
    """Return whether the target has the batch, and the commit of it that was found. Raises Unsure."""
    noted = target.noted(mark)
    if noted is None:
        return Verdict.NEW, None
    is_newest = mark.delivery_hash.startswith(noted.delivery_hash)
    if is_newest or not _is_before(noted, mark):  # a store that was put back gives its seqs a second time
        replaced = False
        for commit in target.lineage():
            if commit.delivery_hash == mark.delivery_hash:
                is_ours = commit.properties.get(_ATTEMPT) == mark.attempt
                if not is_ours and replaced and not target.has_files():
                    raise _unprovable(target, mark.delivery_hash, "it was overwritten since")
                return (Verdict.OURS if is_ours else Verdict.SHOWN), commit
            if _is_before(commit, mark):
                break
            replaced |= commit.replaces
    if is_newest:
        if target.was_undone(mark.delivery_hash, None):
            # what has undone it may have gone further back
            if (before := Commit.of(batch.shown_last(mark.first.token.pipeline))) is not None:
                _check_in_step(target, before, batch)
            return Verdict.GONE, None
        if not target.has_files():
            raise _unprovable(target, mark.delivery_hash, "its log does not go back as far any more")
        return Verdict.SHOWN, None
    _check_in_step(target, noted, batch)
    return Verdict.NEW, None


def _is_before(commit: Commit, mark: Mark) -> bool:
    """Tell whether it is of the mark's pipelines, and of a batch before: an idle pipeline ends where it did there.

    Where all of them end where they did, nothing tells which batch was first.
    """
    own = [
        (commit.ends[plan.token.pipeline], plan.end_seq) for plan in mark.plans if plan.token.pipeline in commit.ends
    ]
    return all(end <= here for end, here in own) and any(end < here for end, here in own)


def _check_in_step(target: Target, noted: Commit, batch: Unpublished) -> None:
    """Raise Unsure where the target has what the store has lost, or has lost what the store has."""
    published = batch.published
    if published is None:  # what was before is given up
        return

    def is_published(commit: Commit) -> bool:
        return all(end <= published.get(pipeline, end) for pipeline, end in commit.ends.items())

    newest, is_doubtful = None, False
    for commit in target.lineage():
        is_doubtful |= commit.undoes
        if not commit.ends.keys().isdisjoint(noted.ends):
            newest = commit
            break
    if is_doubtful or newest is None or not newest.delivery_hash.startswith(noted.delivery_hash):
        undone = target.was_undone(noted.delivery_hash, batch.published_at(noted.ends))
        if undone and is_published(noted):
            raise Unsure(
                f"{target.name} was put back to before the batch with the delivery hash {noted.delivery_hash}, up to "
                f"offset {_ends(noted)}, which is published by the store: its rows are not there any more; put the "
                "table forward again, or announce the objects of that batch again once they are forgotten ('cuesqueue "
                "shards forget')"
            )
        newest = newest if undone else noted
    if newest is not None and not is_published(newest):
        raise Unsure(
            f"{target.name} has the batch with the delivery hash {newest.delivery_hash}, up to offset {_ends(newest)}, "
            "and the store has not published it: the store was restored from a backup, or has forgotten the pipeline "
            "in a year, or that query was of other pipelines and died; restore the newer store, put the table back to "
            "before that batch, or run that query; else rows come twice ('cuesqueue adopt' says which are there)"
        )


def _ends(commit: Commit) -> str:
    return ", ".join(map(str, commit.ends.values()))


def _unprovable(target: Target, delivery_hash: str, why: str) -> Unsure:
    return Unsure(
        f"{target.name} had the batch with the delivery hash {delivery_hash}, and {why}, so that nothing tells "
        f"whether its rows are there: look for them, and delete them if they are"
    )


def look_for(target: Target, store_id: str, stopped: Left) -> Committed | None:
    """Return the last batch of a stopped pipeline, if the target has it, and the store has not published it.

    Raises Unsure.
    """
    plan = stopped.plan
    if not target.open(stopped.transaction):
        return None
    mark = Mark(store_id, (plan,), 0, plan.delivery_hash, "")
    noted = target.noted(mark)
    if noted is None or noted.ends.get(plan.token.pipeline, 0) <= stopped.published:
        return None
    replaced = False
    for commit in target.lineage():
        if commit.delivery_hash.startswith(noted.delivery_hash):
            break
        replaced |= commit.replaces
    else:
        if target.was_undone(noted.delivery_hash, None):
            return None
        raise _unprovable(target, noted.delivery_hash, "its log does not go back as far any more")
    if replaced and not target.has_files():
        raise _unprovable(target, noted.delivery_hash, "it was overwritten since")
    looked = Looked(commit.brought or (0, 0), shown_before=True, verdicts=commit.properties.get(_VERDICTS))
    return Committed(commit.delivery_hash, tuple(commit.ends), commit.batch_id, looked)


class OnceIn:
    """Publishes a batch once, in the store and in a target."""

    def __init__(self, target: Target, store: ShardStore, batch: Batch, batch_id: int) -> None:
        self._target, self._store, self._batch, self._batch_id = target, store, batch, batch_id
        self._store_id, self._attempt = store.store_id(), uuid.uuid4().hex
        self._mark: Mark | None = None
        self._writes, self._lost = True, 0

    def publish(self) -> None:
        """Publish; raises what `ShardStore.publish` and the target raise."""
        self._store.publish_with(
            self._batch.plans,
            self._commit,
            batch_id=self._batch_id,
            winners=self._batch.winners,
            look=self._look,
        )

    def _look(self, batch: Unpublished) -> Looked:
        target = self._target
        self._mark = Mark(self._store_id, self._batch.plans, self._batch_id, batch.delivery_hash, self._attempt)
        self._lost = batch.passed_from(self._mark.pipelines)
        verdict, commit, is_sure = Verdict.NEW, None, True
        if target.open(batch.transaction):
            why, further = "", "to have this batch written now"
            try:
                verdict, commit = decide(target, self._mark, batch)
            except Unsure as unsure:
                why, is_sure = str(unsure), False
            # who takes over asks the target first, if the store knows it: one that was put back may not know it yet
            knew = None if commit is None else commit.lost
            if verdict is Verdict.SHOWN and commit is not None and knew is not None and self._lost > knew:
                why = (
                    f"{target.name} has the batch with the delivery hash {commit.delivery_hash}, and a part of it has "
                    "passed to another pipeline since, as after a restored backup of the store: its rows come twice; "
                    "delete them in one of both places"
                )
                further = "to go on"
            if why:
                pipeline = self._mark.first.token.pipeline
                if not batch.goes_on:
                    raise LostProgress(f"pipeline {pipeline!r}: {why}; or set 'failOnDataLoss' to false {further}")
                logger.warning("pipeline %s: %s; going on, as failOnDataLoss says", pipeline, why)
        self._writes = verdict in (Verdict.NEW, Verdict.GONE)
        if self._writes:
            target.choose(batch.transaction)
        before = commit or Commit()  # of this very attempt, too: what it recorded with its commit was rolled back
        shown_before = verdict is Verdict.SHOWN or not is_sure
        return Looked(before.brought or target.brought, shown_before, before.properties.get(_VERDICTS))

    def _commit(self, transaction: Transaction, published: Published) -> None:
        if published.already or not self._target.brought[0]:
            return
        if self._writes and self._mark is not None:
            self._target.append(self._mark.properties(self._target.brought, self._lost, published.verdicts))
        reach("table-committed")
