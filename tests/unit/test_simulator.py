"""The simulator: sources with pools and filters, and faults to order. Its verbs are in the contract of all queues."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Received
from queue_source.queues import open_queue
from queue_source.queues.sim import Fault, SimQueue
from queue_source.tags import matches
from support.queues.backend import Clock
from support.tag_table import TABLE

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(open_queue.__code__.co_filename).parents[2])}


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Simulators:
    """Opens simulators of one folder, and closes them."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._opened: list[SimQueue] = []

    def __call__(self, source: str = "orders", **parameters: str) -> SimQueue:
        query = "".join(f"&{key}={value}" for key, value in parameters.items())
        url = f"sim://{source}?dir={self.folder}{query}"
        self._opened.append(SimQueue(url, clock=self._clock, sleep=self._clock.sleep))
        return self._opened[-1]

    def close(self) -> None:
        for queue in self._opened:
            queue.close()


@pytest.fixture
def simulator(tmp_path: Path, clock: Clock) -> Iterator[Simulators]:
    made = Simulators(tmp_path / "simulator", clock)
    yield made
    made.close()


def take(queue: SimQueue, most: int = 10) -> list[Received]:
    return queue.receive(most, 60, 0)


def bodies(queue: SimQueue) -> list[bytes]:
    return [message.body for message in take(queue)]


# --- sources, pools, tags --------------------------------------------------------------------------------------------


def test_each_pool_gets_its_own_copy_of_what_its_filters_let_pass(simulator: Simulators) -> None:
    everything, two = simulator(pool="all"), simulator(pool="two", tags="orders.*,#.eu")
    two.create()
    for tag in ("orders.eu", "orders.us", "bills.de.eu", "bills"):
        (published,) = everything.send([tag], tag=tag)
        assert published
    assert bodies(everything) == [b"orders.eu", b"orders.us", b"bills.de.eu", b"bills"]
    taken = take(two)
    assert [message.body for message in taken] == [b"orders.eu", b"orders.us", b"bills.de.eu"]
    assert two.acknowledge([message.receipt for message in taken]) == set()
    assert (everything.depth().in_flight, two.depth().total) == (4, 0)


def test_copies_of_one_message_have_the_same_id(simulator: Simulators) -> None:
    one, two = simulator(pool="one"), simulator(pool="two")
    two.create()
    (published,) = one.send(["x"])
    assert [take(queue)[0].message_id for queue in (one, two)] == [published, published]


def test_it_agrees_with_the_table_of_tags(simulator: Simulators) -> None:
    filters = dict.fromkeys(tag_filter for tag_filter, _, _ in TABLE)
    pools = {
        tag_filter: simulator(pool=f"p{number}", tags=_quoted(tag_filter)) for number, tag_filter in enumerate(filters)
    }
    for pool in pools.values():
        pool.create()
    tags = list(dict.fromkeys(tag for _, tag, _ in TABLE))
    for tag in tags:
        pool.send([tag.encode()], tag=tag)
    for tag_filter, pool in pools.items():
        passed = [message.tag for message in pool.receive(1000, 60, 0)]
        assert passed == [tag for tag in tags if matches(tag_filter, tag)], tag_filter


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def test_a_hash_in_the_url_is_a_wildcard(simulator: Simulators) -> None:
    queue = simulator(pool="p", tags="a.#")
    queue.send(["x"], tag="a.b.c")
    assert bodies(queue) == [b"x"]
    assert queue.name.endswith("&pool=p&tags=a.#")


def test_what_no_pool_takes_is_an_error_unless_the_url_says_otherwise(simulator: Simulators) -> None:
    with pytest.raises(QueueConfigurationError, match=r"no pool of source 'orders' .* mandatory=false"):
        simulator(pool="p", tags="a").send(["x"], tag="b")
    assert simulator(pool="p", tags="a", mandatory="false").send(["x"], tag="b") == [""]


def test_a_pool_that_is_there_keeps_its_filters_when_the_url_names_none_and_gets_those_it_names(
    simulator: Simulators,
) -> None:
    simulator(pool="p", tags="a").create()
    again, more = simulator(pool="p"), simulator(pool="p", tags="c")
    with pytest.raises(QueueConfigurationError, match="no pool"):
        again.send(["x"], tag="b")
    more.send(["a"], tag="a")
    more.send(["c"], tag="c")
    assert bodies(again) == [b"a", b"c"]


