"""`cuesqueue setup aws`, over a real server: what it makes, what it leaves alone, and that it works."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from queue_source.commands.main import app
from queue_source.commands.setup_aws import MOST_RECEIVES, default_name, parse_prefix
from queue_source.errors import OptionError
from queue_source.queues import open_queue
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, new_name
from support.snippets import ROOT

SOMEBODY = {"Id": "somebody", "Events": ["s3:ObjectRemoved:*"]}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def s3(ministack_url: str) -> Iterator[Any]:
    with closing(client(ministack_url, "s3")) as made:
        yield made


@pytest.fixture
def sqs(ministack_url: str) -> Iterator[Any]:
    with closing(client(ministack_url, "sqs")) as made:
        yield made


@pytest.fixture
def bucket(s3: Any) -> str:
    name = new_name("bucket")
    s3.create_bucket(Bucket=name)
    return name


def setup(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["setup", "aws", *arguments, "--endpoint-url", url])


def result(url: str, *arguments: str) -> dict[str, Any]:
    done = setup(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def actions(found: dict[str, Any]) -> list[str]:
    return [change["action"] for change in found["changes"]]


def attributes(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def notifications(s3: Any, bucket: str) -> dict[str, Any]:
    found: dict[str, Any] = s3.get_bucket_notification_configuration(Bucket=bucket)
    found.pop("ResponseMetadata")
    return found


def test_what_it_makes_announces_new_objects_of_the_prefix_to_the_options_it_prints(
    ministack_url: str, s3: Any, sqs: Any, bucket: str
) -> None:
    found = result(ministack_url, f"s3://{bucket}/in/", "--queue", f"{bucket}-files")
    assert actions(found) == ["create-queue", "create-queue", "set-queue-attributes", "set-bucket-notifications"]
    options = found["options"]
    assert options["allowedPrefixes"] == f"s3://{bucket}/in/"
    s3.put_object(Bucket=bucket, Key="in/new.json", Body=b"{}")
    s3.put_object(Bucket=bucket, Key="elsewhere/new.json", Body=b"{}")
    with open_queue(options["queueUrl"], region=options["aws.region"], **KEYS) as queue:
        bodies = [json.loads(message.body) for message in queue.receive(10, 30, 1)]
        assert queue.capabilities.retention == 14 * 86_400
    keys = [record["s3"]["object"]["key"] for body in bodies for record in body.get("Records", [])]
    assert keys == ["in/new.json"]
    made = attributes(sqs, f"{bucket}-files")
    assert json.loads(made["RedrivePolicy"]) == {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{bucket}-files-dead",
        "maxReceiveCount": MOST_RECEIVES,
    }


def test_the_url_that_has_to_be_copied_is_in_one_piece(
    ministack_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printed = setup(ministack_url, f"s3://{bucket}/in/", "--queue", f"{bucket}-files").stdout
    url = result(ministack_url, f"s3://{bucket}/in/", "--queue", f"{bucket}-files")["options"]["queueUrl"]
    assert f"  queueUrl  {url}\n" in printed


def test_only_this_bucket_of_this_account_may_send(ministack_url: str, sqs: Any, bucket: str) -> None:
    result(ministack_url, f"s3://{bucket}/in/", "--queue", f"{bucket}-files")
    (statement,) = json.loads(attributes(sqs, f"{bucket}-files")["Policy"])["Statement"]
    assert statement["Principal"] == {"Service": "s3.amazonaws.com"}
    assert statement["Action"] == "sqs:SendMessage"
    assert statement["Resource"] == f"arn:aws:sqs:{REGION}:{ACCOUNT}:{bucket}-files"
    assert statement["Condition"] == {
        "ArnEquals": {"aws:SourceArn": f"arn:aws:s3:::{bucket}"},
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
    }


def test_a_second_run_changes_nothing_and_says_so(ministack_url: str, bucket: str) -> None:
    first = result(ministack_url, f"s3://{bucket}/in/")
    assert actions(first)
    second = result(ministack_url, f"s3://{bucket}/in/")
    assert actions(second) == []
    assert second["options"] == first["options"]
    assert "nothing to change" in setup(ministack_url, f"s3://{bucket}/in/").stdout


def test_a_dry_run_prints_what_would_be_done_and_does_nothing(
    ministack_url: str, s3: Any, sqs: Any, bucket: str
) -> None:
    lines = setup(ministack_url, f"s3://{bucket}/in/", "--dry-run").stdout.splitlines()
    assert lines[0] == "would be done:"
    assert lines[1].startswith(f"  1. create-queue: {default_name(bucket, 'in/')}-dead: {{")
    found = result(ministack_url, f"s3://{bucket}/in/", "--dry-run")
    assert found["dry_run"] is True
    assert notifications(s3, bucket) == {}
    assert sqs.list_queues(QueueNamePrefix=default_name(bucket, "in/")).get("QueueUrls", []) == []
    done = result(ministack_url, f"s3://{bucket}/in/")
    assert (done["changes"], done["options"]) == (found["changes"], found["options"])


def test_other_notifications_and_other_statements_stay(ministack_url: str, s3: Any, sqs: Any, bucket: str) -> None:
    sqs.create_queue(QueueName=f"{bucket}-own")
    own = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{bucket}-own"
    statement = {"Sid": "mine", "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": own}
    url = sqs.get_queue_url(QueueName=f"{bucket}-own")["QueueUrl"]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy, "VisibilityTimeout": "77"})
    before = {"QueueConfigurations": [{**SOMEBODY, "QueueArn": own}], "EventBridgeConfiguration": {}}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=before)
    for prefix in ("one/", "two/"):
        result(ministack_url, f"s3://{bucket}/{prefix}", "--queue", f"{bucket}-{prefix.strip('/')}")
    found = result(ministack_url, f"s3://{bucket}/three/", "--queue", f"{bucket}-own")
    assert actions(found) == [
        "create-queue", "set-queue-attributes", "set-queue-attributes", "set-bucket-notifications",
    ]  # fmt: skip
    after = notifications(s3, bucket)
    names = [one["Id"] for one in after["QueueConfigurations"]]
    assert names == ["somebody", f"{bucket}-one", f"{bucket}-two", f"{bucket}-own"]
    assert "EventBridgeConfiguration" in after
    kept = attributes(sqs, f"{bucket}-own")
    assert [one["Sid"] for one in json.loads(kept["Policy"])["Statement"]] == ["mine", f"cuesqueue-{bucket}"]
    assert kept["VisibilityTimeout"] == "77"


_TO_YAML = (
    (r" +#.*", ""),
    (r"jsonencode\(|(?<=\})\)", ""),
    (r" +=|(?<=queue)(?= \{)", ":"),
    (r"(?<![{\[])\n", ",\n"),
)


def resources(values: dict[str, str]) -> dict[str, Any]:
    """What the Terraform of the repository makes, by its names there. HCL is near enough to the flow style of YAML."""
    text = (ROOT / "deploy" / "terraform" / "aws" / "main.tf").read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value).replace(name, value)
    found = {}
    for name, body in re.findall(r'^resource "\w+" "(\w+)" (\{\n.*?^\})', text, re.DOTALL | re.MULTILINE):
        for hcl, flow in _TO_YAML:
            body = re.sub(hcl, flow, body)
        found[name] = yaml.safe_load(body)
    return found


def test_the_terraform_of_the_repository_makes_the_same(ministack_url: str, bucket: str) -> None:
    found = result(ministack_url, f"s3://{bucket}/in/", "--queue", "files", "--dry-run")
    dead, queue, policy, notification = found["changes"]
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:files"
    values = {
        'replace(var.bucket, ".", "-")': bucket,
        "var.bucket": bucket,
        "var.prefix": "in/",
        "var.queue": "files",
        "aws_sqs_queue.queue.arn": arn,
        "aws_sqs_queue.dead.arn": f"{arn}-dead",
        "data.aws_caller_identity.current.account_id": f'"{ACCOUNT}"',
        "data.aws_s3_bucket.bucket.arn": f"arn:aws:s3:::{bucket}",
    }
    made = resources(values)
    for name, change in (("dead", dead), ("queue", queue)):
        assert made[name].pop("name") == change["queue"]
        assert str(made[name].pop("message_retention_seconds")) == change["attributes"].pop("MessageRetentionPeriod")
    assert made["dead"] == {}
    assert made["queue"] == {"redrive_policy": json.loads(queue["attributes"].pop("RedrivePolicy"))}
    assert made["bucket_may_send"]["policy"] == json.loads(policy["attributes"].pop("Policy"))
    assert not dead["attributes"] | queue["attributes"] | policy["attributes"]
    (announced,) = notification["configuration"].pop("QueueConfigurations")
    assert made["new_objects"]["bucket"] == notification["bucket"] == bucket
    assert made["new_objects"]["queue"] == {
        "id": announced["Id"],
        "queue_arn": announced["QueueArn"],
        "events": announced["Events"],
        "filter_prefix": announced["Filter"]["Key"]["FilterRules"][0]["Value"],
    }


def test_a_bucket_that_is_not_there_is_told_with_what_was_asked(ministack_url: str) -> None:
    done = setup(ministack_url, "s3://nobody-has-this-bucket/in/")
    assert done.exit_code == 1
    assert "NoSuchBucket" in done.stderr
    assert "Traceback" not in done.output


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    done = setup("http://127.0.0.1:1", "s3://bucket/in/")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "--endpoint-url" in done.stderr


class Elsewhere(BaseHTTPRequestHandler):
    """A server that is none of AWS: to each call it answers with a page that says so."""

    def do_GET(self) -> None:
        self.answer(404, b"not here")

    do_POST = do_PUT = do_GET

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is said."""


