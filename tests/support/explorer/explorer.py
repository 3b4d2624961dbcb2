"""What happens next, by a seed; and when everything has ended, whether every promise was kept.

Each step draws from a generator of its own, made of the seed and the step's number: so steps can be left out, and the
others do what they did (`shrinking.py`).
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from queue_source.announcements.dialects import DIALECTS
from shard_store import failpoints
from shard_store.model import ShardState
from support.explorer import operators, restores
from support.explorer.casts import casts_of, kinds_taken
from support.explorer.disasters import Disasters
from support.explorer.engines import shared_dialects
from support.explorer.limits import small_limits
from support.explorer.lives import Lives, Noticed
from support.explorer.meetings import Meetings
from support.explorer.objects import FILES, Event
from support.explorer.points import OF_CODE, OURS, POINTS, Death
from support.explorer.promises import Broken
from support.explorer.usual import Steps, Usual
from support.explorer.world import LEASE, STALE, World
from support.temporary import MEMORY

__all__ = ["MODULES", "TAKEN", "Explorer", "explore"]

MODULES: list[Callable[[Explorer], Steps]] = []
"""What brings steps; each is called once for an exploration. Those of this package are in `steps_of`."""

TAKEN: Counter[str] = Counter()
"""How often each step was taken in this process, and what became of it."""

Taken = tuple[int, str]
"""A step: its number and its name."""

RARE = frozenset(
    {"adopt", "compact", "drop", "forget", "migrate", "operate", "prune_data", "prune_shards", "quarantine"}
    | {"reconcile", "reopen", "requeue", "reset", "status", "vacuum", "list_objects", "take_a_foreign_checkpoint"}
    | {"lose_a_checkpoint"}
)
"""Steps that not all explorations take."""
_STEPS = 60
_FEW_STEPS = 18  # of a cast that has few kinds of them
_ROUNDS = 60  # of the fair end: then something is stuck


class Moods(dict[str, float]):
    """How much more or less often than usual each step comes, so that explorations differ."""

    def __init__(self, seed: int, fixed: Mapping[str, float]) -> None:
        super().__init__(fixed)
        self._seed = seed

    def __missing__(self, name: str) -> float:
        """What is rare comes often where it comes at all: so two rare things meet."""
        if name in ("announce", "work", "trigger", "route"):
            often: tuple[float, ...] = (1.0, 3.0)
        elif name in RARE:
            often = (0.0, 0.0, 0.0, 1.0, 4.0)
        else:
            often = (0.0, 0.5, 1.0, 1.0, 3.0)
        self[name] = random.Random(f"{self._seed} mood of {name}").choice(often)
        return self[name]


class Explorer:
    """One exploration: a world, some queries, and a number of steps in an order that only the seed decides.

    `takes`: the kinds of steps (`casts.KINDS`) that may come beside the usual ones. `taken`: the steps so far.
    """

    def __init__(
        self, seed: int, folder: Path, *, takes: Collection[str], log: Callable[[str], None] = lambda line: None
    ) -> None:
        self.choose = random.Random(f"{seed} world")
        casts = casts_of(takes)
        cast = casts[seed % len(casts)]
        takes = frozenset(takes) - cast.without
        self.seed, self.takes, self.length = seed, takes, _FEW_STEPS if cast.steps else _STEPS
        sources = sorted({source for kind in cast.kinds for _, source in kind.pipelines})
        endings = (".json", ".json", ".json", ".json.gz") if "versions" in takes else (".json",)
        # where there are few objects, what comes in between is more often about the same one
        few = "meetings" in takes and random.Random(f"{seed} objects").random() < 0.5
        number = 2 if few else self.choose.randint(3, 7)
        names = {
            source: [f"o{n}{endings[n % len(endings)]}" for n in range(number if cast.shared or few else self._some())]
            for source in sources
        }
        forms: tuple[str, ...] = ("whole", "whole", "large") if "versions" in takes else ("whole",)
        if few and "versions" in takes:
            forms = ("whole", "empty", "empty", "large")  # what was empty at first may be opened again
        self.world = World(folder, cast, names, lambda: self.choose.choice(forms))
        self.lives = Lives(self.world, self.choose, reorders="orders" in takes)
        self.disasters = Disasters(self.lives)
        self.events: list[Event] = []  # that nobody was told of yet
        often = "restores" in takes and self.world.tables
        self.world.remembers = self.choose.random() < (0.8 if often else 0.4)  # store and tables may go back, once
        self.world.spares = random.Random(f"sizes {seed}").random() < 0.5  # what a URI alone announces is not looked up
        self.world.keeps_queues = "spellings" in takes
        if (often and "spellings" in takes) or "go_back" in cast.steps:
            self.world.remembers = True
        if "listings" in takes and not cast.routed and not cast.versioned and self.choose.random() < 0.5:
            self.world.lists = frozenset(sources)
        self.world.tells_errors = "operators" in takes and self.choose.random() < 0.3
        self.world.keeps_versions = cast.needs == "clones" and self.choose.random() < 0.7
        self.copies_checkpoints = self.choose.random() < 0.35 and len(cast.kinds) > 1
        self.disasters.waits = "spellings" in takes and self.choose.random() < (0.8 if self.world.tables else 0.4)
        self.disasters.begins = "beginnings" in takes
        self.dies = self.choose.choice((0.0, 0.1, 0.3)) if "failpoints" in takes else 0.0
        POINTS.repeats = self.choose if self.dies and self.choose.random() < 0.5 else None
        self.moods = Moods(seed, dict.fromkeys(cast.steps, 1.0))
        self.taken: list[Taken] = []
        self.log = self.world.log = log
        self.usual = Usual(self)
        self.steps: Steps = {}
        for steps_of in (*OWN, *MODULES):
            self.steps |= steps_of(self)
        self.every = dict(self.steps)  # also those that come only in the middle of a command
        if cast.steps:
            self.steps = {
                name: (cast.steps.get(name, 1.0), call)
                for name, (weight, call) in self.steps.items()
                if name in cast.steps or (name == "put_back" and weight and self.world.tables)
            }
        self.world.between_tasks = self.usual.while_a_batch_is_read
        self.meetings = Meetings(self)

    def _some(self) -> int:
        return self.choose.randint(3, 7)

    def run(self, steps: Sequence[Taken] | None = None) -> str:
        """Take steps as the seed says, or exactly these; returns "whole", or "noticed" where a loss was said."""
        try:
            for number, name in self._chosen() if steps is None else steps:
                self.take(number, name)
            self.choose.seed(f"{self.seed} end")
            self._end_fairly()
        except Noticed as noticed:
            self.log(f"noticed: {noticed}")
            return "noticed"
        finally:
            with POINTS.calm():
                self.lives.end_all()
                self.world.close()
        return "whole"

    def _chosen(self) -> Iterator[Taken]:
        goes_back = random.Random(f"{self.seed} goes back").randint(self.length // 4, self.length * 3 // 4)
        for number in range(self.length):
            which = random.Random(f"{self.seed} which {number}")
            is_due = number == goes_back and self.world.tables and "put_back" in self.steps
            yield number, "put_back" if is_due else self.choose_step(which)

    def choose_step(self, which: random.Random, among: Collection[str] | None = None) -> str:
        """Choose the name of a step; `among`: one of these."""
        weights = {name: self._weight(name) * self.moods[name] for name in self.steps if among is None or name in among}
        return which.choices(list(weights), [weight or 1e-9 for weight in weights.values()])[0]

    def _weight(self, name: str) -> float:
        """What happens between a death and the next start is where most is to be found out."""
        often = 4 if self.lives.is_batch_left and name in _AFTERMATH else 1
        return self.steps[name][0] * often

    def take(self, number: int, name: str) -> None:
        """Take one step, and see what it has done. A step that is not of this world does nothing."""
        self.taken.append((number, name))
        if name not in self.steps:
            return
        self.log(f"{number} {name}")
        self.choose.seed(f"{self.seed} step {number}")
        TAKEN[name] += 1
        point = self.choose.choice((*OF_CODE, *OURS)) if self.choose.random() < self.dies else None
        try:
            with self.meetings.step(number), POINTS.dying(point, self.choose.randrange(3) if point in OURS else 0):
                self.steps[name][1]()
        except Death as death:  # in no process of a query's or a command's: the machine fails
            self.log(f"  all die at {death}")
            self.lives.end_all()
        self._check_targets()
        self.world.remember_state()

    def _check_targets(self) -> None:
        """What another pipeline has read again since the store went back: who wrote it first says so when it runs."""
        try:
            self.world.promises.check_targets()
        except Broken:
            if self.lives.may_notice:
                self.world.is_calm = True  # else a guest may come in each round, and let no query go on
                self._go_on()
            raise

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_fairly(self) -> None:
        """Every query runs, every object is there, nothing fails; then everything that was announced is somewhere."""
        world = self.world
        world.is_calm = True
        self.lives.end_all()
        for uri in sorted(world.objects.versions):
            world.objects.appear(uri)
        for event in self.events:
            self.tell(event)
        if world.requeues:
            operators.Operators(self).requeue_to_the_end()
        self.log("end")
        self._go_on()
        world.promises.check_all()
        if "certificates" in self.takes:
            self.usual.certify()
        if "repairs" in self.takes and not self.disasters.went_back:
            self._repair()

    def _repair(self) -> None:
        """What is known to be unread is written anew, and announced."""
        world = self.world
        if world.cast.versioned:
            return
        unread = [of for of in world.promises.unread() if of not in world.by_hand]
        for uri in sorted({uri for _, uri in unread}):
            world.objects.write(uri, "longer", world.now)
            self.tell(world.objects.event(uri, facts=True))
        self.log("written anew")
        self._go_on()
        world.promises.check_all()
        world.promises.check_is_read_anew(unread)

    def tell(self, event: Event) -> None:
        """Announce it: once to a receiver, else to each source that has the object."""
        sources = [source for source, uris in self.world.names.items() if event.uri in uris]
        for source in sources[:1] if self.world.cast.routed else sources:
            self.world.announce(source, [event])

    def _go_on(self) -> None:
        """Until all is through."""
        lives = self.lives
        with POINTS.calm():
            for number in range(_ROUNDS):
                self.world.now += LEASE + STALE
                with self.meetings.step(f"end {number}"):
                    if self.world.cast.routed:
                        lives.route(None)
                    for kind in lives.kinds:
                        if kind not in lives.queries:
                            lives.start(kind)
                        query = lives.queries[kind]
                        query.die_at = None
                        for _ in range(2):
                            calls: list[Callable[[], object]]
                            calls = [call for reader in query.readers for call in (reader.heartbeat, reader.work)]
                            calls += [query.trigger, *(reader.acknowledge for reader in query.readers)]
                            all(lives.guarded(query, call) for call in calls)  # until one fails: the query has ended
                if self._is_through():
                    return
        raise Broken(f"something is stuck: {self.world.shard_states()}, {self.world.waiting_messages()} messages")

    def _is_through(self) -> bool:
        open_ones = {of for of, state in self.world.shard_states().items() if state == ShardState.OPEN.value}
        if self.world.waiting_messages() or open_ones - self.world.lost_messages:
            return False
        return all(query.checkpoint.unfinished is None for query in self.lives.queries.values())


def _usual(explorer: Explorer) -> Steps:
    return explorer.usual.steps()


def _disasters(explorer: Explorer) -> Steps:
    return explorer.disasters.steps(explorer)


OWN: tuple[Callable[[Explorer], Steps], ...] = (_usual, _disasters, restores.steps_of, operators.steps_of)
_AFTERMATH = ("write", "lose_the_checkpoint_of_a_batch", "restore", "put_back")


def explore(
    seed: int,
    *,
    takes: Collection[str] | None = None,
    steps: Sequence[Taken] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> str:
    """Run one exploration in a folder of its own; raises Broken with the seed in its text, and its steps as `taken`.

    It takes the kinds of steps that the environment names, unless they are given. `steps`: take exactly these.
    """
    kinds = kinds_taken() if takes is None else takes
    logger = logging.getLogger("cuesqueue")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    explorer: Explorer | None = None
    try:
        with (
            _folder(seed) as folder,
            mock.patch.dict(DIALECTS, {"files": FILES}),
            mock.patch.object(failpoints, "_armed", POINTS),
            small_limits(seed, kinds),
            shared_dialects(),
        ):
            explorer = Explorer(seed, folder, takes=kinds, log=log)
            with explorer.meetings.armed():
                ending = explorer.run(steps)
            TAKEN[f"ended: {ending}"] += 1
            return ending
    except Exception as error:
        error.args = (f"seed {seed}: {error}",)
        error.taken = [] if explorer is None else explorer.taken  # type: ignore[attr-defined]
        raise
    finally:
        logger.setLevel(level)


@contextmanager
def _folder(seed: int) -> Iterator[Path]:
    """A folder of the same name each time, unless two run at once: the keys of shards are made of their paths.

    In memory, as all temporary files of tests: a third of the time went to the disk.
    """
    place = (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"cuesqueue-explorer-{seed}"
    try:
        place.mkdir()
    except FileExistsError:
        with tempfile.TemporaryDirectory() as other:
            yield Path(other)
        return
    try:
        yield place
    finally:
        shutil.rmtree(place)
