"""What every queue promises (`queue_source.queues.base.Queue`), over every backend. Time is the backend's clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import queue_source
from queue_source.errors import QueueError
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues import Payload, Queue, open_queue, redact
from queue_source.queues.adapter import log_id
from queue_source.queues.base import identity_of, send_messages
from queue_source.queues.programs import CappedQueue
from support.queues import BACKENDS
from support.queues.backend import PROMISES, Backend, Clock

BODIES = {
    "a number that looks like JSON": b"123",
    "JSON with odd spacing": b'{ "a" :1}\n',
    "bytes that are not UTF-8": b"\xff\xfe\x00\x80",
    "nothing": b"",
    "256 KB": bytes(range(256)) * 1024,
    "unicode": "gr\u00fc\u00dfe \U0001f980 \u4f60\u597d".encode(),
}


BODY = pytest.mark.parametrize(
    "body",
    [
        pytest.param(body, id=name, marks=pytest.mark.needs("large") if name == "256 KB" else ())
        for name, body in BODIES.items()
    ],
)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with BACKENDS[request.param](request, tmp_path) as made:
        assert made.lacks.keys() <= PROMISES.keys()
        for marker in request.node.iter_markers("needs"):
            assert set(marker.args) <= PROMISES.keys()
            for promise in marker.args:
                if promise in made.lacks:
                    pytest.skip(f"{request.param} does not promise {promise!r}: {made.lacks[promise]}")
        yield made
        made.close()


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return backend.open()


@pytest.fixture
def other(backend: Backend, queue: Queue) -> Queue:
    """A second consumer of the same queue."""
    return backend.open()


@pytest.fixture
def clock(backend: Backend) -> Clock:
    return backend.clock


def take(queue: Queue, most: int = 10, lease: float = 60, wait: float = 0) -> list[Received]:
    return queue.receive(most, lease, wait)


def take_number(queue: Queue, number: int) -> list[Received]:
    """Take so many messages; a queue may need a moment until it delivers what was sent just now."""
    taken = take(queue)
    until = time.monotonic() + 10
    while len(taken) < number and time.monotonic() < until:
        taken += take(queue, wait=0.2)
    return taken


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


def receipts(messages: list[Received]) -> list[Receipt]:
    return [message.receipt for message in messages]


def expect_depth(queue: Queue, **numbers: int) -> None:
    """Where the queue tells its depth."""
    if queue.capabilities.reports_depth:
        depth = queue.depth()
        assert {name: getattr(depth, name) for name in numbers} == numbers


def test_the_current_log_id_goes_along_under_the_name_that_the_url_gives(queue: Queue) -> None:
    # what the URL names (`unit/test_queue_urls.py`); several of these queues are opened for a whole module
    stamping: Any = getattr(queue, "_queue", queue)
    stamping.log_id_header = "X-Ascent-Log-Id"
    with log_id("request-7"):
        queue.send(["one"])
        queue.send(["own"], headers={"X-Ascent-Log-Id": "mine"})
        send_messages(queue, [Outgoing(b"many")])
    queue.send(["outside"])
    stamping.log_id_header = None
    ids = {message.body: message.headers.get("X-Ascent-Log-Id") for message in take_number(queue, 4)}
    assert ids == {b"one": "request-7", b"own": "mine", b"many": "request-7", b"outside": None}


# --- a worker ---


def test_a_worker_keeps_the_leases_of_what_it_handles_and_gives_back_what_fails(backend: Backend) -> None:
    queue = backend.open_in_real_time()
    queue.send(["slow", "failing", *(str(number) for number in range(6))])
    handled, stop, lock = Counter[bytes](), threading.Event(), threading.Lock()

    def handle(message: Received) -> None:
        with lock:
            handled[message.body] += 1
            times = handled[message.body]
        if message.body == b"slow":
            time.sleep(3.5)  # longer than its lease
        if message.body == b"failing" and times == 1:
            raise ValueError("told to fail")
        if handled.total() == 9 and message.body in (b"slow", b"failing"):
            stop.set()

    queue.work(handle, parallelism=3, lease=2.0, stop=stop)
    assert handled == Counter({b"slow": 1, b"failing": 2, **{str(number).encode(): 1 for number in range(6)}})
    expect_depth(queue, total=0)


# --- a cap of what one client holds ---


def test_no_more_is_given_out_than_the_cap_until_some_are_ended(queue: Queue) -> None:
    capped = CappedQueue(queue, 3, clock=lambda: 0.0)
    capped.send([str(number) for number in range(6)])
    held = take_number(capped, 3)
    assert len(held) == 3
    assert take(capped) == []
    capped.acknowledge([held[0].receipt])
    assert capped.republish(held[1])
    held = [held[2], *take_number(capped, 2)]
    assert len(held) == 3
    assert (take(capped), capped.outstanding()) == ([], 3)
    capped.nack(receipts(held[:1]))
    capped.reject(receipts(held[1:]))
    assert capped.outstanding() == 0


# --- its name ---------------------------------------------------------------------------------------------------------


def test_one_queue_has_one_name_however_it_is_spelled(backend: Backend, queue: Queue) -> None:
    assert backend.spellings
    for url, options in backend.spellings:
        with open_queue(url, **options) as other:
            assert identity_of(other) == identity_of(queue), url
    with open_queue(backend.another, **backend.options) as another:
        assert identity_of(another) != identity_of(queue)


# --- sending and taking ----------------------------------------------------------------------------------------------


def test_a_message_that_was_sent_is_received_with_all_that_was_said_of_it(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    ids = queue.send([b"hello"], tag="orders.eu", headers={"trace": "1", "\u00fc": "\U0001f980"})
    (message,) = take(other)
    assert [message.message_id] == ids
    assert message.body == b"hello"
    assert (message.tag, message.headers, message.group) == ("orders.eu", {"trace": "1", "\u00fc": "\U0001f980"}, None)
    assert message.receive_count == 1
    assert message.sent_at == pytest.approx(clock.wall(), abs=clock.precision)
    assert message.queue == other.name


@BODY
def test_bytes_come_out_as_they_went_in(queue: Queue, body: bytes) -> None:
    queue.send([body])
    assert bodies(take(queue)) == [body]


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        ("text \u00fc", "text \u00fc".encode()),
        ({"any": ["json", 1, None], "n": {"\u00fc": 1.5}}, '{"any":["json",1,null],"n":{"\u00fc":1.5}}'.encode()),
        ([1, "two"], b'[1,"two"]'),
        ({}, b"{}"),
    ],
)
def test_text_is_sent_as_it_is_and_a_dict_as_json(queue: Queue, payload: Payload, body: bytes) -> None:
    queue.send([payload])
    assert bodies(take(queue)) == [body]


@pytest.mark.parametrize("payload", [{"n": float("nan")}, "\ud800", {"k": object()}])
def test_what_cannot_be_sent_is_refused_and_nothing_else_of_the_call_is_sent(queue: Queue, payload: Payload) -> None:
    with pytest.raises((TypeError, ValueError)):
        queue.send([b"good", payload])
    expect_depth(queue, total=0)


def test_a_single_payload_without_a_list_is_refused(queue: Queue) -> None:
    with pytest.raises(TypeError, match="list"):
        queue.send("text")


def test_publish_is_the_earlier_name_of_send(queue: Queue) -> None:
    (message_id,) = queue.publish([b"x"], tag="a.b", headers={"trace": "7"})
    (message,) = take(queue, wait=20)
    assert message.message_id == message_id
    assert (message.body, message.tag, dict(message.headers)) == (b"x", "a.b", {"trace": "7"})


def test_sending_no_payloads_sends_nothing(queue: Queue) -> None:
    assert queue.send([]) == []
    assert take(queue) == []


@pytest.mark.needs("order")
def test_the_oldest_message_comes_first(queue: Queue, clock: Clock) -> None:
    for number in range(5):
        queue.send([f"{number}a", f"{number}b"])
        clock.advance(1)
    assert bodies(take(queue, 3)) == [b"0a", b"0b", b"1a"]
    assert bodies(take(queue, 100)) == [b"1b", b"2a", b"2b", b"3a", b"3b", b"4a", b"4b"]


def test_no_more_than_asked_for_is_taken(queue: Queue) -> None:
    queue.send([str(number) for number in range(7)])
    assert len(take(queue, 3)) == 3
    assert take(queue, 0) == []
    expect_depth(queue, ready=4)


def test_message_ids_are_all_different_and_in_the_order_of_the_payloads(queue: Queue) -> None:
    ids = queue.send(["a", "b", "c"])
    assert len(set(ids)) == 3
    assert {message.message_id: message.body for message in take(queue)} == dict(
        zip(ids, [b"a", b"b", b"c"], strict=True)
    )


def test_an_empty_queue_gives_nothing_once_the_wait_is_over(queue: Queue, clock: Clock) -> None:
    before = clock()
    assert take(queue, wait=20) == []
    assert 20 <= clock() - before < 20 + clock.slack


def test_a_message_sent_while_waiting_ends_the_wait(backend: Backend) -> None:
    waiting, sending = backend.open_in_real_time(), backend.open_in_real_time()
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(waiting.receive, 10, 60, 30)
        sending.send(["now"])
        assert bodies(received.result(timeout=20)) == [b"now"]


def test_closing_ends_the_wait_of_another_thread(backend: Backend) -> None:
    waiting = backend.open_in_real_time()
    expect_depth(waiting, total=0)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(waiting.receive, 10, 60, 300)
        with pytest.raises(NotDone):
            received.result(timeout=0.3)
        waiting.close()
        assert received.result(timeout=20) == []


def test_a_closed_queue_says_so(queue: Queue) -> None:
    queue.close()
    queue.close()
    with pytest.raises(QueueError, match="closed"):
        queue.receive(1, 60, 0)


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_leased_message_is_seen_by_nobody_else(queue: Queue, other: Queue) -> None:
    queue.send(["once"])
    assert len(take(queue)) == 1
    assert take(other) == []
    assert take(queue) == []


@pytest.mark.needs("expiry", "count")
def test_after_the_lease_it_comes_again_as_the_same_message_with_a_raised_count(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    queue.send(["again"])
    (first,) = take(queue, lease=40)
    clock.advance(20)
    assert take(other) == []
    clock.advance(30)
    (second,) = take(other)
    assert (second.message_id, second.body, second.receive_count) == (first.message_id, b"again", 2)
    assert second.sent_at == first.sent_at
    assert second.receipt != first.receipt


@pytest.mark.needs("expiry")
def test_an_extended_lease_holds_beyond_its_first_deadline(queue: Queue, other: Queue, clock: Clock) -> None:
    queue.send(["long work"])
    (message,) = take(queue, lease=40)
    for _ in range(2):
        clock.advance(25)
        assert queue.extend([message.receipt], 40) == set()
        assert take(other) == []
    clock.advance(50)
    assert len(take(other)) == 1


@pytest.mark.needs("expiry")
def test_an_extension_may_also_shorten_the_lease(queue: Queue, clock: Clock) -> None:
    queue.send(["x"])
    queue.extend(receipts(take(queue, lease=600)), 20)
    clock.advance(40)
    assert len(take(queue)) == 1


@pytest.mark.needs("expiry", "stale", "depth")
def test_a_stale_receipt_is_told_and_changes_nothing(queue: Queue, other: Queue, clock: Clock) -> None:
    queue.send(["contested"])
    (slow,) = take(queue, lease=20)
    clock.advance(40)
    (fresh,) = take(other, lease=60)
    assert queue.extend([slow.receipt], 600) == {slow.receipt}
    assert queue.acknowledge([slow.receipt]) == {slow.receipt}
    queue.nack([slow.receipt])
    queue.reject([slow.receipt])
    expect_depth(queue, in_flight=1)
    assert take(queue) == []
    clock.advance(20)
    assert other.extend([fresh.receipt], 60) == set()
    assert other.acknowledge([fresh.receipt]) == set()
    expect_depth(queue, total=0)


@pytest.mark.needs("expiry", "stale")
def test_of_many_receipts_only_the_stale_ones_are_told(queue: Queue, clock: Clock) -> None:
    queue.send(["a", "b", "c"])
    first = take(queue, 1, lease=20)
    clock.advance(40)
    rest = take(queue, 10, lease=60)
    assert len(rest) == 3
    everything = [*receipts(first), *receipts(rest)]
    assert queue.extend(everything, 60) == set(receipts(first))
    assert queue.acknowledge(everything) == set(receipts(first))
    expect_depth(queue, total=0)


@pytest.mark.needs("stale", "unknown")
def test_a_receipt_that_was_never_given_is_stale(queue: Queue) -> None:
    queue.send(["x"])
    for nonsense in ("", "x", "1", "1.", "1.0", "-1.a", "9" * 40, "\u00b2.x", "1' OR 1=1"):
        receipt = Receipt(nonsense)
        assert queue.extend([receipt], 60) == {receipt}
        assert queue.acknowledge([receipt]) == {receipt}
    expect_depth(queue, ready=1)


def test_no_receipts_at_all_change_nothing(queue: Queue) -> None:
    assert queue.extend([], 60) == set()
    assert queue.acknowledge([]) == set()


# --- how a message ends ----------------------------------------------------------------------------------------------


def test_an_acknowledged_message_never_comes_again(queue: Queue, other: Queue, clock: Clock) -> None:
    queue.send(["done"])
    assert queue.acknowledge(receipts(take(queue, lease=20))) == set()
    clock.advance(40)
    assert take(other) == []
    expect_depth(queue, total=0)


def test_acknowledging_twice_is_harmless(queue: Queue) -> None:
    queue.send(["done", "other"])
    (message,) = take(queue, 1)
    queue.acknowledge([message.receipt, message.receipt])
    queue.acknowledge([message.receipt])
    assert bodies(take(queue)) == [b"other"]


@pytest.mark.needs("places", "order", "count")
def test_given_back_at_once_it_is_visible_at_once_before_what_was_sent_later(queue: Queue, clock: Clock) -> None:
    queue.send(["early"])
    clock.advance(1)
    queue.send(["late"])
    (message,) = take(queue, 1)
    queue.nack([message.receipt])
    again = take(queue)
    assert [(m.body, m.receive_count) for m in again] == [(b"early", 2), (b"late", 1)]


@pytest.mark.needs("delay")
def test_given_back_with_a_delay_it_is_visible_after_it(queue: Queue, clock: Clock) -> None:
    queue.send(["later"])
    queue.nack(receipts(take(queue, lease=600)), delay=40)
    clock.advance(20)
    assert take(queue) == []
    clock.advance(30)
    assert bodies(take(queue)) == [b"later"]


@pytest.mark.needs("stale")
@pytest.mark.parametrize("delay", [0, 60])
def test_what_was_given_back_can_no_longer_be_extended_or_acknowledged(
    queue: Queue, clock: Clock, delay: float
) -> None:
    queue.send(["x"])
    given = receipts(take(queue))
    queue.nack(given, delay)
    assert queue.extend(given, 60) == set(given)
    assert queue.acknowledge(given) == set(given)
    clock.advance(2 * delay)
    assert bodies(take(queue, wait=20)) == [b"x"]


def test_a_rejected_message_never_comes_again(queue: Queue, clock: Clock) -> None:
    queue.send(["poison", "good"])
    queue.reject(receipts(take(queue, 1, lease=20)))
    clock.advance(40)
    assert bodies(take(queue)) == [b"good"]


@BODY
def test_a_republished_message_goes_to_the_back_untouched_and_counted(queue: Queue, clock: Clock, body: bytes) -> None:
    (first_id, _) = queue.send([body, b"next"], tag="a.b", headers={"trace": "7"})
    clock.advance(1)
    (message,) = take(queue, 1)
    assert queue.republish(message) is True
    following, copy = take_number(queue, 2)
    assert following.body == b"next"
    assert (copy.body, copy.tag, copy.headers) == (body, "a.b", {"trace": "7", "Republish-Count": "1"})
    assert copy.message_id != first_id
    assert copy.receive_count == 1
    assert queue.republish(copy)
    (again,) = take_number(queue, 1)
    assert (copy.republish_count, again.republish_count) == (1, 2)
    expect_depth(queue, total=2)


@pytest.mark.needs("expiry", "stale")
def test_a_stale_message_is_not_republished(queue: Queue, other: Queue, clock: Clock) -> None:
    queue.send(["x"])
    (slow,) = take(queue, lease=20)
    clock.advance(40)
    assert len(take(other)) == 1
    assert queue.republish(slow) is False
    expect_depth(queue, total=1)


def test_a_republish_count_that_is_no_number_starts_again(queue: Queue) -> None:
    queue.send(["x"], headers={"Republish-Count": "many"})
    queue.republish(take(queue)[0])
    assert take(queue)[0].headers == {"Republish-Count": "1"}


@pytest.mark.needs("depth", "expiry")
def test_depth_tells_waiting_leased_and_delayed_apart(queue: Queue, clock: Clock) -> None:
    queue.send([str(number) for number in range(6)])
    queue.nack(receipts(take(queue, 1)), delay=100)
    take(queue, 2, lease=60)
    depth = queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (3, 2, 1)
    clock.advance(80)
    assert (queue.depth().ready, queue.depth().in_flight) == (5, 0)


@pytest.mark.needs("expiry")
def test_messages_in_flight_stay_leased_when_their_consumer_closes(backend: Backend, clock: Clock) -> None:
    watcher = backend.open()
    with replace(backend, views=[]).open() as leaving:
        leaving.send(["held"])
        assert len(take(leaving, lease=40)) == 1
    assert take(watcher) == []
    expect_depth(watcher, in_flight=1)
    clock.advance(50)
    assert bodies(take(watcher)) == [b"held"]


# --- ordered groups --------------------------------------------------------------------------------------------------


@pytest.mark.needs("groups")
def test_a_group_waits_while_one_of_its_messages_is_in_flight(queue: Queue, other: Queue) -> None:
    queue.send(["a1", "a2"], group="a")
    queue.send(["b1"], group="b")
    queue.send(["free"])
    (a1,) = take(queue, 1)
    assert (a1.body, a1.group) == (b"a1", "a")
    assert bodies(take(other)) == [b"b1", b"free"]
    queue.acknowledge([a1.receipt])
    assert bodies(take(other)) == [b"a2"]


@pytest.mark.needs("groups")
def test_a_batch_may_hold_several_messages_of_a_group_in_order(queue: Queue) -> None:
    queue.send(["1", "2", "3"], group="a")
    assert bodies(take(queue)) == [b"1", b"2", b"3"]


@pytest.mark.needs("groups")
@pytest.mark.parametrize("delay", [0, pytest.param(20, marks=pytest.mark.needs("delay"))])
def test_a_group_given_back_comes_again_in_its_order(queue: Queue, clock: Clock, delay: float) -> None:
    for number in range(4):
        queue.send([str(number)], group="a")
        clock.advance(1)
    messages = take(queue, 3)
    queue.nack(receipts(messages), delay)
    if delay:
        assert take(queue) == []
    clock.advance(2 * delay)
    seen: list[bytes] = []
    while taken := take(queue):
        seen += bodies(taken)
        queue.acknowledge(receipts(taken))
    assert seen == [b"0", b"1", b"2", b"3"]


@pytest.mark.needs("groups")
def test_a_group_whose_lease_ran_out_comes_again_in_its_order(queue: Queue, other: Queue, clock: Clock) -> None:
    queue.send(["1", "2", "3"], group="a")
    first = take(queue, 2, lease=20)
    queue.extend([first[0].receipt], 80)  # the first is held longer than the second
    clock.advance(40)
    assert take(other) == []
    clock.advance(60)
    seen: list[bytes] = []
    while taken := take(other):
        seen += bodies(taken)
        other.acknowledge(receipts(taken))
    assert seen == [b"1", b"2", b"3"]


@pytest.mark.needs("groups", "exclusive")
def test_consumers_that_compete_for_groups_keep_each_group_in_order(backend: Backend) -> None:
    views = [backend.open_in_real_time() for _ in range(3)]
    for number in range(30):
        for group in ("a", "b", "c"):
            views[0].send([f"{group}{number:02}"], group=group)
    seen: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    lock = threading.Lock()

    def consume(view: Queue) -> None:
        while taken := view.receive(4, 60, 1):
            with lock:
                for message in taken:
                    seen[str(message.group)].append(message.body.decode())
            view.acknowledge(receipts(taken))

    with ThreadPoolExecutor(len(views)) as pool:
        list(pool.map(consume, views))
    assert seen == {group: [f"{group}{number:02}" for number in range(30)] for group in "abc"}


# --- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.needs("exclusive")
def test_threads_never_share_a_message(backend: Backend) -> None:
    views = [backend.open_in_real_time() for _ in range(4)]
    many = min(backend.many, 2_000)
    views[0].send([str(number) for number in range(many)])

    def consume(view: Queue) -> list[bytes]:
        got: list[bytes] = []
        while taken := view.receive(17, 60, 0.3):
            assert view.acknowledge(receipts(taken)) == set()
            got += bodies(taken)
        return got

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(consume, [*views, *views]))
    assert sorted(int(body) for part in parts for body in part) == list(range(many))


def worker(backend: Backend, batch: int, lease: float = 60) -> subprocess.Popen[bytes]:
    script = Path(__file__).parents[1] / "support" / "queue_worker.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(queue_source.__file__).parents[1])}
    options = json.dumps(dict(backend.options))
    command = [sys.executable, str(script), backend.url, options, str(batch), str(lease)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.needs("exclusive")
def test_processes_that_start_at_once_create_the_queue_and_never_share_a_message(backend: Backend) -> None:
    workers = [worker(backend, batch) for batch in (7, 50, 50)]
    queue = backend.open_in_real_time()
    sent = [f"{number}" for number in range(1_000)]
    for start in range(0, len(sent), 100):
        queue.send(sent[start : start + 100])
    got: list[str] = []
    for process in workers:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
        got += json.loads(output)
    while taken := take(queue, 1000):  # a worker may have been done before the last were sent
        assert queue.acknowledge(receipts(taken)) == set()
        got += [message.body.decode() for message in taken]
    assert sorted(got, key=int) == sent


@pytest.mark.needs("expiry")
def test_what_a_killed_process_held_comes_again_after_its_lease(backend: Backend) -> None:
    queue = backend.open_in_real_time()
    queue.send(["held by the dead"])
    process = worker(backend, 0, backend.real_seconds(60))
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert take(queue) == []
    (message,) = take(backend.open_later(61))
    assert message.body == b"held by the dead"
    assert message.receive_count == (1 if "count" in backend.lacks else 2)


def test_thousands_of_messages_go_through_in_sets(backend: Backend) -> None:
    queue = backend.open_in_real_time()
    queue.send([str(number) for number in range(backend.many)])
    size = queue.capabilities.max_batch_size
    seen: list[bytes] = []
    while taken := take(queue, size):
        assert queue.extend(receipts(taken), 60) == set()
        assert queue.acknowledge(receipts(taken)) == set()
        seen += bodies(taken)
    assert sorted(map(int, seen)) == list(range(backend.many))
    expect_depth(queue, total=0)


def test_every_queue_follows_the_protocol_and_names_itself_without_secrets(queue: Queue, backend: Backend) -> None:
    assert isinstance(queue, Queue)
    assert queue.name == redact(backend.url)
    assert queue.capabilities.max_batch_size >= 1
