"""What happens next, by a seed; and when everything has ended, whether every promise was kept."""

from __future__ import annotations

import logging
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost, ShardStoreError
from shard_store.model import shard_key
from shard_store.shards.changes import Audit
from shard_store.upkeep.pruning import RetentionPolicy
from support.explorer.query import POINTS, Checkpoint, Death, Kind, Query
from support.explorer.world import LEASE, STALE, Broken, World

_STEPS = 60
_ROUNDS = 60  # of the fair end: then something is stuck

CASTS: tuple[tuple[Kind, ...], ...] = (
    (Kind((("p", "s"),), "ours"), Kind((("q", "s"),), "ours")),
    (Kind((("p", "s"),), "ours"), Kind((("q", "s"),), "delivery"), Kind((("r", "u"),), "other")),
    (Kind((("p", "s"),), "delivery"), Kind((("q", "s"),), "delivery")),
    (Kind((("p", "s"), ("x", "t")), "ours"), Kind((("q", "s"),), "delivery")),
    (Kind((("p", "s"), ("x", "t")), "delivery"), Kind((("q", "t"),), "ours")),
    (Kind((("p", "s"), ("x", "t")), "delivery"), Kind((("q", "s"), ("y", "t")), "ours")),
    (Kind((("p", "s"),), "other"), Kind((("q", "t"),), "other")),
)
"""The queries that run beside each other, one of these sets in each exploration.

One with a sink of another kind has its source for itself: such a sink is not fenced, and may publish what another
pipeline has acquired meanwhile.
"""


class Noticed(Exception):
    """A loss was noticed and said, as it must be; people decide how it goes on."""


