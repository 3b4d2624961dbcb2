"""The operator for Airflow, over a stub of what it imports: which ends of `cuesqueue load` are tried again."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.snippets import ROOT


class AirflowFailException(Exception):
    """Fails a task without another try."""


class BaseOperator:
    def __init__(self, task_id: str, retries: int = 0) -> None:
        self.log = logging.getLogger("airflow.task")


Load = Callable[..., Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Make a task whose program is a shell script."""
    airflow, sdk, exceptions = (ModuleType(f"airflow{inner}") for inner in ("", ".sdk", ".sdk.exceptions"))
    vars(sdk)["BaseOperator"], vars(exceptions)["AirflowFailException"] = BaseOperator, AirflowFailException
    for module in (airflow, sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "airflow_operator", raising=False)
    operator = importlib.import_module("airflow_operator").CuesqueueLoad
    monkeypatch.delitem(sys.modules, "airflow_operator")

    def make(script: str, *arguments: str, **keywords: Any) -> Any:
        program = tmp_path / "cuesqueue"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return operator(task_id="load", program=str(program), arguments=arguments, **keywords)

    return make


def test_a_load_that_ends_well_is_a_success_and_its_lines_are_in_the_log_of_the_task(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load('echo "$@" $CUESQUEUE_STORE; echo 3 loaded >&2', "sqs://orders", env={"CUESQUEUE_STORE": "here"}).execute({})
    assert caplog.messages == ["load sqs://orders here", "3 loaded"]


@pytest.mark.parametrize("code", [2, 3])
def test_what_another_try_cannot_mend_fails_at_once(load: Load, code: int) -> None:
    with pytest.raises(AirflowFailException, match=f"cuesqueue load ended with {code}: too many errors"):
        load(f"echo too many errors; exit {code}").execute({})


@pytest.mark.parametrize("end", ["exit 1", "exit 143", "kill -KILL $$"])
def test_a_failure_and_a_stop_are_tried_again(load: Load, end: str) -> None:
    with pytest.raises(RuntimeError, match=r"ended with -?[0-9]+; the next try goes on where it stopped"):
        load(end).execute({})


def test_wrong_options_of_the_command_itself_are_not_tried_again(load: Load) -> None:
    with pytest.raises(AirflowFailException, match="ended with 2"):
        load(f'exec {sys.executable} -m cuesqueue "$@"', "sqs://orders", "--no-such-option").execute({})


def test_a_task_that_is_killed_stops_its_load(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = load("trap 'echo stopped; exit 143' TERM; echo begun; while true; do sleep 0.05; done")
    begun = threading.Event()
    caplog.handler.addFilter(lambda record: begun.set() or True)  # type: ignore[func-returns-value]
    killer = threading.Thread(target=lambda: begun.wait(30) and task.on_kill())
    killer.start()
    with pytest.raises(RuntimeError, match="ended with 143"):
        task.execute({})
    killer.join()
    assert caplog.messages == ["begun", "stopped"]


def test_the_page_of_schedules_names_the_codes_that_are_not_tried_again(load: Load) -> None:
    page = (ROOT / "docs" / "how-to" / "schedule.md").read_text("utf-8")
    operator = type(load("true"))
    assert set(operator.FINAL) == {2, 3}
    assert "2: wrong options" in page
    assert "3: more errors than `--max-errors`" in " ".join(page.split())