def test_a_listener_hears_what_is_sent_while_it_listens_and_leaves_nothing_behind(simulator: Simulators) -> None:
    sender = simulator(mandatory="false")
    sender.send(["before"])
    listener = simulator(listener="true")
    assert listener.capabilities.loses_while_closed
    assert take(listener) == []
    sender.send(["now"])
    assert bodies(listener) == [b"now"]
    listener.close()
    again = simulator(listener="true")
    assert take(again) == []


def test_a_sender_makes_no_pool_beside_others_and_none_for_messages_that_may_be_dropped(simulator: Simulators) -> None:
    workers = simulator(pool="workers")
    workers.create()
    with simulator() as sender:
        sender.send(["x"])
        assert not sender.exists()
    assert (bodies(workers), take(simulator())) == ([b"x"], [])
    with simulator("bills", mandatory="false") as sender:
        assert sender.send(["dropped"]) == [""]
    with simulator("bills") as sender:
        sender.send(["kept"])
    assert bodies(simulator("bills")) == [b"kept"]


def test_a_killed_listener_leaves_nothing_behind_once_something_is_sent(simulator: Simulators) -> None:
    pool, listener = simulator(pool="p"), simulator(listener="true")
    url = f"sim://orders?dir={simulator.folder}&listener=true"
    script = "import os, sys; from queue_source.queues import open_queue; queue = open_queue(sys.argv[1]); "
    script += "queue.create(); queue.send(['before']); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script, url], env=ENVIRONMENT, check=False).returncode == -9
    listener.create()
    pool.send(["now"])
    with sqlite3.connect(simulator.folder / "orders.sim.db") as file:
        listeners = file.execute("SELECT pool FROM sim_bindings WHERE pool LIKE 'listener-%'").fetchall()
        kept = file.execute("SELECT count(*) FROM cuesqueue_messages WHERE queue LIKE 'listener-%'").fetchall()
    file.close()
    assert (listeners, kept) == ([(listener._sim.pool,)], [(1,)])
    listener.close()
    assert list(simulator.folder.glob("*.lock")) == []


def test_republished_messages_stay_in_their_pool(simulator: Simulators) -> None:
    one, two = simulator(pool="one"), simulator(pool="two")
    two.create()
    one.send(["x"], tag="a.b")
    assert one.republish(take(one)[0])
    assert (one.depth().total, two.depth().total) == (1, 1)


def test_a_pool_exists_until_it_is_deleted(simulator: Simulators) -> None:
    queue, other = simulator(pool="p"), simulator(pool="q")
    assert not queue.exists()
    assert not simulator.folder.exists()
    queue.create()
    assert queue.exists()
    assert not other.exists()
    queue.send(["x", "y"])
    assert [message.body for message in queue.peek(1)] == [b"x"]
    assert queue.purge() == 2
    queue.delete()
    assert not queue.exists()
    queue.send(["again"])
    assert bodies(queue) == [b"again"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sim://orders", "needs dir=PATH"),
        ("sim://?dir=d", "named by letters"),
        ("sim://a/b?dir=d", "named by letters"),
        ("sim://a?dir=d&pool=x%2Fy", "named by letters"),
        ("sim://a?dir=d&tags=", "write '#' for all"),
        ("sim://a?dir=d&pool=listener-1", "those of listeners"),
        ("sim://a?dir=d&listener=yes", "neither true nor false"),
        ("sim://a?dir=d&listener=true&pool=p", "no pool"),
    ],
)
def test_urls_that_make_no_sense_say_what_to_write(url: str, problem: str) -> None:
    with pytest.raises(QueueConfigurationError, match="write sim://SOURCE") as told:
        open_queue(url)
    assert problem in str(told.value)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_lost_acknowledgement_looks_like_one_and_the_message_comes_again(simulator: Simulators, clock: Clock) -> None:
    queue = simulator()
    queue.send(["a", "b"])
    queue.order(Fault.LOST_ACKNOWLEDGEMENT)
    receipts = [message.receipt for message in take(queue)]
    assert queue.acknowledge(receipts) == set()
    assert bodies(queue) == []
    clock.advance(61)
    (again,) = take(queue)
    assert (again.body, again.receive_count) == (b"a", 2)
    assert queue.acknowledge([again.receipt]) == set()
    assert queue.depth().total == 0
    assert queue.ordered() == {}


