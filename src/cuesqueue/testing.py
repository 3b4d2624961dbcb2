"""For tests of users: `from cuesqueue.testing import prove` in a `conftest.py` or a test file.

def test_orders_are_exactly_once(prove):
    prove("job.py", sample="orders.json")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuesqueue_prove.proof import Proof, prover
from cuesqueue_prove.results import Rule

__all__ = ["Proof", "prove"]


@pytest.fixture
def prove(tmp_path: Path) -> Callable[..., Proof]:
    """Return a function that proves a job as `cuesqueue prove` does.

    Its arguments are the job's script, `sample`, `result` and the other options of the command, such as `fast=True`;
    `arguments` are those of the script. It returns the `Proof`, and raises AssertionError with the step, the rows and
    the reasons where rows are not exactly once. The folders of the runs are in `tmp_path`.
    """
    count = 0

    def run(job: str | Path, sample: str | Path | list[str | Path], *, result: str = "", **options: Any) -> Proof:
        nonlocal count
        count += 1
        rule = Rule.of(result, options.pop("result_url", ""), options.pop("ignore", ()))
        proof = prover(job, sample, folder=tmp_path / f"prove-{count}", rule=rule, **options).run(keep=True)
        assert proof, str(proof)
        return proof

    return run
