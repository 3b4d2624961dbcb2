"""The task attempts of a batch, numbered as Spark does, and what they tell the store of what they read."""

from __future__ import annotations

from dataclasses import dataclass, field

from shard_store.model import BEGINNING, Content, ErrorRecord, Plan, Reading, ShardState, Split, shard_key
from shard_store.shards.changes import Audit
from shard_store.store import ShardStore
from support.store_backends import Pipeline

KEY = shard_key("s", "a")


@dataclass
class Spark:
    """Numbers task attempts as Spark does, in the order in which they begin; each tells the store what ours tell."""

    us: Pipeline
    plan: Plan
    tasks: int = 0
    stages: int = 0
    parts: int = 3
    begun: list[Reading] = field(default_factory=list)

    @classmethod
    def batch(cls, store: ShardStore, *ids: str) -> Spark:
        us = Pipeline.start(store)
        return cls(us, us.planned(*(ids or ("b", "a", "c"))))

    def stage(self, partitions: int = 3) -> list[Reading]:
        """A reading of the whole plan: the first attempts at its tasks."""
        self.stages += 1
        self.parts = partitions
        return [self.begin(place) for place in range(partitions)]

    def begin(self, partition: int, *, repeated: bool = False, in_stage: int | None = None) -> Reading:
        """One task attempt, of the last stage unless another one is named."""
        reading = Reading(in_stage or self.stages, partition, self.tasks, repeated)
        self.tasks += 1
        first = partition == 0 and not self.plan.direct
        if first or repeated:
            self.us.store.begin_reading(self.plan.identity, reading, first=first, tasks=self.parts)
        return reading

    def judge(self, reading: Reading, shard_id: str = "a", cause: str = "missing-object") -> None:
        record = ErrorRecord("object", cause, "why", shard_id, self.plan.identity.delivery_hash, BEGINNING, "q", "m")
        self.us.store.report(self.plan.identity, [record], reading, self.parts)

    def publish(self, *winners: Reading) -> None:
        """By our sink."""
        self.us.publish(self.plan, Split(f"/{self.plan.identity}", 1, 1), winners=[winner.task for winner in winners])
        self.us.confirm()

    def following(self, *ids: str) -> Spark:
        """The next batch of the same query."""
        return Spark(self.us, self.us.planned(*ids), self.tasks, self.stages)

    def again(self) -> Spark:
        """A new attempt, by a new reader of another driver: its Spark counts from the beginning."""
        us = Pipeline.start(self.us.store)
        us.confirmed = self.us.confirmed
        return Spark(us, us.plan())


def opens(spark: Spark) -> bool:
    """Whether a new announcement has the object read again; an operator is told the same."""
    shard = spark.us.look("a")["a"]
    assert shard.state is ShardState.QUARANTINED, "what was found bad is never taken for published"
    refused = spark.us.store.put_back([KEY], Audit("ada@host"), message_uri="message", dry_run=True).refused
    announced = Content("a", "a", 10, None, "q", "another message")
    found = spark.us.store.open_shards(spark.us.token, "s", [announced])[KEY]
    assert found.reopened == ("a" not in refused)
    return found.reopened
