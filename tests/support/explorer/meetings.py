"""Meetings: where one step of a process has read something and not acted on it yet, other steps come in between.

A step is a turn of one process: a call of Spark's, a turn of one of a reader's threads, an operator's command. All
turns share one OS thread, as greenlets, and change only at points. A point is a place where another thread or process
could act just as well: before and after each transaction of a store or a queue, before each method of what the threads
of a reader share in memory, after objects were looked up, and at each failpoint of the code. None has to be named by
hand. At a point a guest may come: another turn, which itself may stop at a point and go on later, at the latest when
the step ends; or the process dies there. A turn that needs a lock of another one waits for it. While a transaction is
open no turn changes.

So every interleaving of two turns is within reach, a deeper one as far as `_DEPTH` allows, and a seed repeats it. What
SQLite cannot show is not reached: what happens inside a transaction while others are open.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import greenlet

from queue_source.coordinator.in_flight import InFlight
from queue_source.errors import CuesqueueError
from shard_store.errors import ShardStoreError, StoreConfigurationError
from shard_store.sql.database import Database
from support.explorer import reader as readers
from support.explorer.casts import Kind
from support.explorer.lives import Lives
from support.explorer.operators import Operators, Said
from support.explorer.points import POINTS, Death, Points
from support.explorer.promises import Promises
from support.explorer.query import Query
from support.explorer.reader import Reader, Router
from support.explorer.world import LEASE, STALE, World

if TYPE_CHECKING:
    from support.explorer.explorer import Explorer

MET: Counter[tuple[str, str]] = Counter()
"""How often, in this process, which guest has come at which point."""
REACHED: Counter[str] = Counter()
"""How often each point was reached at which a guest might have come."""

RATES = (0.005, 0.02, 0.05)
"""How often, of an exploration, a guest comes where a step reaches a point; less often where it has reached it before.

