"""docs/how-to/monitoring.md: its configurations choose metrics that are exported, and its script speaks DogStatsD."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from docs.test_pages import Reader
from shard_store.store import open_store
from support.browser import serving
from support.snippets import ROOT, Block, blocks
from support.store_backends import Pipeline

PAGE = ROOT / "docs" / "how-to" / "monitoring.md"
BLOCKS = blocks(PAGE)
_NAME, _TAG = r"[A-Za-z][A-Za-z0-9_.]{0,199}", r"[A-Za-z][A-Za-z0-9_./-]*:[A-Za-z0-9_./-]+"
DATAGRAM = re.compile(rf"({_NAME}):(-?\d+(?:\.\d+)?)\|(g|c|h|d|ms)\|#({_TAG}(?:,{_TAG})*)")
"""A datagram of a metric, as Datadog describes it: its name, value, type and tags."""


def block(language: str, word: str) -> Block:
    (found,) = [one for one in BLOCKS if one.language == language and word in one.text]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a store in which one pipeline, with a name that is no tag, has published an object."""
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        Pipeline.start(store, "orders|eu, #1", "orders").deliver("s3://landing/1.json")
    return tmp_path


@pytest.fixture
def exported(folder: Path) -> dict[str, set[str]]:
    """The labels of each metric that `cuesqueue serve` exports, by the metric's name without `_total`."""
    with serving(f"sqlite:///{folder}/cuesqueue.db") as url:
        accepts = {"Accept": "application/openmetrics-text"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=accepts)) as answer:
            text = answer.read().decode()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {family.name: {label for sample in family.samples for label in sample.labels} for family in families}


def test_cloudwatchs_agent_chooses_metrics_that_are_exported(exported: dict[str, set[str]]) -> None:
    scrape = yaml.safe_load(block("yaml", "job_name").text)["scrape_configs"][0]
    agent = json.loads(block("json", "emf_processor").text)["logs"]["metrics_collected"]["prometheus"]
    (declaration,) = agent["emf_processor"]["metric_declaration"]
    assert (declaration["source_labels"], declaration["label_matcher"]) == (["job"], f"^{scrape['job_name']}$")
    for selector in declaration["metric_selectors"]:
        (chosen,) = [name for name in exported if re.search(selector, name) or re.search(selector, f"{name}_total")]
        assert {*declaration["dimensions"][0]} <= exported[chosen], chosen
        assert chosen in agent["emf_processor"]["metric_unit"] or f"{chosen}_total" in selector, chosen


def test_datadogs_agent_chooses_metrics_that_are_exported(exported: dict[str, set[str]]) -> None:
    (instance,) = yaml.safe_load(block("yaml", "openmetrics_endpoint").text)["instances"]
    for pattern in instance["metrics"]:
        assert [name for name in exported if re.fullmatch(pattern, name)], pattern


def test_the_script_sends_gauges_that_the_grammar_of_dogstatsd_accepts(folder: Path) -> None:
    script = block("python", "socket")
    assert script.file == "statsd.py"
    assert len(script.text.splitlines()) <= 30
    (folder / script.file).write_text(script.text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.0)
        Reader(folder).run(block("bash", "statsd.py").text.replace("8125", str(server.getsockname()[1])))
        sent: dict[str, Any] = {}
        while (data := received(server)) is not None:
            parsed = DATAGRAM.fullmatch(data)
            assert parsed, data
            assert (parsed[3], parsed[4]) == ("g", "pipeline:orders_eu_1,source:orders")
            sent[parsed[1]] = float(parsed[2])
    assert sent.keys() == {"cuesqueue.healthy", "cuesqueue.silence", "cuesqueue.files_outstanding"}  # all that is known
    assert (sent["cuesqueue.healthy"], sent["cuesqueue.files_outstanding"]) == (1.0, 0.0)


def received(server: socket.socket) -> str | None:
    """The next datagram of those that have arrived."""
    try:
        return server.recv(1432).decode()
    except BlockingIOError:
        return None
