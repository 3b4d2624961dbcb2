"""What the page of Pub/Sub shows runs, on the tests' own server; Google's command line is not part of the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.test_pages import Reader
from queue_source.options import parse_reader_options
from queue_source.queues.pubsub.address import EMULATOR
from support.servers.pubsub import PubSubServer
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "pubsub.md")
COMMANDS = """
cuesqueue queue create pubsub://my-project/tries
cuesqueue queue peek pubsub://my-project/tries --max-messages 3
cuesqueue queue purge pubsub://my-project/tries --yes
cuesqueue queue delete pubsub://my-project/tries --yes
"""
SCRIPT = """
from cuesqueue import open_queue

with open_queue("pubsub://my-project/landing") as queue:
    queue.send([b""], headers={"eventType": "OBJECT_FINALIZE", "bucketId": "my-bucket", "objectId": "in/2.json"})
    for message in queue.receive(max_messages=10, lease=60, wait=5):
        print(message.body, dict(message.headers))
        queue.acknowledge([message.receipt])
"""


def test_the_commands_of_the_page_announce_what_a_program_receives(tmp_path: Path, pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic("my-project", "landing")
    url = pubsub_server.create_subscription("my-project", "landing", topic, enable_exactly_once_delivery=True)
    reader = Reader(tmp_path)
    reader.environment[EMULATOR] = pubsub_server.host
    commands = next(block.text for block in PAGE if block.language == "bash")
    assert url in commands
    reader.run(commands)
    assert pubsub_server.depth(url) == (1, 0)
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    printed = reader.run("python script.py")
    assert "gs://my-bucket/in/1.json" in printed
    assert "OBJECT_FINALIZE" in printed
    assert pubsub_server.depth(url) == (0, 0)


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
    assert parse_reader_options({str(name): str(value) for name, value in given.items()}).source == "landing"
    assert len(given) == 4
