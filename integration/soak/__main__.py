"""A soak with real Spark: `make soak MINUTES=30`, or `python -m integration.soak --minutes 30`.

Exit code 0: nothing was lost, nothing doubled, and nothing grew. 1: something did; the table says what.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from integration.soak.load import WINDOW, Place, Producer, Victim
from integration.soak.watch import Verdict, Watch
from queue_source.queues import open_queue
from shard_store.store import open_store
from support.engine.harness import Driver
from support.engine.world import eventually
from support.servers.ministack import KEYS, ministack_server, new_queue
from support.servers.postgres import new_database, postgres
from support.servers.rabbitmq import rabbitmq_server

_EVERY = 10.0  # seconds between two samples
_START = 300.0  # seconds for the first rows
_DRAIN = 240.0  # seconds for what is left at the end
_MEMORY = "--driver-memory 512m pyspark-shell"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=10, help="files, and messages, a second")
    parser.add_argument("--kill-every", type=float, default=120, help="seconds")
    arguments = parser.parse_args()
    os.environ["PYSPARK_SUBMIT_ARGS"] = _MEMORY
    with (
        tempfile.TemporaryDirectory(prefix="cuesqueue-soak-") as folder,
        postgres() as server,
        ministack_server() as sqs,
        rabbitmq_server() as rabbit,
    ):
        name = f"soak-{uuid.uuid4().hex[:8]}"
        pool = f"{rabbit.url}?source={name}&pool={name}"
        place = Place(Path(folder), new_database(server.url), new_queue(sqs), pool)
        with open_queue(pool) as queue, open_store(place.store):  # both are there before anybody looks at them
            queue.create()  # type: ignore[attr-defined]
        return soak(place, arguments.minutes * 60, arguments.rate, arguments.kill_every)


def soak(place: Place, seconds: float, rate: float, kill_every: float) -> int:
    steady = Driver(place.folder / "steady", place.queries("steady"))
    producer = Producer(place, rate)
    watch = Watch(steady, place.store)
    victim = Victim(place)
    try:
        producer.start()
        print("waiting for the first rows", flush=True)
        eventually("the first rows", lambda: watch.sample() and watch.ids, _START)
        victim.start()
        began = next_kill = time.monotonic()
        next_kill += kill_every
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(min(_EVERY, seconds - passed))
            producer.check()
            if time.monotonic() >= next_kill:
                victim.kill()
                next_kill += kill_every
            _tell(passed, seconds, watch, producer, victim)
        producer.end()
        producer.check()
        alive = not (steady.folder / "ended.json").exists()
        left = _drain(place, producer, watch)
        verdicts = watch.verdicts(max(seconds / 3, 2 * WINDOW if seconds > 6 * WINDOW else 0.0))
        return _judge(producer, watch, victim, verdicts, left, alive=alive)
    finally:
        producer.end()
        for driver in (victim.driver, steady):
            if driver is not None:
                driver.close()
        watch.close()


def _tell(passed: float, seconds: float, watch: Watch, producer: Producer, victim: Victim) -> None:
    now = watch.sample()
    done = int(20 * passed / seconds)
    behind = len(producer.expected) - len(watch.ids)
    values = [f"{name} {now[name]:.0f}" for name in ("MB jvm", "MB reader", "MB worker", "connections") if name in now]
    bar = "#" * done + "." * (20 - done)
    print(
        f"[{bar}] {passed / 60:5.1f} min  {len(watch.ids):,} rows, {behind} behind, p50 "
        f"{now.get('latency p50', float('nan')):.1f} s, {len(victim.kills)} kills; {', '.join(values)}",
        flush=True,
    )


def _drain(place: Place, producer: Producer, watch: Watch) -> int:
    """Wait until everything is there and the queues are empty; returns how many messages are left."""
    deadline = time.monotonic() + _DRAIN
    while True:
        watch._published()
        with open_queue(place.sqs, **KEYS) as files, open_queue(place.rabbit) as messages:
            left = files.depth().total + messages.depth().total
        if (not left and len(watch.ids) >= len(set(producer.expected))) or time.monotonic() > deadline:
            return left
        time.sleep(1.0)


def _judge(producer: Producer, watch: Watch, victim: Victim, verdicts: list[Verdict], left: int, *, alive: bool) -> int:
    expected = Counter(producer.expected)
    lost, doubled = (expected - watch.ids).total(), (watch.ids - expected).total()
    print(f"\n{'series':34}{'level':>12}{'slope/min':>12}{'growth':>10}{'allowed':>10}  verdict")
    for one in verdicts:
        allowed = "-" if one.limit is None else f"{one.limit:.1f}"
        word = "grows with what is published" if one.limit is None else "flat" if one.flat else "GROWS"
        print(f"{one.name:34}{one.level:12.1f}{one.slope:12.3f}{one.growth:10.1f}{allowed:>10}  {word}")
    ranked = sorted(watch.latencies)
    p99 = ranked[int(0.99 * len(ranked))] if ranked else float("nan")
    print(
        f"{expected.total():,} rows sent, {watch.ids.total():,} published: {lost} lost, {doubled} doubled, {left} "
        f"messages left; {len(victim.kills)} kills {dict(Counter(victim.kills))}; latency p50 "
        f"{statistics.median(ranked or [0]):.2f} s, p99 {p99:.2f} s; the driver that nobody disturbs is "
        f"{'alive' if alive else 'DEAD'}"
    )
    good = alive and not (lost or doubled or left) and all(one.flat for one in verdicts)
    print("verdict: " + ("good" if good else "BAD"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
