"""The Grafana dashboard and the alert rules: every name and label in them is exported, and the rules fire when they
should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.commands.setup import MONITORING
from queue_source.serve.metrics import METRICS, OWN, ROUTED, Export
from queue_source.serve.reads import StoreReads
from shard_store.model import Runtime
from shard_store.store import open_store
from support.store_backends import Pipeline

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = MONITORING / "grafana-dashboard.json"
ALERTS = MONITORING / "prometheus-alerts.yml"
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
LABELS = {m.name: {*m.all_labels} for m in METRICS} | {name: {*labels} for name, (_, labels) in OWN.items()}
LABELS |= {m.name: {*m.labels} for m in ROUTED}
OF_PROMETHEUS = {"job", "instance"}  # which each series gets at its scrape

_NAME = re.compile(r"\bcuesqueue_[a-z0-9_]+")
_USED = re.compile(r"\b(cuesqueue_[a-z0-9_]+)\{([^}]*)\}")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool on the path; Debian's package prometheus has it"
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query")
    yield from (rule["expr"] for rule in rules())


def test_every_name_in_dashboard_and_rules_is_exported() -> None:
    text = DASHBOARD.read_text("utf-8") + ALERTS.read_text("utf-8")
    used = set(_NAME.findall(text))
    assert used
    assert used - LABELS.keys() == set()
    assert all(_NAME.search(expression) for expression in expressions())


def test_every_label_that_they_use_is_one_of_the_metric() -> None:
    for expression in expressions():
        for name, matchers in _USED.findall(expression):
            assert set(_MATCHED.findall(matchers)) <= LABELS[name], expression
        labels = {label.strip() for found in _GROUPED.findall(expression) for label in found.split(",")}
        known = OF_PROMETHEUS.union(*(LABELS[name] for name in _NAME.findall(expression)))
        assert labels <= known, expression


def test_no_rule_takes_what_several_stores_have_for_one() -> None:
    """Their pipelines and sources may have the same names: a source that runs in one hides none that is silent."""
    for rule in rules():
        for word, labels in re.findall(r"\b(by|on)\s*\(([^)]*)\)", rule["expr"]):
            assert {label.strip() for label in labels.split(",")} >= OF_PROMETHEUS, (rule["alert"], word)


def test_the_dashboard_shows_lag_throughput_errors_and_state_and_its_panels_do_not_overlap() -> None:
    text = "\n".join(expressions())
    for name in ("lag_p99_seconds", "published_rows_total", "errors_total", "pipeline_state", "scrape_success"):
        assert f"cuesqueue_{name}" in text
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23


def test_each_alert_says_what_is_wrong_and_its_runbook_is_there() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        for runbook in re.findall(r"runbook ([\w-]+)", rule["annotations"]["description"]):
            assert f"\n## {runbook.replace('-', ' ').capitalize()}\n" in TROUBLE


def test_each_alert_is_in_the_test_of_the_rules() -> None:
    text = (ROOT / "tests" / "data" / "monitoring" / "alerts-test.yml").read_text("utf-8")
    cases = [case for test in yaml.safe_load(text)["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


@needs_promtool
def test_the_rules_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "data" / "monitoring" / "alerts-test.yml").read_text("utf-8")
    (tmp_path / "test.yml").write_text(text.replace("RULES", str(ALERTS)), "utf-8")
    for command in (["check", "rules", str(ALERTS)], ["test", "rules", str(tmp_path / "test.yml")]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_nothing_wrong_with_what_is_exported(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        Pipeline.start(store, "p", "s").deliver("a")
        store.start("s", "q", runtime=Runtime("host", "4.2.1", "0.2.0"))
        reads = StoreReads(store)
        text, _ = Export(reads).text("")
        reads.close()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_files_are_had_from_the_installed_package(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "monitoring"
    done = CliRunner().invoke(app, ["setup", "monitoring", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)) == {DASHBOARD.name, ALERTS.name}
    for source in (DASHBOARD, ALERTS):
        assert (folder / source.name).read_text("utf-8") == source.read_text("utf-8")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["setup", "monitoring", str(tmp_path / "file" / "folder")])
    assert done.exit_code == 2
    assert "name one that you may write to" in done.output
