"""`cuesqueue prove` over whole jobs with Spark: each planted mistake is found, and the examples of the pages pass.

The jobs are in `tests/prove/jobs`; each has one mistake, in the place where somebody would make it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cuesqueue_prove.proof import Proof, prover
from cuesqueue_prove.results import Rule
from support.engine import class_archive
from support.engine.harness import environment
from support.snippets import ROOT, blocks

JOBS = ROOT / "tests" / "prove" / "jobs"
OWN_DATABASE = "sqlite:///elsewhere/sqlite/var/lib/warehouse.db"


class Mistake(NamedTuple):
    """A planted mistake, and what has to be found: the step, whether rows are doubled or lost, parts of the reason."""

    job: str
    step: str
    differs: str
    reason: tuple[str, ...]
    rule: Rule = Rule()


MISTAKES = (
    Mistake(
        "append_without_delivery",
        "commit-log",
        "doubled",
        ("of the function 'add' 2 times", "df.write.parquet at append_without_delivery.py:7) is not in `delivery`"),
        Rule.of(f"{JOBS}/results.py:parquet"),
    ),
    Mistake(
        "effect_outside",
        "before-publish",
        "doubled",
        ("it uses `delivery`, but a transaction of its own at effect_outside.py:18 is outside of its transaction",),
        Rule.of("SELECT * FROM orders", OWN_DATABASE),
    ),
    Mistake(
        "effect_after_delivery",
        "published",
        "lost",
        ("comes after the block of `delivery`",),
        Rule.of(f"{JOBS}/results.py:parquet"),
    ),
    Mistake(
        "sink_not_idempotent",
        "commit-log",
        "doubled",
        ("the sink 'adding' took batch", "it is not idempotent by batch id"),
        Rule.of(f"{JOBS}/results.py:adding"),
    ),
    Mistake(
        "shared_checkpoint",
        "",
        "",
        ("'checkpoint' is shared by 2 queries, started at shared_checkpoint.py:12",),
    ),
    Mistake(
        "acknowledged_elsewhere",
        "",
        "",
        ("are gone from the queue, and no reader has opened them", "at acknowledged_elsewhere.py:16"),
    ),
)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark's processes need to find this project, whoever starts pytest."""
    for name, text in environment().items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv(class_archive.VARIABLE, raising=False)
    class_archive.use()


def proved(tmp_path: Path, job: Path, sample: Path, rule: Rule, **options: object) -> Proof:
    return prover(job, sample, folder=tmp_path / "prove", rule=rule, **options).run(keep=True)  # type: ignore[arg-type]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.job)
def test_each_planted_mistake_is_found_with_its_step_its_rows_and_its_reason(tmp_path: Path, mistake: Mistake) -> None:
    """The first among other steps, of which each is tried alone; the others at their own, as it takes a third."""
    chosen = (
        {"fast": True, "random_kills": 0} if mistake is MISTAKES[0] else {"steps": list(filter(None, [mistake.step]))}
    )
    proof = proved(tmp_path, JOBS / f"{mistake.job}.py", JOBS / "orders.json", mistake.rule, objects=4, **chosen)
    assert not proof
    assert proof.step == mistake.step
    assert (proof.doubled_rows > 0) is (mistake.differs == "doubled")
    assert (proof.lost_rows > 0) is (mistake.differs == "lost")
    assert all(part in " ".join(proof.reasons) for part in mistake.reason), proof.reasons
    if "orders" in str(proof.doubled) and mistake.job == "append_without_delivery":
        assert {row.object for row in proof.doubled} <= {f"orders/{number:04d}.json" for number in range(6)}


@pytest.mark.timeout(1800)
def test_the_example_of_the_readme_passes_at_every_step(tmp_path: Path) -> None:
    (job,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    (tmp_path / "job.py").write_text(job, "utf-8")
    (tmp_path / "people.json").write_text('{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Grace"}\n', "utf-8")
    proof = proved(tmp_path, tmp_path / "job.py", tmp_path / "people.json", Rule(), objects=10, random_kills=1, seed=1)
    assert proof, str(proof)
    assert (proof.rows, proof.unreached) == (20, ())
    assert {"snapshot-written", "split-written", "before-publish", "published", "commit-log", "acknowledged"} <= {
        *proof.steps
    }


@pytest.mark.timeout(1800)
def test_the_example_of_foreach_batch_passes_with_its_totals(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "foreach-batch.md"
    (job,) = [block.text for block in blocks(page) if block.file == "totals.py"]
    (tmp_path / "totals.py").write_text(job, "utf-8")
    sample = tmp_path / "orders.json"
    sample.write_text("".join(json.dumps({"country": country}) + "\n" for country in ("DE", "FR", "DE")), "utf-8")
    rule = Rule.of("SELECT country, orders FROM totals")
    proof = proved(tmp_path, tmp_path / "totals.py", sample, rule, objects=6, random_kills=1, seed=2)
    assert proof, str(proof)
    assert {"before-publish", "published", "commit-log"} <= {*proof.steps}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("into", [["delta=s3://lake/orders"], ["table=db.orders", "warehouse=s3://lake/warehouse"]])
def test_what_tables_hold_is_read_without_being_named(tmp_path: Path, into: list[str]) -> None:
    job, sample = JOBS / "into_table.py", JOBS / "orders.json"
    proof = proved(tmp_path, job, sample, Rule(), arguments=into, objects=4, steps=["table-committed"])
    assert proof, str(proof)
    assert (proof.rows, proof.steps) == (8, ("table-committed",))


@pytest.mark.timeout(600)
def test_the_command_ends_with_1_and_the_fixture_with_an_assertion(tmp_path: Path) -> None:
    job, sample, result = JOBS / "append_without_delivery.py", JOBS / "orders.json", f"{JOBS}/results.py:parquet"
    options = ["--sample", str(sample), "--result", result, "--objects", "2", "--step", "commit-log", "--json"]
    command = [sys.executable, "-m", "queue_source.commands.main", "prove", str(job), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["step"] == "commit-log"

    (tmp_path / "test_it.py").write_text(
        "from cuesqueue.testing import prove\n\n\n"
        "def test_it(prove):\n"
        f"    prove({str(job)!r}, {str(sample)!r}, result={result!r}, objects=2, steps=['commit-log'])\n",
        "utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError: not exactly once: killed at commit-log, 4 rows too many" in done.stdout
