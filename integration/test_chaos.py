"""Random kills, pauses and database restarts, three seeds: nothing is lost, nothing is published twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from integration.chaos.run import chaos
from servers.postgres import postgres

SECONDS = 60.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_four_pipelines_that_are_killed_and_paused_at_random_publish_every_object_once(
    seed: int, tmp_path: Path
) -> None:
    with postgres() as server:
        report = chaos(seed, SECONDS, tmp_path, server)
    print(json.dumps(asdict(report), indent=2))
    assert report.kills + report.pauses >= 50, "the run was too quiet to prove anything"
    assert report.takeovers > 0, "no shard ever passed to another pipeline"
    assert report.clean, report
