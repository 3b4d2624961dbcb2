"""The page about SQS: its commands run, and its lists of permissions are what is really asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from docs.test_pages import Reader
from queue_source.commands.setup_aws import Setup
from queue_source.queues import open_queue
from queue_source.queues.sqs import SqsQueue
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, new_name, new_queue
from support.snippets import ROOT, blocks

PATH = ROOT / "docs" / "how-to" / "sqs.md"
PAGE = blocks(PATH)
COMMANDS = (
    "info sqs://cuesqueue-landing-orders",
    "peek sqs://cuesqueue-landing-orders --max-messages 3",
    "create sqs://tries.fifo",
    "purge sqs://tries.fifo --yes",
    "delete sqs://tries.fifo --yes",
)


def of_command(name: str) -> set[str]:
    """The actions that the list of the page has for a command."""
    (row,) = re.findall(rf"^- `cuesqueue {name}`:((?:.+\n)(?:  .+\n)*)", PATH.read_text("utf-8"), re.MULTILINE)
    return set(re.findall(r"`(s\w+:\w+)`", row))


def actions() -> set[str]:
    """The actions of the reader's policy on the page."""
    (policy,) = [json.loads(block.text) for block in PAGE if block.language == "json"]
    found: set[str] = set()
    for statement in policy["Statement"]:
        named = statement["Action"]
        found |= {named} if isinstance(named, str) else set(named)
    return found


def as_actions(calls: Iterable[Any]) -> set[str]:
    """The names that policies have for calls."""
    names = set()
    for model in calls:
        name = str(model.name).removesuffix("Batch")
        if "BucketNotification" in name:
            name = name.removesuffix("Configuration")
        names.add(f"{model.service_model.service_name}:{name}")
    return names - {"sts:GetCallerIdentity"}  # is allowed to everybody


def test_the_commands_of_the_page_make_a_queue_and_publish_to_it(ministack_url: str, tmp_path: Path) -> None:
    with closing(client(ministack_url, "s3")) as s3:
        s3.create_bucket(Bucket="landing")
    reader = Reader(tmp_path)
    reader.environment |= {
        "AWS_ENDPOINT_URL": ministack_url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    for block in PAGE:
        if block.language == "bash":
            reader.run(block.text)
    for command in COMMANDS:
        reader.run(f"cuesqueue queue {command}")
    with open_queue(f"{ministack_url}/{ACCOUNT}/cuesqueue-landing-orders", **KEYS) as queue:
        bodies = [json.loads(message.body) for message in queue.receive(10, 30, 1)]
    keys = [record["s3"]["object"]["key"] for body in bodies for record in body.get("Records", [])]
    assert keys == ["orders/old.json"]


def test_the_reader_asks_for_what_the_page_allows_and_no_more(ministack_url: str) -> None:
    target = new_queue(ministack_url)
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{target.rpartition('/')[2]}"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 50})
    url = new_queue(ministack_url, RedrivePolicy=policy)
    calls: list[Any] = []
    with SqsQueue(f"sqs://{url.rpartition('/')[2]}", region=REGION, endpoint_url=ministack_url, **KEYS) as queue:
        queue.publish(["a", "b", "c"])
        queue._client().meta.events.register("before-call.*.*", lambda model, **_: calls.append(model))
        queue.depth()
        one, two, three = (message.receipt for message in queue.receive(10, 30, 0))
        queue.extend([one], 30)
        queue.nack([two])
        queue.acknowledge([one])
        asked = as_actions(calls) | {"sqs:GetQueueUrl"}  # the client was made by that one
        queue.reject([three])
    assert asked == {action for action in actions() if action.startswith("sqs:")}
    (row,) = re.findall(r"that rejects messages: (.+\n.+)\n", PATH.read_text("utf-8"))
    assert as_actions(calls) - asked | {"sqs:GetQueueUrl"} == set(re.findall(r"`(sqs:\w+)`", row))


def test_looking_after_a_queue_asks_for_what_the_page_allows_and_no_more(ministack_url: str) -> None:
    calls: list[Any] = []
    with SqsQueue(f"sqs://{new_name()}", region=REGION, endpoint_url=ministack_url, **KEYS) as queue:
        queue._client().meta.events.register("before-call.*.*", lambda model, **_: calls.append(model))
        queue.create()
        queue.peek(1)
        queue.publish(["x"])
        queue.peek(1)
        queue.purge()
        queue.delete()
    assert as_actions(calls) - {"sqs:SendMessage"} == of_command("queue")


def test_setup_asks_for_what_the_page_allows_and_no_more(ministack_url: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    bucket = new_name("bucket")
    with closing(client(ministack_url, "s3")) as s3:
        s3.create_bucket(Bucket=bucket)
    calls: list[Any] = []
    with closing(Setup(bucket, "in/", f"{bucket}-files", None, ministack_url)) as setup:
        setup._session.events.register("before-call.*.*", lambda model, **_: calls.append(model))
        setup.apply(setup.changes())
        assert setup.changes() == []
        setup.reader_options()
    assert as_actions(calls) == of_command("setup aws")
