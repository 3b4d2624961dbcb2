"""The page about several streams: its commands make queues that get copies, or record for each source its objects."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from docs.test_pages import Reader
from queue_source.announcements.contents import announced_objects
from queue_source.commands.setup_aws import MOST_RECEIVES
from queue_source.messages import Received
from queue_source.options import parse_reader_options
from queue_source.queues import open_queue
from shard_store.store import open_store
from support import aws_command
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, ministack_server
from support.servers.pubsub import PubSubServer
from support.snippets import ROOT, blocks

PATH = ROOT / "docs" / "how-to" / "routes.md"
PAGE = blocks(PATH)
OBJECTS = ["orders/1.json", "orders/a b+c.json", "returns/1.json", "other/1.json", "orders-of-others/1.json"]


def commands(part: str) -> str:
    (found,) = [block.text for block in PAGE if block.language in ("bash", "sh") and part in block.text]
    return found


def options_of_the_page() -> dict[str, str]:
    (script,) = [block.text for block in PAGE if block.language == "python" and "onForeignObject" in block.text]
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    given = [[ast.literal_eval(arg) for arg in call.args] for call in calls if len(call.args) == 2]
    return {str(name): str(value) for name, value in given}


def read(messages: Sequence[Received], prefix: str) -> tuple[list[str], int]:
    """What a stream with the options of the page reads of these messages, and how many objects of others it leaves."""
    options = parse_reader_options({**options_of_the_page(), "allowedPrefixes": prefix}).notifications
    announced = announced_objects(messages, options, lambda uris: [None for _ in uris])
    assert [one.error for one in announced if one.error] == []
    return sorted(c.uri for one in announced for c in one.contents), sum(one.foreign for one in announced)


def allowed(url: str, name: str) -> tuple[str, str, str]:
    """Who may do what with a stream's queue: the emulator keeps policies, and enforces none."""
    with closing(client(url, "sqs")) as sqs:
        queue = sqs.get_queue_url(QueueName=f"landing-{name}")["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert json.loads(attributes["RedrivePolicy"]) == {
            "deadLetterTargetArn": f"{attributes['QueueArn']}-dead",
            "maxReceiveCount": str(MOST_RECEIVES),
        }
        assert sqs.get_queue_url(QueueName=f"landing-{name}-dead")
    (statement,) = json.loads(attributes["Policy"])["Statement"]
    return statement["Principal"]["Service"], statement["Action"], statement["Resource"]


@pytest.mark.parametrize("way", ["aws sns", "aws events"])
def test_each_stream_gets_its_objects_through_sns_and_through_eventbridge(way: str, tmp_path: Path) -> None:
    with ministack_server() as url, closing(client(url, "s3")) as s3:
        s3.create_bucket(Bucket="landing")
        reader = Reader(tmp_path)
        reader.environment |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        aws_command.install(tmp_path / "programs")
        reader.run(commands(way))
        for key in OBJECTS:
            s3.put_object(Bucket="landing", Key=key, Body=b"{}")
        for name, keys in (("orders", OBJECTS[:2]), ("returns", OBJECTS[2:3])):
            with open_queue(f"{url}/{ACCOUNT}/landing-{name}", **KEYS) as queue:
                messages = queue.receive(10, 30, 2)
                messages += queue.receive(10, 30, 1)
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:landing-{name}"
            assert allowed(url, name) == (f"{way.split()[1]}.amazonaws.com", "sqs:SendMessage", arn)
            others = 0 if way == "aws events" else len(OBJECTS) - len(keys)  # the patterns of its rules keep them out
            assert read(messages, f"s3://landing/{name}/") == ([f"s3://landing/{key}" for key in keys], others)


def test_two_subscriptions_of_one_topic_get_copies_and_each_stream_reads_its_own(pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic("fan-out", "landing")
    urls = {
        name: pubsub_server.create_subscription("fan-out", f"landing-{name}", topic) for name in ("orders", "returns")
    }
    connection = {"endpoint": f"http://{pubsub_server.host}"}
    with open_queue(urls["orders"], **connection) as queue:
        for key in OBJECTS:
            queue.send([b""], headers={"eventType": "OBJECT_FINALIZE", "bucketId": "landing", "objectId": key})
    for name, count in (("orders", 2), ("returns", 1)):
        with open_queue(urls[name], **connection) as queue:
            messages = list(queue.receive(10, 30, 5))
            queue.acknowledge([message.receipt for message in messages])
        found, foreign = read(messages, f"gs://landing/{name}/")
        assert (len(messages), len(found), foreign) == (len(OBJECTS), count, len(OBJECTS) - count)


def test_the_filter_of_the_page_for_pubsub_names_the_attribute_that_is_read() -> None:
    assert """'hasPrefix(attributes.objectId, "orders/")'""" in PATH.read_text("utf-8")


def test_the_options_of_the_page_are_those_of_a_stream_that_ignores_others() -> None:
    options = parse_reader_options(options_of_the_page())
    assert options.source == "orders"
    assert options.notifications.on_foreign_object == "ignore"


def test_the_commands_of_the_page_record_for_every_source_and_show_what_waits(tmp_path: Path) -> None:
    (routes,) = [block for block in PAGE if block.file == "routes.json"]
    reader = Reader(tmp_path)
    reader.environment |= {"COLUMNS": "200"}
    (tmp_path / "routes.json").write_text(routes.text)
    receive, show = [commands(part) for part in ("cuesqueue route ", "cuesqueue status ")]
    reader.run(receive)
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        assert {waits.source: waits.objects for waits in store.waiting()} == {"orders": 1, "returns": 1, "audit": 2}
    (printed,) = [block.text for block in PAGE if block.language == "text" and "receiver of" in block.text]
    shown = reader.run(show)
    assert printed.strip() in shown.replace(f"{tmp_path}/", "")
    status = json.loads(reader.run(f"{show.strip()} --json"))
    assert [receiver["recorded"] for receiver in status["receivers"]] == [4]


def test_the_reader_of_the_page_takes_what_is_recorded() -> None:
    (script,) = [block.text for block in PAGE if '"queueUrl", "store"' in block.text]
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    given = dict([ast.literal_eval(arg) for arg in call.args] for call in calls if len(call.args) == 2)
    options = parse_reader_options(given)
    assert options.queue.from_store
    assert options.source == "orders"