def test_a_stale_acknowledgement_uses_up_no_fault(simulator: Simulators) -> None:
    queue = simulator()
    queue.send(["a"])
    (message,) = take(queue)
    queue.acknowledge([message.receipt])
    queue.order(Fault.LOST_ACKNOWLEDGEMENT)
    assert queue.acknowledge([message.receipt]) == {message.receipt}
    assert queue.ordered() == {Fault.LOST_ACKNOWLEDGEMENT: 1}


def test_a_duplicate_delivery_is_the_same_message_twice(simulator: Simulators) -> None:
    queue = simulator()
    queue.order(Fault.DUPLICATE_DELIVERY)
    (published, _) = queue.send(["a", "b"], tag="t", headers={"k": "v"})
    first, _ = take(queue)
    (second,) = take(queue)
    assert first.message_id == second.message_id == published
    assert (second.body, second.tag, second.headers, second.receive_count) == (b"a", "t", {"k": "v"}, 2)
    assert first.receipt != second.receipt
    assert queue.acknowledge([first.receipt]) == set()
    assert queue.acknowledge([second.receipt]) == set()


def test_a_lease_that_ends_early_gives_the_message_to_somebody_else(simulator: Simulators, clock: Clock) -> None:
    queue, other = simulator(), simulator()
    queue.send(["a"])
    queue.order(Fault.EARLY_EXPIRY, seconds=5)
    (early,) = queue.receive(10, 600, 0)
    assert take(other) == []
    clock.advance(6)
    (again,) = take(other)
    assert again.message_id == early.message_id
    assert queue.acknowledge([early.receipt]) == {early.receipt}


def test_a_slow_receive_takes_longer(simulator: Simulators, clock: Clock) -> None:
    queue = simulator()
    queue.send(["a"])
    queue.order(Fault.SLOW_RECEIVE, seconds=30)
    before = clock()
    assert bodies(queue) == [b"a"]
    assert clock() - before == 30


def test_a_queue_that_is_closed_during_a_slow_receive_brings_nothing(simulator: Simulators) -> None:
    queue = simulator()
    queue.send(["a"])
    queue.order(Fault.SLOW_RECEIVE, seconds=30)
    queue._sleep = lambda seconds: queue.close()
    assert bodies(queue) == []


def test_a_disconnect_meets_any_verb_or_the_one_that_is_named_and_changes_nothing(simulator: Simulators) -> None:
    queue = simulator()
    queue.order(Fault.DISCONNECT, verb="acknowledge")
    queue.send(["a"])
    (message,) = take(queue)
    with pytest.raises(QueueUnavailable, match="disconnected during acknowledge, as ordered"):
        queue.acknowledge([message.receipt])
    assert queue.acknowledge([message.receipt]) == set()
    queue.order(Fault.DISCONNECT, times=7)
    uses: list[Any] = [
        lambda: queue.send(["x"]),
        lambda: take(queue),
        lambda: queue.extend([message.receipt], 1),
        lambda: queue.nack([message.receipt]),
        lambda: queue.reject([message.receipt]),
        lambda: queue.republish(message),
        queue.depth,
    ]
    for use in uses:
        with pytest.raises(QueueUnavailable):
            use()
    assert queue.depth().total == 0


def test_faults_are_for_one_pool_and_as_many_messages_as_ordered(simulator: Simulators) -> None:
    one, two = simulator(pool="one"), simulator(pool="two")
    two.create()
    one.send([str(number) for number in range(10)])
    one.order(Fault.DUPLICATE_DELIVERY, times=3)
    one.order(Fault.DUPLICATE_DELIVERY, times=1)
    assert len(take(two)) == len(take(one)) == 10
    assert len(take(one)) == 4
    assert take(two) == []


def test_faults_ordered_here_are_met_in_another_process(simulator: Simulators) -> None:
    queue = simulator(pool="p")
    queue.order(Fault.DISCONNECT)
    script = "import sys; from queue_source.queues import open_queue; open_queue(sys.argv[1]).receive(1, 60, 0)"
    url = f"sim://orders?dir={simulator.folder}&pool=p"
    done = subprocess.run([sys.executable, "-c", script, url], env=ENVIRONMENT, capture_output=True, check=False)
    assert b"QueueUnavailable" in done.stderr
    assert queue.ordered() == {}
