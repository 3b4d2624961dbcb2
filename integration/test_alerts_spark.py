"""A real Prometheus, with the alert rules of the docs, watches a real query die and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.conftest import DriverFactory, new_driver, world
from support.browser import serving
from support.engine.queries import described
from support.engine.world import World, eventually
from support.servers.debian import NotInstalled
from support.servers.prometheus import Prometheus, impatient, prometheus, unpacked

__all__ = ["new_driver", "world"]  # the fixtures

pytestmark = pytest.mark.engine

MONITORING = Path(__file__).resolve().parents[1] / "src" / "queue_source" / "serve" / "monitoring"
RULES = (MONITORING / "prometheus-alerts.yml").read_text("utf-8")
STREAM = {"processingTime": "0 seconds"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return unpacked(tmp_path_factory.mktemp("prometheus"))
    except NotInstalled as error:
        pytest.skip(str(error))


def dead(server: Prometheus) -> list[dict[str, Any]]:
    return [alert for alert in server.alerts() if alert["labels"]["alertname"] == "CuesqueuePipelineDead"]


def test_an_alert_fires_when_a_pipeline_is_killed_and_ends_when_it_runs_again(
    world: World, new_driver: DriverFactory, programs: Path, tmp_path: Path
) -> None:
    """The rules are those of the docs but for their waiting times (`for`), which are two seconds here.

    Fired by SIGKILL to all of the query's processes; what is killed says nothing, so the alert comes from the store.
    """
    rows = world.feed(0, 3)
    query = described(world, trigger=STREAM)
    driver = new_driver([query])
    driver.wait_batch()
    with (
        serving(world.store_url) as address,
        prometheus(
            programs / "prometheus", tmp_path / "server", address.removeprefix("http://"), impatient(RULES)
        ) as server,
    ):
        eventually("a Prometheus that is ready", server.answers)
        eventually("a scrape of what runs", lambda: server.value('cuesqueue_pipeline_state{state="running"}') == 1)
        eventually("a time without an alert", lambda: server.alerts() == [])
        driver.kill()
        [alert] = eventually("the alert", lambda: dead(server))
        assert {name: alert["labels"][name] for name in ("pipeline", "source", "severity")} == {
            "pipeline": "files",
            "source": "files",
            "severity": "critical",
        }
        assert alert["annotations"]["summary"] == "Pipeline files has died"
        rows += world.feed(3, 2)
        again = new_driver([query])
        again.wait_batch()
        eventually("the end of the alert", lambda: dead(server) == [] and server.alerts("pending") == [])
        eventually(
            "a scrape of what runs again", lambda: server.value('cuesqueue_pipeline_state{state="running"}') == 1
        )
        eventually("all rows", lambda: world.published() == sorted(rows))


def test_the_rules_of_the_test_differ_from_those_of_the_docs_in_their_waiting_times_alone() -> None:
    ours, theirs = impatient(RULES).splitlines(), RULES.splitlines()
    changed = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert changed
    assert all(a == "        for: 2s" and b.startswith("        for: ") for a, b in changed)