So that what a step reaches once is not lost among what it reaches a hundred times.
"""
FOCUS = (
    "progress",
    "progress",
    "opening",
    "acknowledging",
    "coordinator",
    "errors",
    "cleaning",
    "backfill",
    "receivers",
)
"""Modules of the coordinator: an exploration looks closely at what one of these has begun, since windows are short."""
_CLOSELY = 0.3
_NO_GUESTS = frozenset(("work", "trigger", "route", "clean", "pass_time", "take_over", "wake_a_zombie", "die", "stop"))
_NO_GUESTS |= {"restore", "go_back", "lose_a_checkpoint", "take_a_foreign_checkpoint", "lose_the_checkpoint_of_a_batch"}
_NO_GUESTS |= {"reset", "vacuum", "put_back", "list_objects", "adopt", "forget"}
"""Steps that come as guests of another kind, or that end queries, or put things back: these do not come as guests."""
_DEPTH = 3  # turns within each other
_GUESTS = 12  # of one step
_SRC = ("/queue_source/", "/shard_store/")
_BELOW = ("sql/database.py", "shard_store/store.py", "/queues/", "coordinator/in_flight.py", "/failpoints.py")
_SHARED = [name for name in vars(InFlight) if not name.startswith("_") and name not in ("wait", "pausing", "wake")]

_PATCHED = (
    "queue_source.coordinator.start.Threads",
    "queue_source.foreach_batch.presence_folder",
    "queue_source.foreach_batch.driver_identity",
)
_LOCK = type(threading.Lock())

Process = Any
"""A Query, a Router, or the name of a command."""


class Turn:
    """One step in progress. `whose`: the processes in which it is, the innermost last."""

    def __init__(self, name: str, seed: float, run: Callable[[], None] | None = None) -> None:
        self.name = name
        self.whose: list[Process] = []
        self.state = random.Random(seed).getstate()  # of the draws of its steps
        self.points: tuple[Any, Any] = None, None  # where it is to die, and what is to come meanwhile
        self.greenlet = greenlet.getcurrent() if run is None else greenlet.greenlet(run)
        self.is_hurried = False  # it goes on to its end, or to where it is waited for


class TurnLock:
    """Takes the place of a lock that the threads of a reader share."""

    def __init__(self, meetings: Meetings) -> None:
        self._meetings = meetings
        self.holder: Turn | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self.holder is not None:
            if not blocking:
                return False
            self._meetings.wait_for(self)
        self.holder = self._meetings.turn
        return True

    def release(self) -> None:
        self.holder = None

    def locked(self) -> bool:
        return self.holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Guest(NamedTuple):
    """What may come at a point. `fair`: also while nothing fails any more."""

    name: str
    weight: float
    come: Callable[[], object]
    fair: bool = False


class Meetings:
    """The meetings of one exploration.

    `turn`: the one that runs now. `_active`: those that wait for it, and it. `_paused`: those that go on later.
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer, self._world, self._lives = explorer, explorer.world, explorer.lives
        moods = random.Random(f"{explorer.seed} meetings")
        self._rate = moods.choice(RATES)
        usual = f"coordinator/{moods.choice(FOCUS)}.py"
        self._focus = explorer.world.cast.focus or usual
        self._dies = moods.choice((0.0, 0.03, 0.1))
        self._stops = moods.choice((0.0, 0.1, 0.5))
        self._moods = {name: moods.choice((0.0, 0.5, 1.0, 1.0, 4.0)) for name in (g.name for g in self._guests())}
        self._draw = random.Random()
        self._visits: Counter[str] = Counter()  # in this step
        self._thread = threading.get_ident()
        self._top = Turn("explorer", 0)
        self._active: list[Turn] = [self._top]
        self._paused: list[Turn] = []
        self._left = 0  # guests that may still come in this step
        self._come = 0  # guests so far
        self._transactions = 0
        self._begun: list[Any] = []
        self._is_calm = True
        self._failure: BaseException | None = None
        self._dying: list[Process] = []
        self._triggering: list[Query] = []
        self._starting: dict[Kind, Turn] = {}
        self._turning: list[tuple[Reader, str]] = []
        self._guarded: list[Query] = []
        self._machines: Counter[Kind] = Counter()
        self._folders: dict[Process, Path] = {}  # of their drivers

    @property
    def turn(self) -> Turn:
        return self._active[-1]

    # --- steps --------------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, number: object) -> Iterator[None]:
        """One step of the explorer: guests may come while it lasts, and end with it."""
        self._draw.seed(f"{self._explorer.seed} meetings of step {number}")
        self._left, self._is_calm = _GUESTS, False
        self._visits.clear()
        try:
            yield
            self._drain()
        finally:
            self._is_calm = True
            if self._failure is not None:
                raise self._failure

    def _drain(self) -> None:
        while self._paused and self._failure is None:
            self._hurry(self._paused[0])

    def close(self) -> None:
        """End what is left of turns, after a promise was broken."""
        self._is_calm = True
        for turn in self._paused:
            turn.greenlet.parent = greenlet.getcurrent()
            turn.greenlet.throw()
        self._paused = []

    # --- points -------------------------------------------------------------------------------------------------------

    def point(self, what: str) -> None:
        """Here other threads could act."""
        if threading.get_ident() != self._thread or self._is_calm or not self.turn.whose:
            return
        self._end_the_dead()
        if self._transactions or self._is_in_transaction():
            return
        place = _place(what)
        REACHED[place] += 1
        self._visits[place] += 1
        rate = _CLOSELY if _is_within(self._focus) else self._rate
        if self.turn.is_hurried or self._draw.random() >= rate / self._visits[place]:
            return
        self._meet(place)
        self._end_the_dead()
        if self._failure is not None:
            raise self._failure

    def _meet(self, place: str) -> None:
        drawn, fair = self._draw.random(), self._world.is_calm
        whose = self.turn.whose[-1]
        if drawn < self._dies and not fair and not isinstance(whose, str):
            MET[place, "death"] += 1
            self._world.log(f"    {place}: dies")
            self._kill(whose)
            raise Death
        is_whole = any(isinstance(process, str) for process in self.turn.whose)  # a command's output goes to one place
        if self.turn is not self._top and not is_whole and drawn < self._dies + self._stops:
            MET[place, "stop"] += 1
            self._world.log(f"    {place}: {self.turn.name} stops")
            self._stop()
        elif self._paused and drawn > 0.8:
            turn = self._draw.choice(self._paused)
            MET[place, "goes on"] += 1
            self._world.log(f"    {place}: {turn.name} goes on")
            self._switch(turn)
        elif self._left > 0 and len(self._active) < _DEPTH:
            self._left -= 1
            guests = [guest for guest in self._guests() if guest.fair or not fair]
            weights = [guest.weight * self._moods[guest.name] for guest in guests]
            if any(weights):
                guest = self._draw.choices(guests, weights)[0]
                MET[place, guest.name] += 1
                self._world.log(f"    {place}: {guest.name}")
                self._come += 1
                self._switch(self._invite(guest))
                self._world.log(f"    {place}: goes on")

    def _invite(self, guest: Guest) -> Turn:
        def run() -> None:
            try:
                guest.come()
            except (greenlet.GreenletExit, Death):
                pass
            except BaseException as error:  # noqa: BLE001 - raised by the step
                self._failure = self._failure or error

        return Turn(guest.name, self._draw.random(), run)

    def _switch(self, turn: Turn) -> None:
        """Let a turn go on, until it ends or stops."""
        choose = self._explorer.choose
        mine = choose.getstate(), POINTS._death, POINTS._meanwhile
        choose.setstate(turn.state)
        POINTS._death, POINTS._meanwhile = turn.points
        if turn in self._paused:
            self._paused.remove(turn)
        turn.greenlet.parent = greenlet.getcurrent()
        self._active.append(turn)
        turn.greenlet.switch()
        turn.state, turn.points = choose.getstate(), (POINTS._death, POINTS._meanwhile)
        choose.setstate(mine[0])
        POINTS._death, POINTS._meanwhile = mine[1:]
        if not turn.greenlet.dead:
            self._paused.append(turn)
        else:
            self._active.remove(turn)

    def _stop(self) -> None:
        """Let the turn that waits for this one go on."""
        turn = self._active.pop()
        turn.greenlet.parent.switch()

    def _hurry(self, turn: Turn) -> None:
        turn.is_hurried = True
        self._switch(turn)

    def wait_for(self, lock: TurnLock) -> None:
        """Let the turn go on that holds the lock."""
        assert lock.holder is not None
        if lock.holder in self._paused:
            self._hurry(lock.holder)
        elif self.turn is self._top or lock.holder is self.turn:
            raise AssertionError("a lock is waited for that this turn holds")
        else:
            self._stop()

    # --- deaths -------------------------------------------------------------------------------------------------------

    def _kill(self, process: Process) -> None:
        self._dying.append(process)
        for turn in [turn for turn in self._paused if process in turn.whose]:
            self._hurry(turn)  # it comes to its end at its next point

    def _end_the_dead(self) -> None:
        if self.turn.whose and self.turn.whose[-1] in self._dying:
            raise Death

    def _fail(self, query: Query, error: Exception) -> None:
        """As a thread of a reader does: the next call of Spark's raises it."""
        for reader in query.readers[:1]:
            threads = reader._coordinator.threads
            threads._failure = threads._failure or error
            threads._stop()

    # --- guests -------------------------------------------------------------------------------------------------------

    def _guests(self) -> list[Guest]:
        steps = {
            name: call for name, (weight, call) in self._explorer.steps.items() if weight and name not in _NO_GUESTS
        }
        return [
            Guest("a turn", 12, self._take_a_turn, fair=True),
            Guest("news", 12, self._bring_news),
            Guest("trigger", 5, self._trigger, fair=True),
            Guest("route", 4 if self._world.cast.routed else 0, self._route, fair=True),
            Guest("take over", 1, self._take_over),
            Guest("time", 2, self._pass_time),
            Guest("renewal", 4 if {"compact", "prune_data"} <= steps.keys() else 0, self._renew),
            *(Guest(name, 1, step) for name, step in steps.items()),
        ]

    def _queries(self) -> list[Query]:
        """Those that run, and those that are replaced and do not know."""
        queries = (*self._lives.queries.values(), *self._lives.zombies)
        return [query for query in queries if query.readers and query not in self._dying]

    def _near(self, often: float = 0.6) -> Query | None:
        """The query whose point this is, or any."""
        queries, choose = self._queries(), self._explorer.choose
        near = [query for query in queries if query in self._active[-2].whose[-1:]]
        if near and choose.random() < often:
            return near[0]
        return choose.choice(queries) if queries else None

    def _take_a_turn(self) -> None:
        """A thread of a reader, perhaps of this one."""
        choose = self._explorer.choose
        if query := self._near():
            reader = choose.choice(query.readers)
            turns = (reader.receive, reader.open, reader.acknowledge, reader.maintain, reader.heartbeat, reader.work)
            self._lives.guarded(query, choose.choice((*turns, reader.clean, reader.list_objects)))

    def _bring_news(self) -> None:
        """Something is announced, and opened by a reader, perhaps by this one; often a new version of what was read."""
        usual, choose, world = self._explorer.usual, self._explorer.choose, self._world
        if "versions" in self._explorer.takes and choose.random() < 0.8:
            uris = sorted({uri for uris in world.names.values() for uri in uris})
            unread = [uri for uri in world.lately if self._is_unread(uri)]
            uri = choose.choice((unread or [*world.lately] or uris) if choose.random() < 0.8 else uris)
            usual.overwrite(uri, ("whole", "longer", "empty"))
            self._explorer.tell(self._explorer.events.pop())
        else:
            usual.announce()
        query = self._near(0.8)
        if query is not None and any((reader, "open") in self._turning for reader in query.readers):
            query = choose.choice([one for one in self._queries() if one is not query] or [query])  # this one is at it
        if query is not None:
            for reader in query.readers:
                self._lives.guarded(query, reader.receive) and self._lives.guarded(query, reader.open)

    def _is_unread(self, uri: str) -> bool:
        """Whether a batch that has just met the object has found it bad, or empty: another version opens it again."""
        objects = self._world.objects
        return objects.newest(uri).form in ("empty", "damaged") or not objects.is_there(uri)

    def _trigger(self) -> None:
        lives, kind = self._lives, self._explorer.choose.choice(self._lives.kinds)
        if kind not in lives.queries:
            lives.start(kind)
        if query := lives.queries.get(kind):
            all(lives.guarded(query, reader.work) for reader in query.readers)
            if query.readers:
                lives.guarded(query, query.trigger)

    def _renew(self) -> None:
        """What is published leaves the view, and new objects take its place, while files are joined."""
        if not any("compact" in turn.whose for turn in self._active):
            return
        self._explorer.steps["prune_data"][1]()
        self._bring_news()
        self._trigger()

    def _route(self) -> None:
        self._lives.route(None)

    def _take_over(self) -> None:
        """Another driver, on another machine, starts a query that runs, also in the middle of its batch."""
        kind = self._explorer.choose.choice(self._lives.kinds)
        query = self._lives.queries.get(kind)
        if query is not None and kind.sink != "other" and kind not in self._starting:
            self._lives.zombies.append(self._lives.queries.pop(kind))
            self._machines[kind] += 1
            self._lives.start(kind)

    def _pass_time(self) -> None:
        self._world.now += self._explorer.choose.choice((1.0, STALE / 3, STALE + 1, LEASE + 1))

    # --- hooks --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _as(self, process: Process) -> Iterator[None]:
        whose = self.turn.whose
        whose.append(process)
        try:
            yield
        finally:
            whose.pop()

    @contextmanager
    def _calm(self) -> Iterator[None]:
        before, self._is_calm = self._is_calm, True
        try:
            yield
        finally:
            self._is_calm = before

    def _is_in_transaction(self) -> bool:
        self._begun = [connection for connection in self._begun if not connection.closed]
        return bool(self._begun) or self._world.is_locked_elsewhere()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Make points of the places in the code, and let calls know of each other."""
        if "meetings" not in self._explorer.takes:
            yield
            return
        with ExitStack() as stack:
            for owner, name, around in self._patches():
                method = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, _wrapped(method, around)))
            stack.enter_context(mock.patch.object(World, "driver", property(self._driver), create=True))
            for name in ("operate", "prune", "certify"):
                if name in self._explorer.steps:
                    weight, step = self._explorer.steps[name]
                    self._explorer.steps[name] = weight, partial(self._operate, name, step)
            for place in _PATCHED:
                stack.enter_context(mock.patch(place, _original(place)))  # turns undo their own patches in any order
            try:
                yield
            finally:
                self.close()

    def _driver(self, world: World) -> Path:
        return next((self._folders[p] for p in self.turn.whose[-1:] if p in self._folders), world.folder / "driver")

    def _patches(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        yield Database, "_run", self._around_transaction
        yield Points, "passed", self._around_failpoint
        yield Database, "begin", self._around_begin
        yield readers, "stat_objects", self._around_look
        for name in _SHARED:
            yield InFlight, name, self._around_shared
        for owner, names in (
            (Promises, [name for name in vars(Promises) if not name.startswith("_")]),
            (World, ["announce", "before_acknowledged", "note_sent", "remember_state", "waiting_messages", "close"]),
        ):
            for name in names:
                yield owner, name, self._around_ours
        yield Query, "__init__", self._around_start
        yield Query, "trigger", self._around_trigger
        yield Query, "stop", self._around_stop
        yield Query, "die", self._around_death
        yield Router, "work", self._around_work
        yield Router, "die", self._around_death
        for name in ("open", "maintain", "heartbeat", "acknowledge", "clean", "receive", "list_objects"):
            yield Reader, name, self._around_turn
        yield Reader, "__init__", self._around_reader
        yield Operators, "_invoke", self._around_command
        yield Operators, "_something", self._around_meanwhile
        yield Lives, "guarded", self._around_guarded
        yield Lives, "end", self._around_end
        yield Lives, "start", self._around_starting
        yield Lives, "route", self._around_route

    def _around_transaction(self, run: Callable[..., Any], database: Database, work: Any, **how: Any) -> Any:
        kind = "write" if how["write"] else "read"
        self.point(f"before {kind}")
        self._transactions += 1
        try:
            result = run(database, work, **how)
        finally:
            self._transactions -= 1
        self.point(f"after {kind}")
        return result

    def _around_failpoint(self, passed: Callable[..., None], points: Points, name: str) -> None:
        passed(points, name)
        self.point(f"at {name}")

    def _around_begin(self, begin: Callable[..., Any], database: Database) -> Any:
        self.point("before begin")
        connection = begin(database)
        self._begun.append(connection)
        return connection

    def _around_look(self, look: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        result = look(*arguments, **how)
        self.point("after look")
        return result

    def _around_shared(self, call: Callable[..., Any], in_flight: InFlight, *arguments: Any, **how: Any) -> Any:
        if not in_flight._changed._is_owned():  # type: ignore[attr-defined]
            self.point("before " + call.__name__)
        return call(in_flight, *arguments, **how)

    def _around_ours(self, call: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        with self._calm():
            return call(*arguments, **how)

    def _around_start(self, init: Callable[..., Any], query: Query, *arguments: Any, **how: Any) -> None:
        world, kind = arguments[:2]
        self._folders[query] = world.folder / f"driver {self._machines[kind]}"
        with self._as(query):
            init(query, *arguments, **how)

    def _around_reader(self, init: Callable[..., Any], reader: Reader, *arguments: Any) -> None:
        init(reader, *arguments)
        parts = [part for part in vars(reader._coordinator).values() if hasattr(part, "__dict__")]
        parts += [part for each in parts for part in vars(each).values() if hasattr(part, "__dict__")]
        for part in parts:
            for name, value in list(vars(part).items()):
                if type(part).__module__.startswith("queue_source.coordinator") and isinstance(value, _LOCK):
                    setattr(part, name, TurnLock(self))

    def _around_trigger(self, trigger: Callable[..., bool], query: Query, **how: Any) -> bool:
        """Spark's calls come from one thread."""
        if query in self._triggering or not query.readers:
            return False
        self._triggering.append(query)
        try:
            with self._as(query):
                return trigger(query, **how)
        finally:
            self._triggering.remove(query)

    def _around_stop(self, stop: Callable[..., None], query: Query) -> None:
        with self._as(query):
            stop(query)

    def _around_death(self, die: Callable[..., None], process: Process) -> None:
        self._kill(process)
        with self._calm():
            die(process)
        self._dying = [other for other in self._dying if other is not process]

    def _around_work(self, work: Callable[..., None], router: Router, die_at: str | None) -> None:
        with self._as(router):
            work(router, die_at)

    def _around_turn(self, call: Callable[..., Any], reader: Reader, *arguments: Any) -> None:
        """Each of these threads is there once."""
        mine = reader, call.__name__
        if mine in self._turning:
            return
        self._turning.append(mine)
        try:
            call(reader, *arguments)
        finally:
            self._turning.remove(mine)

    def _operate(self, name: str, step: Callable[[], object]) -> None:
        try:
            with self._as(name):
                step()
        except StoreConfigurationError:
            if not self._world.half_reset:
                raise

    def _around_command(self, invoke: Callable[..., Said], operators: Operators, name: str, words: Any) -> Said:
        before = self._come
        with self._as(name):
            said = invoke(operators, name, words)
        return said if before == self._come else said._replace(alone=False)

    def _around_meanwhile(self, something: Callable[..., None], operators: Operators) -> None:
        if self.turn is self._top:
            something(operators)

    def _around_guarded(
        self, guarded: Callable[..., bool], lives: Lives, query: Query, call: Callable[[], Any]
    ) -> bool:
        if query in self._dying or not query.readers:
            return False
        is_outermost = query not in self._guarded
        self._guarded.append(query)

        def noted() -> None:
            with self._as(query):
                call()
            for reader in query.readers if is_outermost else ():
                reader._coordinator.check()

        try:
            if is_outermost:
                return guarded(lives, query, noted)
            noted()
            return True
        except Death:  # where it was first called, the query ends
            if query not in self._dying:
                self._kill(query)
        except (ShardStoreError, CuesqueueError) as error:
            self._fail(query, error)
        finally:
            self._guarded.remove(query)
        return False

    def _around_end(self, end: Callable[..., None], lives: Lives, query: Query) -> None:
        query.die()
        if lives.queries.get(query.kind) is query:
            del lives.queries[query.kind]
        if query in lives.zombies:
            lives.zombies.remove(query)

    def _around_starting(self, start: Callable[..., None], lives: Lives, kind: Kind) -> None:
        while (starter := self._starting.get(kind)) in self._paused:
            self._hurry(starter)
        if starter is None and kind not in lives.queries:
            self._starting[kind] = self.turn
            try:
                start(lives, kind)
            finally:
                del self._starting[kind]

    def _around_route(self, route: Callable[..., None], lives: Lives, die_at: str | None) -> None:
        if lives.router is None or not any(lives.router in turn.whose for turn in (*self._active, *self._paused)):
            route(lives, die_at)


def _original(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _wrapped(method: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **how: Any) -> Any:
        return around(method, *arguments, **how)

    call.__name__ = method.__name__
    return call


def _is_within(file: str) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith(file):
        frame = frame.f_back
    return frame is not None


def _place(what: str) -> str:
    """Name the nearest function of the code that is no mere way to the store, to a queue, or to what threads share."""
    frame: FrameType | None = sys._getframe(2)
    way = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if any(part in file for part in _SRC):
            if not any(part in file for part in _BELOW):
                module = file.rpartition("/src/")[2].removesuffix(".py")
                return f"{module}:{frame.f_code.co_name} {what}{way}"
            if not file.endswith("database.py"):
                way = f" {frame.f_code.co_name}"
        frame = frame.f_back
    return f"{what}{way}"
