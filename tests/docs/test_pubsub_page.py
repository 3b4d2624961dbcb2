"""What the page of Pub/Sub shows runs, on the tests' own servers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.test_pages import Reader
from queue_source.commands.setup_gcp import MOST_DELIVERIES, STORAGE_EMULATOR, Setup
from queue_source.options import parse_reader_options
from queue_source.queues.pubsub.address import EMULATOR
from support.servers.gcs_model import gcs_model
from support.servers.pubsub import PubSubServer
from support.snippets import ROOT, blocks

PATH = ROOT / "docs" / "how-to" / "pubsub.md"
PAGE = blocks(PATH)
COMMANDS = """
cuesqueue queue create pubsub://my-project/tries
cuesqueue queue peek pubsub://my-project/tries --max-messages 3
cuesqueue queue purge pubsub://my-project/tries --yes
cuesqueue queue delete pubsub://my-project/tries --yes
"""
SCRIPT = """
from cuesqueue import open_queue

with open_queue("pubsub://my-project/cuesqueue-landing-orders") as queue:
    queue.send([b""], headers={"eventType": "OBJECT_FINALIZE", "bucketId": "landing", "objectId": "orders/2.json"})
    for message in queue.receive(max_messages=10, lease=60, wait=5):
        print(message.body, dict(message.headers))
        queue.acknowledge([message.receipt])
"""


URL = "pubsub://my-project/cuesqueue-landing-orders"


def test_the_commands_of_the_page_announce_what_a_program_receives(tmp_path: Path, pubsub_server: PubSubServer) -> None:
    reader = Reader(tmp_path)
    reader.environment[EMULATOR] = pubsub_server.host
    setup, send = (block.text for block in PAGE if block.language == "bash")
    with gcs_model() as gcs:
        gcs.buckets.add("landing")
        reader.environment[STORAGE_EMULATOR] = gcs.url
        assert f"  queueUrl  {URL}\n" in reader.run(setup)
    assert URL in send
    reader.run(send)
    assert pubsub_server.depth(URL) == (1, 0)
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    printed = reader.run("python script.py")
    assert "gs://landing/orders/old.json" in printed
    assert "OBJECT_FINALIZE" in printed
    assert pubsub_server.depth(URL) == (0, 0)


def test_the_page_has_the_roles_and_the_times_of_setup() -> None:
    page = PATH.read_text("utf-8")
    setup = Setup("landing", "orders/", project="my-project")
    assert all(f"`{role}`" in page for role in setup.reader_roles())
    assert f"(`setup`: {MOST_DELIVERIES})" in page
    assert "60 s (`setup`)" in page


def test_a_subscription_is_made_and_deleted_again(tmp_path: Path, pubsub_server: PubSubServer) -> None:
    reader = Reader(tmp_path)
    reader.environment[EMULATOR] = pubsub_server.host
    printed = reader.run(COMMANDS)
    assert re.search(r"created\W+True", printed)
    assert re.search(r"messages\W+unknown", printed)
    assert re.search(r"deleted\W+True", printed)


def test_the_options_of_the_page_are_options() -> None:
    query = next(block.text for block in PAGE if block.language == "python" and "readStream" in block.text)
    calls = [node for node in ast.walk(ast.parse(query)) if isinstance(node, ast.Call)]
    given = {
        call.args[0].value: call.args[1].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "option"
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[1], ast.Constant)
    }
    assert (
        parse_reader_options({str(name): str(value) for name, value in given.items()}).source
        == "cuesqueue-landing-orders"
    )
    assert len(given) == 4
