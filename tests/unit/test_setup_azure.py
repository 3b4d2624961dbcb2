"""`cuesqueue setup azure`, over a program `az` of the tests: what it asks for, what it leaves alone, what it prints."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.commands import setup
from queue_source.commands.main import app
from queue_source.commands.setup import default_name, parse_place
from queue_source.errors import OptionError
from queue_source.queues.azurequeue.address import Access, parse_address
from support.azure_command import RESOURCES, AzureCommand

PREFIX = "abfss://landing@lake.dfs.core.windows.net/orders/"
ID = RESOURCES


@pytest.fixture
def az(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AzureCommand:
    """Alone on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return AzureCommand(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["setup", "azure", *arguments])


def result(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_missing_is_made_once_and_the_reader_can_use_it(az: AzureCommand) -> None:
    found = result(PREFIX)
    actions = ["register-event-grid", "create-queue", "create-container", "create-event-subscription"]
    assert [change["action"] for change in found["changes"]] == actions
    assert found["options"] == {
        "queueUrl": "azurequeue://lake/cuesqueue-landing-orders",
        "allowedPrefixes": PREFIX,
    }
    assert len(az.changes()) == 4
    assert result(PREFIX)["changes"] == []
    assert az.changes() == []


def test_the_subscription_is_for_the_prefix_and_its_messages_never_expire(az: AzureCommand) -> None:
    result(PREFIX, "--suffix", ".json", "--tag", "team=data", "--tag", "cost=1", "--queue-account", "queues")
    *_, queue, container, subscription = az.changes()
    assert queue[-3:] == ["--metadata", "team=data", "cost=1"]
    assert container[-3:] == queue[-3:]
    options = dict(itertools.pairwise(subscription))
    assert "--storage-queue-msg-ttl=-1" in subscription
    assert options["--source-resource-id"] == f"{ID}lake"
    assert options["--endpoint"] == f"{ID}queues/queueServices/default/queues/cuesqueue-landing-orders"
    assert options["--included-event-types"] == "Microsoft.Storage.BlobCreated"
    assert options["--subject-begins-with"] == "/blobServices/default/containers/landing/blobs/orders/"
    assert options["--subject-ends-with"] == ".json"
    assert options["--deadletter-endpoint"] == f"{ID}lake/blobServices/default/containers/cuesqueue-dead-letters"
    assert subscription[-3:] == ["--labels", "team=data", "cost=1"]


def test_a_dry_run_changes_nothing_and_shows_what_would_be_run(az: AzureCommand) -> None:
    found = result(PREFIX, "--dry-run")
    assert az.changes() == []
    assert found["dry_run"] is True
    commands = [shlex.split(change["command"]) for change in found["changes"]]
    assert commands[1][:4] == ["az", "storage", "queue", "create"]
    result(PREFIX)
    assert [words[1:] for words in commands] == az.changes()


def test_what_is_there_already_stays_as_it_is(az: AzureCommand) -> None:
    az.made("provider", "storage queue cuesqueue-landing-orders")
    assert [change["action"] for change in result(PREFIX)["changes"]] == [
        "create-container",
        "create-event-subscription",
    ]


@pytest.mark.parametrize(
    "other", [("landing@lake.dfs.core.windows.net/orders-",), ("landing@lake/orders/", "--suffix", ".csv")]
)
def test_a_subscription_of_the_same_name_for_other_objects_is_no_success(
    az: AzureCommand, other: tuple[str, ...]
) -> None:
    """Else nothing would announce these objects, and the command would say that all is there."""
    result(PREFIX)
    az.changes()
    done = run(f"abfss://{other[0]}", *other[1:])
    assert done.exit_code == 1
    assert "cuesqueue-landing-orders" in done.output
    assert "--queue" in done.output
    assert az.changes() == []
    assert len(result(f"abfss://{other[0]}", *other[1:], "--queue", "others")["changes"]) == 2


def test_without_az_the_commands_are_printed_and_nothing_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    commands = [change["command"] for change in result(PREFIX, "--dry-run")["changes"]]
    assert len(commands) == 4
    assert '--source-resource-id "$(az storage account show --name lake --query id --output tsv)"' in commands[-1]
    done = run(PREFIX)
    assert done.exit_code == 1
    assert "az is not installed" in done.output


def test_what_az_says_is_passed_on_without_secrets(az: AzureCommand) -> None:
    az.breaks()
    done = run(PREFIX)
    assert done.exit_code == 1
    assert "AuthorizationFailed" in done.output
    assert "secret" not in done.output


def test_az_that_does_not_end_is_an_error_of_one_line(az: AzureCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_SECONDS", 0.2)
    (az.folder / "az").write_text("#!/bin/sh\nexec /bin/sleep 5\n")
    done = run(PREFIX)
    assert done.exit_code == 1
    assert "not done after" in done.output


@pytest.mark.parametrize(
    "text", ["s3://bucket/x", "az://container/x", "landing", "abfss://lake.dfs.core.windows.net/x"]
)
def test_a_place_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not a place in Azure"):
        parse_place(text)


def test_each_spelling_of_a_place_is_understood() -> None:
    for text in ("https://lake.blob.core.windows.net/landing/a%20b", "wasbs://landing@lake.blob.core.windows.net/a b"):
        assert parse_place(text) == ("lake", "landing", "a b")


@pytest.mark.parametrize("prefix", ["", "orders/", "a" * 100, "A//B__c", "\u00fc"])
def test_a_name_is_one_that_azure_takes(prefix: str) -> None:
    parse_address(f"azurequeue://lake/{default_name('landing', prefix)}", Access())


def test_a_tag_without_a_value_is_refused(az: AzureCommand) -> None:
    assert "NAME=VALUE" in run(PREFIX, "--tag", "team").output