class Explorer:
    """One exploration: a world, some queries, and a number of steps in an order that only the seed decides.

    `moods`: how much more or less often than usual each kind of step comes, so that explorations differ.
    """

    def __init__(self, seed: int, folder: Path, *, log: Callable[[str], None] = lambda line: None) -> None:
        self.choose = random.Random(seed)
        self.kinds = CASTS[seed % len(CASTS)]
        sources = sorted({source for kind in self.kinds for _, source in kind.pipelines})
        self.world = World(folder, {source: [f"o{n}" for n in range(self.choose.randint(3, 7))] for source in sources})
        self.world.own_sinks = {name for kind in self.kinds if kind.sink != "other" for name in kind.names}
        self.checkpoints = {kind: Checkpoint() for kind in self.kinds}
        self.queries: dict[Kind, Query] = {}
        self.zombies: list[Query] = []
        self.world.remembers = self.choose.random() < 0.4  # the store may go back, once
        self.copies_checkpoints = self.choose.random() < 0.35
        self.went_back = self.took_a_foreign_checkpoint = False
        self.moods = defaultdict[str, float](lambda: self.choose.choice((0.0, 0.5, 1.0, 1.0, 3.0)))
        self.moods |= {step: self.choose.choice((1.0, 3.0)) for step in ("_announce", "_work", "_trigger")}
        self._log = self.world.log = log

    def run(self) -> str:
        """Returns how it ended: "whole", or "noticed" where the store went back or a checkpoint was another's."""
        try:
            for _ in range(_STEPS):
                self._step()
                self.world.check_nothing_is_doubled()
                self.world.remember_state()
            self._end_fairly()
            self.world.check_all()
        except Noticed as noticed:
            self._log(f"noticed: {noticed}")
            return "noticed"
        finally:
            for query in (*self.queries.values(), *self.zombies):
                query.die()
            self.world.close()
        return "whole"

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self._announce: 8,
            self._work: 14,
            self._trigger: 22,
            self._die: 3,
            self._stop: 2,
            self._pass_time: 6,
            self._change_an_object: 5,
            self._operate: 3,
            self._prune: 1,
            self._take_over: 2,
            self._wake_a_zombie: 3,
            self._lose_a_checkpoint: 1,
            self._go_back: 1 if self.world.remembers else 0,
            self._take_a_foreign_checkpoint: 4 if self.copies_checkpoints else 0,
        }
        step = self.choose.choices(list(steps), [weight * self.moods[s.__name__] for s, weight in steps.items()])[0]
        self._log(step.__name__)
        step()

    def _announce(self) -> None:
        sources = list(self.world.objects)
        source = self.choose.choices(sources, [0.05 + self.moods[f"announce {source}"] for source in sources])[0]
        names = self.world.objects[source]
        self.world.announce(source, self.choose.sample(names, self.choose.randint(1, min(3, len(names)))))

    def _work(self) -> None:
        if query := self._running():
            calls = [self.choose.choice((r.work, r.receive, r.open, r.heartbeat)) for r in query.readers]
            all(self._guarded(query, call) for call in calls)

    def _trigger(self) -> None:
        if query := self._running(start=True):
            if self.choose.random() < 0.7:
                all(self._guarded(query, reader.work) for reader in query.readers)
            if not query.readers:
                return
            query.die_at = (
                self.choose.choice((*POINTS, "published", "published")) if self.choose.random() < 0.35 else None
            )
            without_data = self.choose.random() < 0.15 and query.kind.sink != "other"
            self._guarded(query, lambda: query.trigger(without_data=without_data))
            if self.world.remembers and self.choose.random() < 0.1:
                self._go_back()

    def _die(self) -> None:
        if query := self._running():
            self._end(query)

    def _stop(self) -> None:
        if query := self._running():
            self._guarded(query, query.stop)
            self.queries.pop(query.kind, None)

    def _pass_time(self) -> None:
        self.world.now += self.choose.choice((1.0, STALE / 3, STALE + 1, LEASE + 1))

    def _change_an_object(self) -> None:
        source = self.choose.choice(list(self.world.objects))
        uri = self.world.uri(source, self.choose.choice(self.world.objects[source]))
        (self.world.vanish if self.world.is_there(uri) else self.world.appear)(uri)

    def _operate(self) -> None:
        """By hand an object is given up, or one that was found bad is opened again."""
        source = self.choose.choice(list(self.world.objects))
        key = shard_key(source, self.world.uri(source, self.choose.choice(self.world.objects[source])))
        audit = Audit("me@here")
        if self.choose.random() < 0.7:
            self.world.store.put_back([key], audit, message_uri="message:")
        else:
            self.world.store.quarantine([key], audit)

    def _prune(self) -> None:
        self.world.store.prune(RetentionPolicy(timedelta(days=7), None))

    def _take_over(self) -> None:
        """Another driver starts a query that runs; the first one is a zombie, and does not know."""
        if (query := self._running()) and query.kind.sink != "other":
            self.zombies.append(self.queries.pop(query.kind))
            query.checkpoint = query.checkpoint.copy()
            self._start(query.kind)

    def _wake_a_zombie(self) -> None:
        if self.zombies:
            zombie = self.zombies.pop(self.choose.randrange(len(self.zombies)))
            try:
                zombie.trigger()
            except (PipelineTakenOver, ShardsLost, Death):
                pass
            except LostProgress as error:
                if not self.went_back:
                    raise Broken(f"a replaced query is told of a loss: {error}") from error
            finally:
                zombie.die()

    def _lose_a_checkpoint(self) -> None:
        """Only of a query that is through: what another sink has taken, or an output, is known by the checkpoint."""
        kind = self.choose.choice(self.kinds)
        query = self.queries.get(kind)
        if query is not None and query.checkpoint.unfinished is None:
            if self._guarded(query, query.trigger) and query.readers and query.checkpoint.unfinished is None:
                self._guarded(query, lambda: query.trigger())  # an empty one proves that the one before is done
            if query.readers and not any(reader.has_work for reader in query.readers):
                self._end(query)
                self.checkpoints[kind] = Checkpoint()
                if kind.sink != "ours":
                    self.world.forget_earlier_states()  # without both, nothing tells what was taken

    def _go_back(self) -> None:
        if not self.went_back and len(self.world.states) > 1:
            steps = self.choose.randint(1, 5)
            stopped = self.choose.random() < 0.5  # as the page on backups says; else a standby is promoted
            self._log(f"  by {steps}" + ", with all queries stopped" * stopped)
            for query in [*self.queries.values()]:
                if stopped:
                    self._end(query)
                else:  # what is confirmed is acknowledged a moment later; before or after, the store cannot tell
                    all(self._guarded(query, reader.acknowledge) for reader in query.readers)
            self.world.go_back(steps)
            for reader in [reader for query in self.queries.values() for reader in query.readers]:
                reader.lose_connections()
            self.went_back = True

    def _take_a_foreign_checkpoint(self) -> None:
        """A query is started with the checkpoint of another one, by mistake; and with its own afterwards."""
        mine, other = self.choose.sample(self.kinds, 2)
        if not self.checkpoints[other].batches or len(mine.names) != len(other.names):
            return
        if (query := self.queries.get(mine)) is not None:
            query.die_at = self.choose.choice(POINTS[:4])  # a batch of its own is not finished
            if all(self._guarded(query, reader.work) for reader in query.readers):
                self._guarded(query, query.trigger)
            self._end(query)
        self.took_a_foreign_checkpoint = True
        stranger = self.checkpoints[other].copy()
        stranger.name = Checkpoint().name
        renamed = dict(zip(other.names, mine.names, strict=True))

        def as_mine(offsets: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
            return {renamed[name]: offset for name, offset in offsets.items()}

        stranger.batches = {n: (as_mine(a), as_mine(b)) for n, (a, b) in stranger.batches.items()}
        own, self.checkpoints[mine] = self.checkpoints[mine], stranger
        try:
            self._start(mine)
            if query := self.queries.get(mine):
                self._guarded(query, query.trigger)
        except Noticed:
            pass  # said, and nothing is changed by it
        finally:
            if query := self.queries.get(mine):
                self._end(query)
            self.checkpoints[mine] = own

    # --- the lives of queries -----------------------------------------------------------------------------------------

    def _running(self, *, start: bool = False) -> Query | None:
        kind = self.choose.choice(self.kinds)
        if start and kind not in self.queries:
            self._start(kind)
        return self.queries.get(kind)

    def _start(self, kind: Kind) -> None:
        try:
            self.queries[kind] = Query(self.world, kind, self.checkpoints[kind], self.choose)
        except ShardStoreError as error:
            self._notice(error)

    def _end(self, query: Query) -> None:
        query.die()
        self.queries.pop(query.kind, None)

    def _guarded(self, query: Query, call: Callable[[], object]) -> bool:
        """The call, and what a query's driver does when it fails: it ends."""
        try:
            call()
            return True
        except (Death, ShardsLost, PipelineTakenOver):
            pass
        except ShardStoreError as error:
            self._end(query)
            self._notice(error)
        self._end(query)
        return False

    def _notice(self, error: ShardStoreError) -> None:
        if not (self.went_back or self.took_a_foreign_checkpoint):
            raise Broken(f"a loss was told where nothing was lost: {error}") from error
        raise Noticed(str(error)) from error

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_fairly(self) -> None:
        """Every query runs, every object is there, nothing fails; then everything that was announced is somewhere."""
        for query in (*self.queries.values(), *self.zombies):
            query.die()
        self.queries, self.zombies = {}, []
        for source, names in self.world.objects.items():
            for name in names:
                self.world.appear(self.world.uri(source, name))
        self._log("end")
        for _ in range(_ROUNDS):
            self.world.now += LEASE + STALE
            for kind in self.kinds:
                if kind not in self.queries:
                    self._start(kind)
                query = self.queries[kind]
                query.die_at = None
                for _ in range(2):
                    calls: list[Callable[[], object]]
                    calls = [call for reader in query.readers for call in (reader.heartbeat, reader.work)]
                    calls += [query.trigger, *(reader.acknowledge for reader in query.readers)]
                    all(self._guarded(query, call) for call in calls)  # until one fails, and the query has ended
            if self._is_through():
                return
        raise Broken(f"something is stuck: {self.world.shard_states()}, {self.world.waiting_messages()} messages")

    def _is_through(self) -> bool:
        if self.world.waiting_messages() or "open" in self.world.shard_states().values():
            return False
        return all(query.checkpoint.unfinished is None for query in self.queries.values())


def explore(seed: int, *, log: Callable[[str], None] = lambda line: None) -> str:
    """Run one exploration in a folder of its own; raises Broken with the seed in its text."""
    logger = logging.getLogger("cuesqueue")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Explorer(seed, Path(folder), log=log).run()
    except Exception as error:
        error.args = (f"seed {seed}: {error}",)
        raise
    finally:
        logger.setLevel(level)
