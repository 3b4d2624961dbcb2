"""Several pipelines on one store under an adversarial scheduler: no interleaving breaks a promise of the design.

And none makes a difference between a store that trusts its driver's row counts and one that does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shard_store.errors import PipelineTakenOver, ShardsLost
from shard_store.model import (
    Content,
    ErrorRecord,
    Position,
    PublishToken,
    Reading,
    ShardState,
    end_at,
    position_at,
    shard_key,
)
from shard_store.shards.changes import Audit
from shard_store.shards.recording import Receipts
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_model import SIZE, STALE, Actor, Checkpoint, Crash, Model, TwinWorld, World, run

NAMES = ("p", "q", "foreign")
IDS = [f"k{i}" for i in range(6)]
FAULTS = st.sampled_from([*[None] * 14, *["lost answer"] * 2, 0, 2, 4, 6, 9, 12])  # a quarter of the steps fail
DEATHS = st.sampled_from([*[None] * 9, 0, 2, 5])
ZOMBIE_STEPS = ("deliver", "plan", "heartbeat", "acquire", "open", "snapshot")
ENDS = st.lists(
    st.one_of(st.just(end_at(SIZE)), st.integers(1, SIZE - 1).map(position_at)), min_size=1, max_size=len(IDS)
)


CAUSES = st.sampled_from(["missing-object", "object-changed", "corrupt-object"])


class Pipelines(RuleBasedStateMachine):
    """Each rule is a step of one process, in any order. A process may die in each, or be a zombie by now."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world, self.model = self.made_in(Path(self._folder.name))
        self.checkpoints = {name: Checkpoint() for name in NAMES}
        self.actors: dict[str, Actor] = {}
        self.zombies: list[Actor] = []
        self.announced: set[str] = set()
        self.last: tuple[str, PublishToken | None] = ("nothing", None)

    def made_in(self, folder: Path) -> tuple[World, Model | TwinWorld]:
        world = World(folder)
        return world, Model(world)

    def act(self, name: str, step: str, call: Callable[[Actor], None], fault: int | str | None) -> None:
        """A step of the pipeline's process, which is started when it has none; it dies of a fault."""
        if name not in self.actors:
            self.start(name, None, False)
            self.model.check(*self.last, self.checkpoints)
        actor = self.actors[name]
        self.last = (step, actor.token)
        try:
            run(self.world, fault, lambda: call(actor))
        except Crash:
            del self.actors[name]
        except ShardsLost:
            actor.plan = None

    @rule(name=st.sampled_from(NAMES), fault=FAULTS, zombie=st.booleans())
    def start(self, name: str, fault: int | str | None, zombie: bool) -> None:
        before = self.actors.pop(name, None)
        self.last = ("start", PublishToken(name, 0))
        try:
            self.actors[name] = run(
                self.world,
                fault,
                lambda: Actor.start(self.world.store, name, self.checkpoints[name], name == "foreign"),
            )
        except Crash:
            return
        if before is not None and zombie:
            self.zombies.append(before)

    @rule(name=st.sampled_from(NAMES), ids=st.lists(st.sampled_from(IDS), min_size=1), fault=FAULTS)
    def announce(self, name: str, ids: list[str], fault: int | str | None) -> None:
        self.announced.update(ids)
        self.act(name, "open", lambda actor: actor.open(ids), fault)

    @rule(name=st.sampled_from(NAMES), fault=FAULTS)
    def acquire(self, name: str, fault: int | str | None) -> None:
        self.act(name, "acquire", Actor.acquire, fault)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), fault=DEATHS)
    def release(self, name: str, count: int, fault: int | None) -> None:
        self.act(name, "release", lambda actor: actor.release(count), fault)

    @rule(name=st.sampled_from(NAMES), fault=FAULTS)
    def heartbeat(self, name: str, fault: int | str | None) -> None:
        self.act(name, "heartbeat", lambda actor: actor.store.heartbeat(actor.token, STALE), fault)

    @rule(name=st.sampled_from(NAMES), ends=ENDS, fault=DEATHS)
    def snapshot(self, name: str, ends: list[Position], fault: int | None) -> None:
        self.act(name, "snapshot", lambda actor: actor.snapshot(ends), fault)

    @rule(name=st.sampled_from(NAMES), fault=FAULTS)
    def plan(self, name: str, fault: int | str | None) -> None:
        self.act(name, "plan", Actor.make_plan, fault)

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        """The sink has it, and the driver does not know: the batch will come again."""
        self.act(name, "take", Actor.take, None)

    @rule(name=st.sampled_from(NAMES), fault=FAULTS)
    def deliver(self, name: str, fault: int | str | None) -> None:
        self.act(name, "deliver", Actor.deliver, fault)

    @rule(name=st.sampled_from(NAMES), cause=CAUSES)
    def deliver_without_bad(self, name: str, cause: str) -> None:
        self.act(name, "deliver", lambda actor: actor.deliver_without_bad(cause), None)

    @rule(shard_id=st.sampled_from(IDS), fault=DEATHS, back=st.booleans())
    def operate(self, shard_id: str, fault: int | None, back: bool) -> None:
        """By hand a shard is given up, or what was found bad is opened again."""
        self.last = ("operator", None)
        store, key = self.world.store, shard_key("s", shard_id)
        found = store.look([key])
        if key not in found or (found[key].state is ShardState.QUARANTINED) is not back:
            return

        def change() -> None:
            if back:
                store.put_back([key], Audit("me@here"), message_uri="message:")
            else:
                store.quarantine([key], Audit("me@here"))

        with suppress(Crash):
            run(self.world, fault, change)

    @rule(name=st.sampled_from(NAMES), fault=FAULTS)
    def confirm(self, name: str, fault: int | str | None) -> None:
        self.act(name, "confirm", Actor.confirm, fault)

    @rule(name=st.sampled_from(NAMES), ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=4), ends=ENDS)
    def batch(self, name: str, ids: list[str], ends: list[Position]) -> None:
        """A whole micro-batch that nothing disturbs."""
        self.announced.update(ids)
        whole: list[tuple[str, Callable[[Actor], None]]] = [
            ("open", lambda actor: actor.open(ids)),
            ("acquire", Actor.acquire),
            ("snapshot", lambda actor: actor.snapshot(ends)),
            ("plan", Actor.make_plan),
            ("deliver", Actor.deliver),
            ("confirm", Actor.confirm),
        ]
        for step, call in whole:
            self.act(name, step, call, None)
            self.model.check(*self.last, self.checkpoints)

    @rule(thief=st.sampled_from(NAMES), back=st.booleans(), again=st.booleans(), victim=st.sampled_from(NAMES))
    def steal(self, thief: str, back: bool, again: bool, victim: str) -> None:
        """Everything passes to one pipeline when the others have paused for too long; perhaps it comes back.

        Perhaps it comes back to a batch that is attempted again, after its sink has taken what the first attempt had.
        """
        self.announced.update(IDS[: not self.announced])  # at least one
        everything = sorted(self.announced)
        steps: list[tuple[str, str, Callable[[Actor], None]]] = [
            (victim, "open", lambda actor: actor.open(everything)),
            (victim, "snapshot", lambda actor: actor.snapshot([end_at(SIZE)] * 3)),
            ("", "", lambda _: None),
            (thief, "heartbeat", lambda actor: actor.store.heartbeat(actor.token, STALE)),
            (thief, "open", lambda actor: actor.open(everything)),
            (thief, "acquire", Actor.acquire),
        ]
        if back:
            steps += [
                (victim, "plan", Actor.make_plan),
                (thief, "release", lambda actor: actor.release(len(IDS))),
                (victim, "open", lambda actor: actor.open(everything)),
                (victim, "acquire", Actor.acquire),
                *([(victim, "take", Actor.take), (victim, "plan", Actor.make_plan)] if again else []),
                (victim, "deliver", Actor.deliver),
                (victim, "confirm", Actor.confirm),
            ]
        for name, step, call in steps:
            if not name:
                self.world.now += STALE + 1
                continue
            self.act(name, step, call, None)
            self.model.check(*self.last, self.checkpoints)

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        self.actors.pop(name, None)
        self.last = ("nothing", None)

    @rule(step=st.sampled_from(ZOMBIE_STEPS), which=st.integers(0, 9))
    def wake_a_zombie(self, step: str, which: int) -> None:
        """A process that was replaced goes on as if nothing had been: it writes nothing."""
        if not self.zombies:
            return
        zombie = self.zombies[which % len(self.zombies)]
        self.last = ("nothing", None)
        if step == "deliver" and zombie.plan is not None:
            identity = zombie.plan.identity
            self.refused(lambda: zombie.store.publish([identity], [], batch_id=99))
        elif step == "plan":
            self.refused(lambda: zombie.store.plan(zombie.token, zombie.confirmed, zombie.last_seq))
        elif step == "heartbeat":
            self.refused(lambda: zombie.store.heartbeat(zombie.token, STALE))
        elif step == "acquire":
            self.refused(zombie.acquire)
        elif step == "open":
            self.refused(lambda: zombie.open(IDS))
        elif step == "snapshot":
            self.refused(lambda: zombie.snapshot([end_at(SIZE)]))

    def refused(self, call: Callable[[], object]) -> None:
        try:
            call()
        except PipelineTakenOver:
            return
        raise AssertionError("a zombie was not refused")

    @rule(seconds=st.sampled_from([1.0, STALE / 2, STALE + 1, 30 * 86_400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.last = ("nothing", None)

    @rule(most=st.sampled_from([None, 0, 2]), days=st.sampled_from([0, 7]), fault=FAULTS)
    def prune(self, most: int | None, days: int, fault: int | str | None) -> None:
        self.last = ("prune", None)
        try:
            now = datetime.fromtimestamp(self.world.now, timezone.utc)  # given: else a longer step has to last first
            run(self.world, fault, lambda: self.world.store.prune(RetentionPolicy(timedelta(days=days), most), now))
        except Crash:
            return

    @invariant()
    def promises_hold(self) -> None:
        self.model.check(*self.last, self.checkpoints)

    def work_left(self, name: str) -> bool:
        """Something announced is not published, or the pipeline does not know yet that all of its own is."""
        states = [row[2] for page in self.world.store.pages("shards") for row in page]
        actor = self.actors[name]
        return "open" in states or self.checkpoints[name].batch is not None or actor.confirmed < actor.last_seq

    def teardown(self) -> None:
        """A fair scheduler: every pipeline runs, nothing fails; then everything announced is published."""
        try:
            for name in [name for _ in range(3) for name in NAMES]:
                self.world.now += STALE + 1
                self.last = ("start", PublishToken(name, 0))
                self.actors[name] = Actor.start(self.world.store, name, self.checkpoints[name], name == "foreign")
                self.model.check(*self.last, self.checkpoints)
                for _ in range(4):
                    if self.work_left(name):
                        self.batch(name, sorted(self.announced) or IDS[:1], [end_at(SIZE)] * len(IDS))
            assert not any(self.work_left(name) for name in NAMES)
        finally:
            self.world.close()
            self._folder.cleanup()


TestPipelines = Pipelines.TestCase
TestPipelines.settings = settings(
    max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)


class DistrustedRowCounts(Pipelines):
    """The same steps, and what else counts rows, on two stores: the answers and the tables are the same."""

    def made_in(self, folder: Path) -> tuple[World, Model | TwinWorld]:
        world = TwinWorld(folder)
        return world, world

    def act(self, name: str, step: str, call: Callable[[Actor], None], fault: int | str | None) -> None:
        """By a process that lives: whether its own shards are `stale`, which it never asks, no row count tells."""

        def alive(actor: Actor) -> None:
            actor.store.heartbeat(actor.token, STALE)
            call(actor)

        super().act(name, step, alive, fault)

    @rule(
        name=st.sampled_from(NAMES),
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
        size=st.sampled_from([0, SIZE]),
        etag=st.sampled_from([None, "a", "b"]),
    )
    def announce_a_version(self, name: str, ids: list[str], size: int, etag: str | None) -> None:
        self.announced.update(ids)
        self.act(name, "open", lambda actor: actor.open(ids, size, etag), None)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1), etag=st.sampled_from([None, "a"]), message=st.integers(0, 9))
    def record(self, ids: list[str], etag: str | None, message: int) -> None:
        """A receiver records what its queue announces, perhaps by a message that comes again."""
        self.announced.update(ids)
        self.last = ("record", None)
        contents = [Content(i, i, SIZE, etag, message_id=f"r{message}", named=True) for i in ids]
        self.world.store.start_receiver("r", "queue", "host", ["s"])
        self.world.store.record("r", {"s": contents}, Receipts(messages=1))

    @rule(name=st.sampled_from(NAMES), partition=st.integers(0, 1), times=st.integers(1, 2), bad=st.booleans())
    def read(self, name: str, partition: int, times: int, bad: bool) -> None:
        """A task of a batch begins, perhaps once more, and perhaps says that an object is bad."""
        self.announced.update(IDS)

        def begin(actor: Actor) -> None:
            actor.open(IDS)
            actor.snapshot([end_at(SIZE)] * 2)
            actor.make_plan()
            if actor.plan is None or not actor.plan.ranges:
                return
            identity, entry = actor.plan.identity, actor.plan.ranges[0]
            reading = Reading(0, partition, partition)
            for _ in range(times):
                actor.store.begin_reading(identity, reading, first=partition == 0, tasks=2)
            if bad:
                cause, subject = "corrupt-object", entry.content.shard_id
                error = ErrorRecord("object", cause, "", subject, identity.delivery_hash, entry.start)
                actor.store.report(identity, [error], reading, 2)

        self.act(name, "read", begin, None)


TestDistrustedRowCounts = DistrustedRowCounts.TestCase
TestDistrustedRowCounts.settings = settings(
    max_examples=30, stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)
