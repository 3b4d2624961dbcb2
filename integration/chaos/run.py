"""The chaos run: several pipelines on one database and one queue in it, disturbed for a bounded time and a seed.

    python -m integration.chaos.run --seed 1 --seconds 60

Afterwards the pipelines run undisturbed until the queue is empty, and what was published is compared with what was
announced.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import sqlalchemy as sa

from integration.chaos.pipeline import Place, run
from queue_source.queues import open_queue
from shard_store.sql.schema import shards
from shard_store.store import open_store
from support.driver_loop import published
from support.servers.postgres import PostgresServer, new_database, postgres

_STALE = 2.0  # twice the pipelines' commitTimeout
_DRAIN_SECONDS = 180.0


@dataclass
class Report:
    """What happened, and what it came to."""

    seed: int
    announced: int = 0  # messages
    objects: int = 0
    kills: int = 0
    pauses: int = 0
    zombies: int = 0  # of the pauses: a replacement was started meanwhile
    database_restarts: int = 0
    starts: int = 0
    takeovers: int = 0  # shards that a pipeline acquired because another one's heartbeats had stopped
    fenced: int = 0  # batches or queries that were refused because their token was no longer current
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left_open: int = 0
    left_in_queue: int = 0
    bugs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.left_open or self.left_in_queue or self.bugs)


class Crowd:
    """The pipelines' processes; a pipeline may have two of them while one is paused."""

    def __init__(self, place: Place, names: list[str], options: Mapping[str, str] | None = None) -> None:
        self.place = place
        self._options = dict(options or {})
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["integration.chaos.pipeline"])
        self.current: dict[str, BaseProcess] = {}
        self.paused: list[tuple[float, BaseProcess]] = []
        self.names = names

    def start(self, name: str) -> None:
        process = self._context.Process(target=run, args=(self.place, name, self._options), daemon=True)
        process.start()
        self.current[name] = process

    def revive(self) -> None:
        """Start pipelines that have ended, and continue those whose pause is over."""
        for name in self.names:
            if name not in self.current or not self.current[name].is_alive():
                self.start(name)
        now = time.monotonic()
        for until, process in [p for p in self.paused if p[0] <= now]:
            _signal(process, signal.SIGCONT)
            self.paused.remove((until, process))

    def end(self) -> None:
        for _, process in self.paused:
            _signal(process, signal.SIGCONT)
        self.place.ending.touch()
        for process in [*self.current.values(), *(process for _, process in self.paused)]:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()


def chaos(seed: int, seconds: float, folder: Path, server: PostgresServer, pipelines: int = 4) -> Report:
    """One run: announce and disturb for `seconds`, then let the pipelines finish, then compare."""
    chance = random.Random(seed)
    began = time.monotonic()
    report = Report(seed)
    url = new_database(server.url)
    place = Place(folder, f"sql+{url}?queue=files", url)
    with open_store(url):
        pass  # the tables are there before anybody races
    crowd = Crowd(place, [f"pipeline-{n}" for n in range(pipelines)])
    expected: list[str] = []
    try:
        with open_queue(place.queue_url) as queue:
            while time.monotonic() - began < seconds:
                crowd.revive()
                report.announced += _announce(chance, queue.publish, expected)
                time.sleep(chance.uniform(0.05, 0.35))
                _disturb(chance, crowd, server, report)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline and not _settled(place):
            crowd.revive()
            time.sleep(0.2)
    finally:
        crowd.end()
    _compare(place, expected, report)
    _read_logs(place, crowd.names, report)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _announce(chance: random.Random, publish: object, expected: list[str]) -> int:
    """New objects and, of about a third of the messages, announcements of old ones; several objects in some."""
    fresh = [f"s3://bucket/{len(expected) + n:06d}" for n in range(chance.randint(2, 12))]
    expected += fresh
    payloads: list[object] = list(fresh)
    payloads += chance.choices(expected, k=len(fresh) // 2)
    if chance.random() < 0.3:
        payloads.append(chance.sample(expected, min(3, len(expected))))
    chance.shuffle(payloads)
    for _ in range(100):
        try:
            publish(payloads)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - the database may be restarting; publishing twice is harmless here
            last = error
            time.sleep(0.1)
        else:
            return len(payloads)
    raise last


def _disturb(chance: random.Random, crowd: Crowd, server: PostgresServer, report: Report) -> None:
    dice = chance.random()
    running = [n for n, p in crowd.current.items() if p.is_alive() and p not in [q for _, q in crowd.paused]]
    if dice < 0.015:
        server.restart(chance.choice([signal.SIGINT, signal.SIGQUIT]))
        report.database_restarts += 1
    elif not running:
        return
    elif dice < 0.45:
        process = crowd.current[chance.choice(running)]
        _signal(process, signal.SIGKILL)
        process.join()
        report.kills += 1
    elif dice < 0.70 and len(crowd.paused) < 3:
        name = chance.choice(running)
        process = crowd.current[name]
        _signal(process, signal.SIGSTOP)
        crowd.paused.append((time.monotonic() + _STALE * chance.uniform(1.1, 2.0), process))
        report.pauses += 1
        if chance.random() < 0.5:  # a replacement under the same name: the paused one will wake up as a zombie
            crowd.start(name)
            report.zombies += 1


def _signal(process: BaseProcess, number: int) -> None:
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, number)


def _settled(place: Place) -> bool:
    with open_queue(place.queue_url) as queue:
        depth = queue.depth()
    return depth.ready + depth.in_flight == 0 and _open_shards(place) == 0


def _open_shards(place: Place) -> int:
    with open_store(place.store_url) as store:
        query = sa.select(sa.func.count()).select_from(shards).where(shards.c.finished_at.is_(None))
        return int(store.database.read(lambda c: c.execute(query).scalar_one()))


def _compare(place: Place, expected: list[str], report: Report) -> None:
    with open_store(place.store_url) as store:
        found: Counter[str] = published(store)
    report.objects = len(expected)
    report.lost = sorted(set(expected) - found.keys())
    report.doubled = sorted(uri for uri, times in found.items() if times > 1)
    report.left_open = _open_shards(place)
    with open_queue(place.queue_url) as queue:
        depth = queue.depth()
    report.left_in_queue = depth.ready + depth.in_flight


def _read_logs(place: Place, names: list[str], report: Report) -> None:
    events: Counter[str] = Counter()
    for name in names:
        for line in place.log(name).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            events[entry["event"]] += 1
            if entry["event"] == "acquired":
                report.takeovers += int(entry["detail"])
            if entry["event"] == "bug":
                report.bugs.append(entry["detail"])
    report.starts = events["started"]
    report.fenced = events["PipelineTakenOver"] + events["ShardsLost"]


@contextmanager
def folder_of(given: str | None) -> Iterator[Path]:
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
    else:
        with tempfile.TemporaryDirectory(prefix="cuesqueue-chaos-") as name:
            yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pipelines", type=int, default=4)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    with folder_of(arguments.folder) as folder, postgres() as server:
        report = chaos(arguments.seed, arguments.seconds, folder, server, arguments.pipelines)
    print(json.dumps(asdict(report), indent=2))
    raise SystemExit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
