"""The smallest proof with a real Spark: one object, one kill, one mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuesqueue_prove.proof import prover
from cuesqueue_prove.results import Rule
from support.engine.harness import environment

JOBS = Path(__file__).parents[2] / "tests" / "prove" / "jobs"

pytestmark = pytest.mark.engine


def test_an_append_without_delivery_is_found_at_the_step_that_no_code_of_ours_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment().items():
        monkeypatch.setenv(name, text)
    proof = prover(
        JOBS / "append_without_delivery.py",
        JOBS / "orders.json",
        folder=tmp_path / "prove",
        rule=Rule.of(f"{JOBS}/results.py:parquet"),
        objects=1,
        steps=["commit-log"],
    ).run()
    assert (proof.step, proof.doubled_rows, proof.lost_rows) == ("commit-log", 2, 0)
    assert {row.object for row in proof.doubled} == {"orders/0000.json"}
    assert "append_without_delivery.py:7) is not in `delivery`" in proof.reasons[0]
    assert not (tmp_path / "prove").exists()
