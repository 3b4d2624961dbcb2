"""Six ways in which a pipeline stops to work: the probe of the pages, the health over HTTP and the alerts see each.

The probe is the line of the walkthrough, with the names of these tests. Of the alert rules those are evaluated that
compare one number; how long they wait (`for`) is in the test of the rules.
"""

from __future__ import annotations

import errno
import operator
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from queue_source.commands.main import app
from queue_source.commands.setup import MONITORING
from queue_source.errors import ObjectStoreError, QueueConfigurationError, QueueError, QueueNotFound
from queue_source.queues.sql import SqlQueue
from queue_source.serve.app import create_app
from queue_source.serve.guard import Access
from queue_source.serve.reads import StoreReads
from shard_store.errors import StoreUnavailable
from shard_store.model import Semantics
from shard_store.operators.limits import StatusLimits
from shard_store.store import open_store
from support.coordinator_world import MovingWorld, uris
from support.driver_loop import DriverLoop, until
from support.snippets import ROOT
from support.time_faults import NoDisk, fill, small_disk

MINUTE = 60.0
RULES = yaml.safe_load((MONITORING / "prometheus-alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
_SIMPLE = re.compile(r'(?:min without \(pipeline\) \()?(\w+)(?:\{(\w+)="(\w+)"\})?\)? (==|>) (\d+)(?: < (\d+))?')
_COMPARE: dict[str, Callable[[float, float], bool]] = {"==": operator.eq, ">": operator.gt}
_PAGE = (ROOT / "docs" / "how-to" / "walkthrough.md").read_text("utf-8")
PROBE = re.findall(r"\*  +cuesqueue (status .*?) >", _PAGE)[0]
LIMITS = StatusLimits(max_lag=timedelta(minutes=30), max_errors=100)
WELL: tuple[int, int, set[str]] = (0, 200, set())


@dataclass
class Watched:
    """A source, and those who watch it, at a time by the store's clock that only the test lets go on.

    `running`: the reader that runs now; `said`: what the probe has printed last.
    """

    world: MovingWorld
    reads: StoreReads
    ahead: float = 0.0
    running: DriverLoop | None = None
    said: str = field(default="", init=False)

    def wait(self, minutes: float) -> None:
        self.ahead += minutes * MINUTE
        if self.running is not None:
            self.running.skew = self.ahead

    @contextmanager
    def reader(self, **options: Any) -> Iterator[DriverLoop]:
        with self.world.loop(skewed=True, skew=self.ahead, source="orders", **options) as self.running:
            yield self.running
        self.running = None

    def load(self) -> None:
        """A run that ends well."""
        with self.reader() as loop:
            loop.drain()

    def sees(self) -> tuple[int, int, set[str]]:
        """The exit code of the probe, the status of the health, and the names of the alerts."""
        self.reads._shared.clear()  # as if a second had gone by
        client = TestClient(create_app(self.reads, Access(), LIMITS), base_url="http://localhost:8642")
        probe = self.probe()
        self.said = " ".join(probe.output.split())
        return probe.exit_code, client.get("/healthz").status_code, _firing(client.get("/metrics").text)

    def probe(self) -> Result:
        words = PROBE.replace("sqs://cuesqueue-landing-orders", self.world.queue_url)
        return CliRunner().invoke(app, [*shlex.split(words), "--store", self.world.store_url])


def _firing(text: str) -> set[str]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = set()
    for rule in RULES:
        if (simple := _SIMPLE.fullmatch(rule["expr"])) is None:
            continue
        metric, label, value, compared, limit, below = simple.groups()
        if any(
            sample.name == metric
            and (label is None or sample.labels[label] == value)
            and _COMPARE[compared](sample.value, float(limit))
            and (below is None or sample.value < float(below))
            for sample in samples
        ):
            names.add(rule["alert"])
    return names


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path


@pytest.fixture
def watched(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A source of which all is loaded, and everybody is content."""
    world = MovingWorld(tmp_path, at=f"sqlite:///{disk}/store.db")
    world.publish(*uris(3))
    open_store(world.store_url).close()

    def clock() -> float:
        return time.time() + made.ahead

    monkeypatch.setattr("queue_source.commands.status.open_store", partial(open_store, clock=clock))
    with open_store(world.store_url, clock=clock) as store:
        made = Watched(world, StoreReads(store))
        made.load()
        assert made.sees() == WELL
        yield made
        made.reads.close()


def refusing(error: type[QueueError]) -> Callable[..., Any]:
    def refuse(queue: SqlQueue, *_: object, **__: object) -> Any:
        raise error(queue.name, "access is denied")

    return refuse


def test_a_load_that_is_started_no_more_is_noticed_when_it_is_overdue(watched: Watched) -> None:
    watched.wait(29)
    assert watched.sees() == WELL
    watched.world.publish(*uris(2, first=3))
    watched.wait(2)
    assert watched.sees() == (3, 503, {"CuesqueueSilent"})
    assert "unhealthy nothing runs its source: the last heartbeat was 0:31:0" in watched.said
    assert "messages 2 ready, 0 in flight, 0 delayed" in watched.said
    watched.load()
    assert watched.sees() == WELL


def test_a_load_without_java_is_noticed_though_it_is_started_again_and_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_java(master: str) -> None:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")

    monkeypatch.setattr("queue_source.spark.load.quiet_session", no_java)
    into = ["--prefix", "s3://bucket/", "--format", "json", "--path", f"{tmp_path}/out", "--option", "source=orders"]
    for minutes, seen in ((10, WELL), (10, WELL), (11, (3, 503, {"CuesqueueSilent"}))):
        watched.wait(minutes)
        done = CliRunner().invoke(app, ["load", watched.world.queue_url, *into, "--store", watched.world.store_url])
        assert done.exit_code != 0
        assert watched.sees() == seen


@pytest.mark.parametrize("error", [QueueConfigurationError, QueueNotFound])
def test_a_reader_that_its_queue_refuses_or_whose_queue_was_deleted_is_noticed_at_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, error: type[QueueError]
) -> None:
    with watched.reader() as loop:
        loop.drain()
    with watched.reader() as loop:
        assert watched.sees() == WELL
        monkeypatch.setattr(SqlQueue, "_receive", refusing(error))
        until(lambda: loop.coordinator.threads.failure is not None, lambda: time.sleep(0.01))
        with pytest.raises(error):
            loop.batch()
    assert watched.sees() == (3, 503, {"CuesqueuePipelineFailed"})
    assert "its reader has failed: queue " in watched.said
    assert ": access is denied" in watched.said


def test_a_queue_that_refuses_the_probe_too_or_was_deleted_is_noticed_by_the_probe(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SqlQueue, "depth", refusing(QueueConfigurationError))
        assert watched.sees()[0] == 3
        assert "unhealthy access is denied" in watched.said
    (watched.world.folder / "queue.db").unlink()
    assert watched.sees()[0] == 3
    assert "unhealthy it does not exist; create it, or correct its URL" in watched.said
    assert not (watched.world.folder / "queue.db").exists()


def failing_runs(watched: Watched, attempt: Callable[[DriverLoop], object]) -> None:
    """A job that is started each ten minutes, and fails in its batch: it beats its heart, and the objects get old."""
    watched.world.publish(*uris(2, first=3))
    for minutes in (0, 10, 10, 11):
        assert watched.sees()[0] == 0, watched.said
        watched.wait(minutes)
        with suppress(ObjectStoreError, OSError), watched.reader() as loop:
            attempt(loop)
            pytest.fail("it should not have worked")
    code, health, alerts = watched.sees()
    assert (code, health) == (3, 503)
    assert "its oldest message has waited for 0:31:0" in watched.said
    assert alerts >= {"CuesqueueBehind"}


def test_objects_that_the_bucket_refuses_are_noticed_when_they_are_overdue(watched: Watched) -> None:
    def attempt(loop: DriverLoop) -> None:
        loop.work = refuse
        loop.drain()

    def refuse() -> None:
        raise ObjectStoreError("s3://bucket/3: access is denied")

    failing_runs(watched, attempt)


def test_a_job_that_is_ended_before_its_first_batch_is_noticed_when_objects_are_overdue(watched: Watched) -> None:
    """Its objects are in no batch: it gives them back, and no pipeline has them."""

    def attempt(loop: DriverLoop) -> None:
        until(lambda: loop.in_flight.counts().ready == 2, lambda: time.sleep(0.01))
        raise OSError("ended by a timeout")

    failing_runs(watched, attempt)
    assert "0 objects not published, and 2 of its source that no pipeline has, the oldest for 31 min" in watched.said


def test_a_disk_of_the_checkpoint_that_is_full_is_noticed_when_objects_are_overdue(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DriverLoop, "_write", write)
    failing_runs(watched, DriverLoop.drain)


@pytest.mark.parametrize("semantics", list(Semantics))
def test_a_batch_that_never_ends_is_noticed_when_it_is_overdue(watched: Watched, semantics: Semantics) -> None:
    watched.world.publish(*uris(2, first=3))
    seen = []

    def hang() -> None:
        for minutes in (14, 15, 2):
            watched.wait(minutes)
            time.sleep(1.5)  # heartbeats are sent by real time
            seen.append(watched.sees())

    with watched.reader(deliverySemantics=semantics.value) as loop:
        loop.work = hang
        loop.drain()
    alerts = {"CuesqueueBatchHangs", *(["CuesqueueBehind"] if semantics is Semantics.EXACTLY_ONCE else [])}
    assert seen == [WELL, (0, 200, alerts), (3, 503, alerts)]
    assert "its micro-batch has been under way for 0:31:0" in watched.said
    assert "orders: running" in watched.said


def test_a_receiver_that_is_silent_and_what_no_reader_takes_are_noticed_beside_a_pipeline_that_is_well(
    watched: Watched,
) -> None:
    world, routes = watched.world, watched.world.folder / "routes.json"
    routes.write_text('[{"prefix": "s3://bucket/", "source": "returns"}]')
    world.publish(*uris(2, first=3))
    named = ["--routes", str(routes), "--name", "landing", "--until-empty", "--store", world.store_url]
    assert CliRunner().invoke(app, ["route", world.queue_url, *named]).exit_code == 0
    unread, silent = "CuesqueueRecordedUnread", "CuesqueueReceiverSilent"

    def seen(minutes: float) -> tuple[tuple[int, int, set[str]], str]:
        watched.wait(minutes)
        watched.load()
        of_source, health, alerts = watched.sees()
        assert of_source == 0
        of_all = CliRunner().invoke(app, ["status", "--max-lag", "30m", "--store", world.store_url])
        return (of_all.exit_code, health, alerts), " ".join(of_all.output.split())

    assert seen(29)[0] == (0, 200, {unread, silent})
    result, said = seen(2)
    assert result == (3, 503, {unread, silent})
    assert "receiver landing: it asked its queue 0:31:0" in said
    result, said = seen(24 * 60)
    assert result == (3, 503, {unread})
    assert "receiver landing: it asked" not in said, "it was ended for good"
    assert "source returns: what is recorded for it has waited for a reader for 1 day, 0:31:0" in said


class TestFullDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        with suppress(NoDisk), small_disk(tmp_path) as made:
            yield made
            return
        pytest.skip("a small disk cannot be mounted here: that needs root")

    def test_a_disk_of_the_store_that_is_full_is_noticed(
        self, watched: Watched, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("support.driver_loop.open_store", partial(open_store, patience=1.0))
        with watched.reader() as loop:
            assert watched.sees() == WELL
            ballast = fill(disk)
            watched.wait(1)
            until(lambda: loop.coordinator.threads.failure is not None, lambda: time.sleep(0.1))
            with pytest.raises(StoreUnavailable):
                loop.coordinator.check()
        assert watched.sees() == (3, 503, {"CuesqueuePipelineDead"})
        ballast.unlink()
        assert watched.sees()[0] == 3
