"""docs/how-to/operate.md: its server answers as the page says, and its configuration of Prometheus is one."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from queue_source.commands.setup import MONITORING
from queue_source.serve.app import FOUND, LONGEST_TEXT
from queue_source.serve.guard import SESSION, SHORTEST_TOKEN
from shard_store.store import open_store
from support.browser import serving
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline

PAGE = ROOT / "docs" / "how-to" / "operate.md"
SERVER = PAGE.read_text("utf-8").partition("## A page in the browser")[2].partition("## The numbers of a query")[0]
TEXT = " ".join(SERVER.split())


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server that was started as the page says, on another port."""
    [start] = [block.text for block in blocks(PAGE) if block.language == "bash" and "cuesqueue serve" in block.text]
    command = start.strip()
    assert command.startswith("cuesqueue serve --store sqlite:///")
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        Pipeline.start(store, "orders", "orders").deliver("s3://landing/1.json")
    with serving(command.split()[-1].replace("///", f"///{tmp_path}/")) as found:
        yield found


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_server_of_the_page_answers_on_its_own_machine(address: str) -> None:
    code, text = get(f"{address}/")
    assert (code, "orders" in text) == (200, True)
    assert 'cuesqueue_published_objects_total{pipeline="orders",source="orders"} 1.0' in get(f"{address}/metrics")[1]
    assert json.loads(get(f"{address}/healthz?pipeline=orders")[1]) == {"healthy": True, "pipelines": {"orders": []}}
    assert get(f"{address}/healthz?pipeline=other")[0] == 503
    assert get(f"{address}/", Host="evil.example")[0] == 421
    assert "published by attempt" in get(f"{address}/search?q=s3://landing/1.json")[1]


def test_the_configuration_of_prometheus_is_yaml_and_names_the_rules() -> None:
    first, second = [block.text for block in blocks(PAGE) if block.language == "yaml" and "Probe" not in block.text]
    found = yaml.safe_load(first)
    assert found["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:8642"]}]
    assert (MONITORING / found["rule_files"][0]).exists()
    assert "authorization" in yaml.safe_load(second)


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"at least {SHORTEST_TOKEN} characters" in TEXT
    assert f"more than {LONGEST_TEXT:,} characters" in TEXT
    assert f"good for {SESSION // 3600} hours" in TEXT
    assert FOUND > 1


def test_every_option_of_the_command_that_the_page_names_exists() -> None:
    from queue_source.commands.main import whole_program

    command = whole_program().commands["serve"]
    known = {name for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"`?(--[a-z-]+)", SERVER)) - known == set()
