"""Whatever happens in whatever order: each object is in one place, messages end after that, and losses are noticed.

`integration/test_explorer.py` goes on for half an hour, from a seed of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing, nullcontext
from typing import Any
from unittest import mock

import pytest

from queue_source.queues.sim import SimQueue
from shard_store.upkeep import pruning
from support.explorer import explorer
from support.explorer.casts import CASTS
from support.explorer.explorer import Explorer, explore
from support.explorer.operators import Operators
from support.explorer.points import POINTS
from support.explorer.promises import Broken
from support.explorer.usual import Steps
from support.explorer.world import STALE


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("first", "times"), [(0, 1), pytest.param(1015, 5, marks=pytest.mark.thorough)], ids=["each cast", "five times"]
)
def test_promises_hold_wherever_readers_die_stores_go_back_and_batches_are_read_twice(first: int, times: int) -> None:
    """In a process of its own, whose sets have an order that the seed decides."""
    command = [sys.executable, "-m", "support.explorer", "--kinds", "all", "--seed", str(first), "--shrink", "0"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, "--explorations", f"{times * len(CASTS)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.usefixtures("iceberg_threads")
def test_an_exploration_is_repeated_by_its_seed() -> None:
    first, second = list[str](), list[str]()
    explore(len(CASTS), log=first.append)
    explore(len(CASTS), log=second.append)
    steps = [[line for line in run if line[:1].isdigit()] for run in (first, second)]
    assert steps[0] == steps[1]
    assert len({line.partition(" ")[2] for line in steps[0]}) > 5


def test_what_is_opened_and_given_up_while_a_prune_works_and_pruned_by_it_may_come_once_more() -> None:
    """Nothing of it was there before the command, or is there after it, and no row of it is in a target."""
    seen = list[tuple[set[tuple[str, str]], set[tuple[str, str]]]]()

    def steps_of(explorer: Explorer) -> Steps:
        world, lives = explorer.world, explorer.lives

        def prune() -> None:
            lives.start(lives.kinds[0])
            query = lives.queries[lives.kinds[0]]
            known = set[tuple[str, str]]()
            operators = Operators(explorer)
            operators._busy = True  # nothing else comes meanwhile, and it is not killed

            def meanwhile(*arguments: Any) -> Any:
                for uri in world.names["s"]:
                    world.objects.vanish(uri)
                world.announce("s", [world.objects.event(uri, facts=False) for uri in world.names["s"]])
                while not known or "open" in world.shard_states().values():
                    query.readers[0].work()
                    query.trigger()
                    known.update(world.shard_states())
                return targets(*arguments)

            targets = pruning._targets
            with mock.patch.object(pruning, "_targets", meanwhile):
                operators.prune_shards()
            seen.append((known - world.shard_states().keys(), {*world.anew}))

        return {"prune_late": (0, prune)}

    with mock.patch.object(explorer, "MODULES", [steps_of]):
        explore(0, takes=frozenset(("operators",)), steps=[(0, "prune_late")])
    [(forgotten, anew)] = seen
    assert forgotten
    assert anew == forgotten


@pytest.mark.parametrize("form", ["empty", "missing", "lost"])
def test_what_ends_without_rows_while_a_prune_works_and_is_pruned_by_it_may_be_acknowledged_then(form: str) -> None:
    """Unless it was announced anew since, and no message of that waits: then this announcement is lost."""
    seen = list[tuple[set[str], int]]()

    def steps_of(explorer: Explorer) -> Steps:
        world, lives = explorer.world, explorer.lives
        uris = world.names["s"]

        def prune() -> None:
            lives.start(lives.kinds[0])
            query = lives.queries[lives.kinds[0]]
            [reader] = query.readers
            operators = Operators(explorer)
            operators._busy = True  # nothing else comes meanwhile, and it is not killed
            states = set[str]()
            world.is_calm = True  # no object changes while it is read

            def meanwhile(*arguments: Any) -> Any:
                for uri in uris:
                    world.objects.write(uri, "empty", world.now)
                    if form == "missing":
                        world.objects.vanish(uri)
                world.announce("s", [world.objects.event(uri, facts=True) for uri in uris])
                reader.receive()
                reader.open()
                while "open" in world.shard_states().values():
                    query.trigger()
                query.trigger()
                states.update(world.shard_states().values())
                return targets(*arguments)

            targets = pruning._targets
            with mock.patch.object(pruning, "_targets", meanwhile):
                operators.prune_shards()
            seen.append((states, len(uris) - len(world.shard_states())))
            if form == "lost":
                world.announce("s", [world.objects.event(uri, facts=True) for uri in uris])
                with closing(SimQueue(world.queue_url("s"), clock=lambda: world.now)) as queue:
                    queue.acknowledge([message.receipt for message in queue.receive(10, 60.0, 0.0)])
            reader.acknowledge()
            assert not world.waiting_messages()

        return {"prune_late": (0, prune)}

    lost = pytest.raises(Broken, match="a message is acknowledged, and this is not published")
    with mock.patch.object(explorer, "MODULES", [steps_of]), lost if form == "lost" else nullcontext():
        explore(0, takes=frozenset(("operators",)), steps=[(0, "prune_late")])
    [(states, forgotten)] = seen
    assert states == {"quarantined" if form == "missing" else "done"}
    assert forgotten


def test_what_a_reset_has_forgotten_may_come_once_more_also_where_another_run_of_it_ends_it_first() -> None:
    """All of it was announced anew, and read, when the first run was told so: it forgets no more, but has begun."""
    seen, lines = list[tuple[set[tuple[str, str]], set[tuple[str, str]]]](), list[str]()

    def steps_of(explorer: Explorer) -> Steps:
        world, lives = explorer.world, explorer.lives
        operators = Operators(explorer)
        operators._busy = True  # nothing else comes meanwhile, and it is not killed

        def read_all() -> None:
            world.announce("s", [world.objects.event(uri, facts=False) for uri in world.names["s"]])
            lives.start(lives.kinds[0])
            query = lives.queries[lives.kinds[0]]
            for _ in range(5):
                query.readers[0].work()
                query.trigger()
            assert {*world.shard_states().values()} <= {"done", "quarantined"}
            lives.end_all()
            world.now += 2 * STALE

        def meanwhile() -> None:
            operators.reset()
            read_all()

        def reset() -> None:
            read_all()
            with POINTS.meanwhile("reset-begun", 0, meanwhile):
                operators.reset()
            seen.append(({*world.shard_states()}, {*world.anew}))

        def refuse() -> None:
            """Its pipelines run."""
            world.anew.clear()
            lives.start(lives.kinds[0])
            with mock.patch.object(explorer.choose, "random", return_value=0.9):
                operators.reset()
            assert not world.anew
            world.anew |= seen[0][1]

        return {"reset_twice": (0, reset), "refuse_a_reset": (0, refuse)}

    with mock.patch.object(explorer, "MODULES", [steps_of]):
        steps = [(0, "reset_twice"), (1, "refuse_a_reset")]
        explore(2, takes=frozenset(("operators",)), steps=steps, log=lines.append)
    said = [line.partition(": ")[2][:1] for line in lines if line.startswith("  reset s")]
    assert said == ["0", "2", "2"]
    assert any("another run of this reset of 's' has ended it" in line for line in lines)
    [(read, anew)] = seen
    assert read
    assert anew == read


@pytest.mark.parametrize("is_acknowledged", [False, True], ids=["acknowledged later", "acknowledged at once"])
def test_what_a_command_sends_may_be_read_and_overwritten_before_the_command_goes_on(is_acknowledged: bool) -> None:
    """The version that was there when it was sent is announced, not only the one that is there when that returns."""
    ended = list[bool]()

    def steps_of(explorer: Explorer) -> Steps:
        world, lives, sends = explorer.world, explorer.lives, SimQueue._send
        uri = world.names["s"][0]

        def meanwhile(queue: SimQueue, *what: Any, **how: Any) -> list[str]:
            sent = sends(queue, *what, **how)
            lives.start(lives.kinds[0])
            query = lives.queries[lives.kinds[0]]
            query.readers[0].work()
            query.trigger()
            if is_acknowledged:
                query.trigger()
                query.readers[0].acknowledge()
            ended.append(world.waiting_messages() == 0)
            world.objects.write(uri, "whole", world.now)
            return sent

        def send() -> None:
            with mock.patch.object(SimQueue, "_send", meanwhile), closing(world.open_queue("s")) as queue:
                queue.send([uri])

        return {"send": (0, send)}

    with mock.patch.object(explorer, "MODULES", [steps_of]):
        explore(0, takes=frozenset(("operators",)), steps=[(0, "send")])
    assert ended == [is_acknowledged]
