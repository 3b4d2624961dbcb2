"""The package `cuesqueue`: everything public in one place, loaded by its first use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cuesqueue

SRC = Path(cuesqueue.__file__).resolve().parents[1]
HEAVY = ("pyspark", "pyarrow", "sqlalchemy", "alembic", "boto3", "pika", "typer", "pandas")


def in_a_new_process(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", cuesqueue.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(cuesqueue, name) is not None
    assert name in dir(cuesqueue)


def test_the_list_holds_each_name_that_has_a_place_and_no_other() -> None:
    assert sorted(cuesqueue.__all__) == sorted([*cuesqueue._MODULE_OF, "__version__"])


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_que'"):
        _ = cuesqueue.open_que  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'reconcile'; the command `cuesqueue reconcile` compares"):
        _ = cuesqueue.reconcile  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [None, "open_queue", "Queue", "Payload", "Received", "OptionError", "ShardsLost"])
def test_what_needs_no_library_loads_none(name: str | None) -> None:
    use = f"cuesqueue.{name}" if name else "cuesqueue"
    assert in_a_new_process(f"import sys, cuesqueue; {use}; print(*(set({HEAVY}) & set(sys.modules)))") == ""


def test_the_face_is_the_same_as_what_it_shows() -> None:
    from queue_source.queues import open_queue
    from shard_store import open_store

    assert cuesqueue.open_queue is open_queue
    assert cuesqueue.open_store is open_store


def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    queue: cuesqueue.Queue = cuesqueue.open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue=files")
    error: type[cuesqueue.CuesqueueError] = cuesqueue.OptionError
    policy: cuesqueue.RetentionPolicy | None = None
    wrong: int = cuesqueue.open_store  # type: ignore[assignment]
    assert isinstance(queue.name, str)
    assert (error, policy, callable(wrong)) == (cuesqueue.OptionError, None, True)
    queue.close()


def test_at_most_four_modules_are_at_the_root() -> None:
    modules = {path.stem for path in (SRC / "queue_source").glob("*.py")} - {"__init__"}
    assert len(modules) <= 4, modules
