"""The page about Azure: its commands run, those of `az` as far as its arguments; its options are the reader's."""

from __future__ import annotations

import re
from pathlib import Path

from docs.test_pages import Reader
from queue_source.options import parse_reader_options
from queue_source.options.connections import connection_options
from queue_source.options.places import READER
from queue_source.options.types import SecretUrl
from queue_source.queues import open_queue
from support.azure_command import AzureCommand
from support.servers.azure_queue import KEY, AzureQueueServer
from support.snippets import ROOT, blocks

PATH = ROOT / "docs" / "how-to" / "azure.md"
PAGE = blocks(PATH)
QUEUE = "azurequeue://lake/cuesqueue-landing-orders"
COMMANDS = (
    f"info {QUEUE}",
    "create azurequeue://lake/tries",
    "peek azurequeue://lake/tries --max-messages 3",
    "purge azurequeue://lake/tries --yes",
    "delete azurequeue://lake/tries --yes",
)


def test_the_commands_of_the_page_make_a_queue_and_announce_to_it(
    tmp_path: Path, azure_queue_server: AzureQueueServer
) -> None:
    access = {"endpoint_url": azure_queue_server.url, "access_key": KEY}
    reader = Reader(tmp_path)
    az = AzureCommand(tmp_path / "programs")
    reader.environment["AZURE_STORAGE_CONNECTION_STRING"] = (
        f"AccountName=lake;AccountKey={KEY};QueueEndpoint={azure_queue_server.url}/lake;"
    )
    with open_queue(QUEUE, **access) as queue:
        queue.create()  # type: ignore[attr-defined]
        for block in PAGE:
            if block.language == "bash":
                reader.run(block.text)
        for command in COMMANDS:
            reader.run(f"cuesqueue queue {command}")
        assert [message.body for message in queue.receive(10, 30, 1)] == [
            b"abfss://landing@lake.dfs.core.windows.net/orders/old.json"
        ]
    made = [words[:3] for words in az.changes()]
    assert ["eventgrid", "event-subscription", "create"] in made


def test_the_options_of_the_page_are_taken_by_the_reader() -> None:
    code = next(block.text for block in PAGE if block.language == "python")
    given = dict(re.findall(r'\.option\("(\w+)", "([^"]+)"\)', code.partition("sink =")[0]))
    options = parse_reader_options({**given, "storeUrl": "sqlite:////tmp/page.db"})
    assert str(options.queue.urls[0]) == QUEUE
    assert connection_options(SecretUrl(QUEUE), options.queue) == {}


def test_each_option_that_the_page_names_exists() -> None:
    names = {option.name for option in READER.options} | {"azureQueue.connectionString", "azureQueue.X", "azure.X"}
    named = set(re.findall(r"`(azure(?:Queue)?\.\w+)`", PATH.read_text("utf-8")))
    assert named <= names, named - names
    assert len(named) > 8