class WithoutSts(Elsewhere):
    """It answers a call that it does not know with a page."""

    def do_GET(self) -> None:
        self.answer(200, b"<LocationConstraint/>")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_sqs = b"GetCallerIdentity" not in body
        self.answer(400, b'{"__type": "com.amazonaws.sqs#QueueDoesNotExist"}') if is_sqs else self.answer(200, b"")


@pytest.mark.parametrize(("server_class", "words"), [(WithoutSts, "STS"), (Elsewhere, "--endpoint-url")])
def test_a_server_that_is_not_aws_or_has_no_sts_is_told_in_one_line(
    server_class: type[BaseHTTPRequestHandler], words: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), server_class) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = setup(f"http://127.0.0.1:{server.server_port}", "s3://bucket/in/", "--dry-run")
        server.shutdown()
        thread.join()
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1), done.output
    assert words in done.stderr


@pytest.mark.parametrize("text", ["bucket/in", "s3://", "s3://UPPER/in", "gs://bucket/in", "s3:///in"])
def test_what_is_no_place_in_s3_is_wrong_use(text: str) -> None:
    assert setup("http://127.0.0.1:1", text).exit_code == 2
    with pytest.raises(OptionError, match="s3://bucket/prefix"):
        parse_prefix(text)


def test_names_of_queues_are_valid_and_tell_long_prefixes_apart() -> None:
    names = {default_name("bucket", f"{'deep/' * 40}{number}/") for number in range(3)}
    assert len(names) == 3
    for name in (*names, default_name("a.b-c", "d e/\u00fc/")):
        assert len(f"{name}-dead") <= 80
        assert name.replace("-", "").replace("_", "").isascii()
    assert default_name("bucket", "") == "cuesqueue-bucket"
    assert default_name("bucket", "in/") == "cuesqueue-bucket-in"
