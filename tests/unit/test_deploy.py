"""The files of deploy/: all that they name is there, every image has a version, and tokens and names fit each other.

Nothing is run in containers; `integration/test_compose.py` runs the programs.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from queue_source.commands.main import whole_program
from queue_source.serve.guard import SHORTEST_TOKEN
from support.snippets import ROOT, blocks

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
SCRAPES = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))


def mounts(service: str) -> list[tuple[str, str]]:
    return [tuple(volume.split(":")[:2]) for volume in SERVICES[service].get("volumes", [])]


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_service_mounts_is_there(service: str) -> None:
    for source, _ in mounts(service):
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_built_here_or_has_an_image_with_a_version(service: str) -> None:
    settings = SERVICES[service]
    if "build" in settings:
        assert (DEPLOY / settings["build"]["context"] / settings["build"]["dockerfile"]).is_file()
    else:
        assert re.search(r":v?\d+(\.\d+)+$", settings["image"]), settings["image"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_reached_from_this_machine_alone_and_waits_for_one_that_exists(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))
    assert set(SERVICES[service].get("depends_on", {})) <= SERVICES.keys()


@pytest.mark.parametrize("service", ["prepare", "reader", "serve"])
def test_the_command_of_a_service_is_one(service: str) -> None:
    program, *arguments = SERVICES[service]["command"]
    if program == "cuesqueue":
        options = {name for param in whole_program().commands[arguments[0]].params for name in param.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options
    else:
        (folder,) = [source for source, target in mounts(service) if arguments[0].startswith(f"{target}/")]
        assert (DEPLOY / folder / Path(arguments[0]).name).is_file()


def test_prometheus_gets_the_metrics_with_the_token_under_a_name_that_is_served() -> None:
    (scrape,) = SCRAPES["scrape_configs"]
    token = SERVICES["serve"]["environment"]["CUESQUEUE_SERVE_TOKEN"]
    assert scrape["authorization"]["credentials"] == token
    assert len(token) >= SHORTEST_TOKEN
    assert f"`{token}`" in (ROOT / "docs" / "how-to" / "clusters.md").read_text("utf-8")
    (target,) = scrape["static_configs"][0]["targets"]
    name, port = target.split(":")
    command = SERVICES["serve"]["command"]
    assert name in SERVICES
    assert ("--allowed-host", name) in pairwise(command)
    assert f"127.0.0.1:{port}:{port}" in SERVICES["serve"]["ports"]
    rules = [Path(target).name for _, target in mounts("prometheus")]
    assert set(SCRAPES["rule_files"]) <= set(rules)


def test_the_store_has_the_password_that_is_in_its_url() -> None:
    store = SERVICES["store"]["environment"]
    url = "postgresql+psycopg://{POSTGRES_USER}:{POSTGRES_PASSWORD}@store/{POSTGRES_DB}".format(**store)
    assert {SERVICES[name]["environment"]["CUESQUEUE_STORE"] for name in ("reader", "serve")} == {url}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yml").read_text("utf-8"))["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    (dashboard,) = [source for source, target in mounts("grafana") if target == home]
    assert json.loads((DEPLOY / dashboard).read_text("utf-8"))["title"]


def test_the_image_copies_what_is_there_and_what_its_context_lets_in() -> None:
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = [name for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]]
    assert {"pyproject.toml", "src"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in let_in] == []


def test_the_image_has_the_extras_of_what_runs_in_it() -> None:
    extras = re.search(r'EXTRAS="([\w ]+)"', DOCKERFILE)
    assert extras
    assert {"aws", "postgres", "serve"} <= set(extras[1].split())


def test_the_image_has_the_spark_that_is_asked_for_and_else_one_that_is_tested() -> None:
    argument, base = re.findall(r"^(ARG SPARK=.+|FROM .+)$", DOCKERFILE, re.MULTILINE)
    assert base == "FROM apache/spark:${SPARK}"
    spark = re.match(r"ARG SPARK=(\d+\.\d+)\.\d+-scala2\.13-java17-python3-ubuntu$", argument)
    assert spark
    assert (ROOT / "locks" / f"spark-{spark[1]}.txt").is_file()
    assert not re.search(r"py4j-\d", DOCKERFILE), "another Spark has another Py4J"


def test_the_image_runs_as_a_user_of_whom_kubernetes_can_see_that_it_is_not_root() -> None:
    """By its number: `runAsNonRoot` refuses a name. 185 is `spark` in Spark's own images."""
    instructions = re.findall(r"^(USER|RUN|COPY|ENV) (\S+)", DOCKERFILE, re.MULTILINE)
    assert [user for name, user in instructions if name == "USER"] == ["root", "185"]
    assert instructions[-1] == ("USER", "185")


def test_a_build_argument_is_declared_where_it_is_used() -> None:
    """One that stands before FROM is unknown after it."""
    before, _, after = DOCKERFILE.partition("\nFROM ")
    declared = {part: set(re.findall(r"^ARG (\w+)", part, re.MULTILINE)) for part in (before, after)}
    assert declared[before] == {"SPARK"}
    assert set(re.findall(r"\$\{?([A-Z]\w*)", after.partition("\n")[2])) <= declared[after]


def test_the_page_runs_services_and_a_program_that_are_there() -> None:
    page = blocks(ROOT / "docs" / "how-to" / "clusters.md")
    (commands,) = [block.text for block in page if "docker compose" in block.text]
    first, *others = commands.splitlines()
    assert first == f"cd {DEPLOY.name}"
    assert all(line.startswith("docker compose ") for line in others)
    assert set(re.findall(r"exec (\w+)", commands)) <= SERVICES.keys()
    (program,) = re.findall(r"/opt/\S+", commands)
    assert program in SERVICES["prepare"]["command"]


def test_a_push_and_a_pull_request_run_what_contributing_says_and_no_more_rights_are_given() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 takes `on` for a truth value
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    hashed = re.findall(r"'([\w./*-]+)'", text.partition("hashFiles(")[2].partition(")")[0])
    assert hashed
    assert [name for name in hashed if not list(ROOT.glob(name))] == []
