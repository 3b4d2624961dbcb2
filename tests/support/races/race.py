"""Runs two verbs: the second one whole, or as far as it comes, while the first is paused behind one of its steps.

Or behind a commit of the first, whose answer is lost: the first does that transaction once more, after the second.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from shard_store.errors import ShardStoreError
from support.races.outcomes import Facts, difference, early, facts_of, harm_of
from support.races.prepared import World
from support.races.verbs import VERBS
from support.store_backends import StoreBackend

_DEADLINE = 20.0
_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # not from innodb_trx, which stays as it is for those that ask more often than ten times a second
    "mysql": "SELECT CAST(variable_value AS UNSIGNED) FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}
_DECLARED = ("PipelineTakenOver", "ShardsLost", "LostProgress", "StoreConfigurationError")
_SHARD = re.compile(r"'(?:shard_id|uri|subject)': '([^']+)'")


class Pause:
    """Where the thread of a verb is: steps are the beginnings of transactions, and statements that have ended.

    `loses`: the number of the commit whose answer is lost; the pause is before it is tried again.
    """

    def __init__(self, at: int, loses: int = 0) -> None:
        self.at, self.loses, self.steps, self.commits = at, loses, list[str](), 0
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def committed(self) -> None:
        self.commits += 1
        if self.commits == self.loses:
            self.at = len(self.steps) + 1
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the answer is lost"), connection_invalidated=True)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) == self.at:
            self.reached.set()
            self.goes_on.wait(_DEADLINE)


@dataclass
class Outcome:
    """What came of a race; `results`: what its verbs returned or raised."""

    facts: Facts
    results: tuple[str, str]
    harm: set[str] = field(default_factory=set)
    waited: bool = False


@dataclass(frozen=True)
class Find:
    """A race whose outcome neither order has. `harm`: what a user would see of it; else what differs."""

    first: str
    second: str
    point: int
    step: str
    harm: frozenset[str]
    differs: str
    results: str
    loses: int = 0

    def as_test(self) -> str:
        at = f"loses={self.loses}" if self.loses else str(self.point)
        return f'    assert not races.harm("{self.first}", "{self.second}", {at})  # {self.step}'


class Races:
    """All races over one prepared store."""

    def __init__(self, backend: StoreBackend) -> None:
        self.world = World(backend)
        self._pauses: dict[int, Pause] = {}
        self.tried, self.differing, self.waited = 0, 0, 0
        self._watch = self.world.operator.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._is_anyone_waiting = sa.text(_WAITING[self.world.operator.database.dialect.name])
        for store in self.world.stores.values():
            engine = store.database.engine
            store.database._once = self._losing(store.database._once)  # type: ignore[method-assign]
            sa.event.listen(engine, "begin", lambda *_: self._step("begin"))
            sa.event.listen(engine, "after_cursor_execute", lambda *of: self._step(" ".join(of[2].split())[:70]))

    def close(self) -> None:
        self._watch.close()
        self.world.backend.close()

    def _step(self, name: str) -> None:
        if (pause := self._pauses.get(threading.get_ident())) is not None:
            pause.step(name)

    def _losing(self, once: Callable[..., Any]) -> Callable[..., Any]:
        def run(work: Callable[..., Any], write: bool) -> Any:
            result = once(work, write)
            if write and (pause := self._pauses.get(threading.get_ident())) is not None:
                pause.committed()
            return result

        return run

    def _thread(self, verb: str, results: dict[str, str], pause: Pause | None) -> threading.Thread:
        def run() -> None:
            if pause is not None:
                self._pauses[threading.get_ident()] = pause
            try:
                results[verb] = repr(VERBS[verb].run(self.world))
            except ShardStoreError as error:
                kind = type(error).__name__
                results[verb] = kind if kind in _DECLARED else f"undeclared {kind}: {error}"
            except Exception as error:  # noqa: BLE001 - it is a find
                results[verb] = f"undeclared {type(error).__name__}: {error}"
            finally:
                self._pauses.pop(threading.get_ident(), None)
                if pause is not None:
                    pause.reached.set()

        return threading.Thread(target=run, daemon=True, name=verb)

    def run(self, first: str, second: str, point: int, alive: str = "", loses: int = 0) -> tuple[Outcome, Pause]:
        """Run a race; point 0: the first, and then the second. Also return the steps of the first.

        `alive`: the readers that go on after it, until nothing is left.
        """
        self.world.put_back()
        pause, results = Pause(point, loses), dict[str, str]()
        ours, other = self._thread(first, results, pause), self._thread(second, results, None)
        ours.start()
        pause.reached.wait(_DEADLINE)
        other.start()
        waited = not self._ends_or_waits(other)
        pause.goes_on.set()
        for thread in (ours, other):
            thread.join(_DEADLINE)
            if thread.is_alive():
                results[thread.name] = "undeclared: it hangs"
        self.waited += waited
        outcome = Outcome(facts_of(self.world), (results[first], results[second]), waited=waited)
        outcome.harm = early(self.world)
        if alive:
            outcome.harm |= harm_of(self.world, self.world.go_on(alive))
        outcome.harm |= {f"{name}: {text[:160]}" for name, text in results.items() if text.startswith("undeclared")}
        return outcome, pause

    def harm(self, first: str, second: str = "", point: int = 0, loses: int = 0) -> set[str]:
        """What a race does that neither order does; of one verb alone, what that does."""
        if not second:
            return self._alone(first)
        alive = "pq" if (point + loses) % 2 else "q"
        return self.run(first, second, point, alive, loses)[0].harm - self._usual(first, second, alive)

    def _usual(self, first: str, second: str, alive: str) -> set[str]:
        return self.run(first, second, 0, alive)[0].harm | self.run(second, first, 0, alive)[0].harm

    def touched(self, verb: str) -> set[str]:
        """The ids of the shards that a verb changes."""
        self.world.put_back()
        before = facts_of(self.world)
        self._do(verb)
        return {name for _, text in before ^ facts_of(self.world) for name in _SHARD.findall(text)}

    def _do(self, verb: str) -> dict[str, str]:
        results = dict[str, str]()
        thread = self._thread(verb, results, None)
        thread.start()
        thread.join(_DEADLINE)
        return results

    def _alone(self, verb: str) -> set[str]:
        self.world.put_back()
        results = self._do(verb)
        return harm_of(self.world, self.world.go_on("pq")) | {text for text in results.values() if "undeclared" in text}

    def _ends_or_waits(self, thread: threading.Thread) -> bool:
        """Wait until the thread has ended (True), or waits for a lock."""
        until = time.monotonic() + _DEADLINE
        while time.monotonic() < until:
            thread.join(0.003)
            if not thread.is_alive():
                return True
            if self._watch.execute(self._is_anyone_waiting).scalar_one():
                return False
        return False

    def pair(self, first: str, second: str) -> Iterator[Find]:
        """Run the second behind each step and each lost answer of the first; yield what neither order brings."""
        before, taken = self.run(first, second, 0)
        after, _ = self.run(second, first, 0)
        after.results = after.results[::-1]
        usual = dict[str, set[str]]()
        points = [(point, 0) for point in range(2, len(taken.steps) + 1)]  # behind the first step nothing is read yet
        for point, loses in points + [(0, number) for number in range(1, taken.commits + 1)]:
            self.tried += 1
            outcome, pause = self.run(first, second, point, loses=loses)
            is_usual = outcome.facts in (before.facts, after.facts) and outcome.results in (
                before.results,
                after.results,
            )
            if is_usual and outcome.harm <= before.harm | after.harm:
                continue
            self.differing += 1
            alive = "pq" if (point + loses) % 2 else "q"  # or p dies
            harm = outcome.harm | self.run(first, second, point, alive, loses)[0].harm
            if harm and alive not in usual:
                usual[alive] = self._usual(first, second, alive)
            harm -= usual.get(alive, set())
            nearest = min((before.facts, after.facts), key=lambda facts: len(facts ^ outcome.facts))
            results = f"{outcome.results}, and one after the other {before.results} or {after.results}"
            step = "" if pause.at > len(pause.steps) else pause.steps[pause.at - 1]
            yield Find(first, second, point, step, frozenset(harm), difference(outcome.facts, nearest), results, loses)


def pairs(seed: int, only: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """All pairs of verbs that may race, in an order that the seed decides. `only`: words of which each has one."""
    every = [
        (a, b)
        for a in VERBS
        for b in VERBS
        if VERBS[a].lane != VERBS[b].lane and (not only or all(any(w in v for w in only) for v in (a, b)))
    ]
    random.Random(seed).shuffle(every)
    return every


def search(races: Races, seed: int, say: Callable[[str], Any], *, minutes: float = 1e9, only: tuple[str, ...] = (),
           most: int | None = None, thoroughly: bool = False) -> list[Find]:  # fmt: skip
    """Race pairs for so long, and say what is found; harmless differences are counted, or said if `thoroughly`."""
    began, finds, harmless = time.monotonic(), list[Find](), Counter[tuple[str, str]]()
    raced = 0
    touched = {verb: races.touched(verb) for verb in VERBS}
    # first those that change the same shards
    chosen = sorted(pairs(seed, only), key=lambda pair: touched[pair[0]].isdisjoint(touched[pair[1]]))
    for first, second in chosen[:most]:
        raced += 1
        for find in races.pair(first, second):
            if find.harm:
                finds.append(find)
                say(f"FOUND {', '.join(sorted(find.harm))}\n{find.as_test()}\n{find.differs}\n      {find.results}")
            else:
                harmless[first, second] += 1
                if thoroughly:
                    say(f"differs: {find.as_test()}\n{find.differs}\n      {find.results}")
        if time.monotonic() - began > minutes * 60:
            break
    seconds = time.monotonic() - began
    say(
        f"seed {seed}: {raced} of {len(chosen)} pairs, {races.tried} races in {seconds:.0f} s, "
        f"{raced / seconds:.2f} pairs and {races.tried / seconds:.1f} races a second; in {races.waited} one waited "
        f"for a lock; {races.differing} differ from both orders, {len(finds)} with harm"
    )
    return finds
