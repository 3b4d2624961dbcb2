"""Sets up what S3 needs to announce a prefix through SQS: lists the missing parts, and makes them.

`Setup.changes` returns the missing parts, as data; `apply` does exactly that. Existing things stay as they are,
especially other notifications of the bucket and other statements of the policy. So a second run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from xml.etree.ElementTree import ParseError

import boto3
import tenacity
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError
from botocore.parsers import ResponseParserError

from queue_source.errors import CuesqueueError, OptionError
from queue_source.queues.sqs.address import RETENTION
from shard_store.redaction import redact_text

MOST_RECEIVES = 50  # restarts of a pipeline count as receives of every message in flight
_EVENTS = ["s3:ObjectCreated:*"]
_LONGEST_NAME = 80
_NOT_YET = "Unable to validate the following destination configurations"

Change = dict[str, Any]
"""One thing to do: `action`, and what it takes."""


def parse_prefix(text: str) -> tuple[str, str]:
    """Return bucket and prefix of `s3://bucket/prefix`."""
    parts = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", text, re.DOTALL)
    if parts is None:
        raise OptionError("PREFIX", f"{text!r} is not a place in S3; write s3://bucket/prefix")
    return parts[1], parts[2] or ""


def default_name(bucket: str, prefix: str) -> str:
    """Build a queue's name that shows its purpose, and is the same at each run."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"cuesqueue-{bucket}-{prefix}").strip("-")
    longest = _LONGEST_NAME - len("-dead")
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.sha256(f'{bucket}/{prefix}'.encode()).hexdigest()[:8]}"
    return name


@contextmanager
def _errors() -> Iterator[None]:
    """Map the errors of AWS, with the next step; finished changes stay, and a second run continues after them."""
    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        code, text = answer.get("Code", ""), redact_text(answer.get("Message", "")).rstrip(".")
        step = "run it again once that is solved; it continues where it stopped"
        if "overlap" in text.lower() or "ambiguously defined" in text:
            step = (
                "another notification of the bucket has the same events for a prefix that overlaps; send that one "
                "through SNS or EventBridge to several queues, or choose another prefix"
            )
        elif "AccessDenied" in code:
            step = "docs/how-to/sqs.md lists the permissions that setup needs"
        raise CuesqueueError(f"{error.operation_name}: {code}: {text}; {step}") from error
    except (ConnectionError, HTTPClientError) as error:
        raise CuesqueueError(f"{_plain(error)}; check the network and --endpoint-url, and run it again") from error
    except (ResponseParserError, ParseError) as error:
        raise CuesqueueError(
            f"the answer is not one of AWS: {_plain(error)}; check --endpoint-url and proxies"
        ) from error
    except BotoCoreError as error:
        raise CuesqueueError(f"{_plain(error)}; set --profile, or what the AWS SDK reads by itself") from error


def _plain(error: Exception) -> str:
    return redact_text(str(error)).rstrip(".")


@dataclass
class Setup:
    """The bucket's notifications and the two queues; reads on demand, changes only in `apply`."""

    bucket: str
    prefix: str
    queue: str
    profile: str | None = None
    endpoint: str | None = None
    _clients: dict[str, Any] = field(default_factory=dict)

    @property
    def dead_letters(self) -> str:
        return f"{self.queue}-dead"

    @_errors()
    def changes(self) -> list[Change]:
        """Return the missing parts, in the order in which they have to be made."""
        missing: list[Change] = []
        attributes: Mapping[str, str] = {}
        if (url := self._url(self.queue)) is not None:
            attributes = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        if self._url(self.dead_letters) is None:
            kept = {"MessageRetentionPeriod": RETENTION}
            missing.append({"action": "create-queue", "queue": self.dead_letters, "attributes": kept})
        redrive = json.dumps({"deadLetterTargetArn": self._arn(self.dead_letters), "maxReceiveCount": MOST_RECEIVES})
        if url is None:
            kept = {"MessageRetentionPeriod": RETENTION, "RedrivePolicy": redrive}
            missing.append({"action": "create-queue", "queue": self.queue, "attributes": kept})
        elif "RedrivePolicy" not in attributes:
            missing.append(_set(self.queue, {"RedrivePolicy": redrive}))
        policy = json.loads(attributes.get("Policy") or '{"Version": "2012-10-17"}')
        statements = policy.get("Statement", [])
        statements = [statements] if isinstance(statements, dict) else statements
        required = {  # this bucket of this account may send, and no other
            "Sid": "cuesqueue-" + re.sub(r"[^A-Za-z0-9-]", "-", self.bucket),
            "Effect": "Allow",
            "Principal": {"Service": "s3.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": self._arn(self.queue),
            "Condition": {
                "ArnEquals": {"aws:SourceArn": f"arn:{self._partition}:s3:::{self.bucket}"},
                "StringEquals": {"aws:SourceAccount": self._account},
            },
        }
        if required not in statements:
            others = [statement for statement in statements if statement.get("Sid") != required["Sid"]]
            missing.append(_set(self.queue, {"Policy": json.dumps({**policy, "Statement": [*others, required]})}))
        configuration = self._s3.get_bucket_notification_configuration(Bucket=self.bucket)
        configuration.pop("ResponseMetadata", None)
        notification: dict[str, Any] = {"Id": self.queue, "QueueArn": self._arn(self.queue), "Events": _EVENTS}
        if self.prefix:
            notification["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": self.prefix}]}}
        present = configuration.get("QueueConfigurations", [])
        if _meaning(notification) not in map(_meaning, present):
            others = [other for other in present if other.get("Id") != notification["Id"]]
            configuration["QueueConfigurations"] = [*others, notification]
            missing.append(
                {"action": "set-bucket-notifications", "bucket": self.bucket, "configuration": configuration}
            )
        return missing

    @_errors()
    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            if change["action"] == "create-queue":
                self._sqs.create_queue(QueueName=change["queue"], Attributes=change["attributes"])
            elif change["action"] == "set-queue-attributes":
                url = self._url(change["queue"])
                self._sqs.set_queue_attributes(QueueUrl=url, Attributes=change["attributes"])
            else:
                # S3 tests the queue at once, and a new policy may take some seconds until it is known everywhere
                put = tenacity.Retrying(
                    retry=tenacity.retry_if_exception(lambda e: isinstance(e, ClientError) and _NOT_YET in str(e)),
                    wait=tenacity.wait_fixed(3),
                    stop=tenacity.stop_after_attempt(10),
                    reraise=True,
                )
                request = {"Bucket": self.bucket, "NotificationConfiguration": change["configuration"]}
                put(self._s3.put_bucket_notification_configuration, **request)

    @_errors()
    def reader_options(self) -> dict[str, str]:
        """Return the options for `spark.readStream.format("cuesqueue")`."""
        options = {
            # of a queue that is still to be made, its future URL
            "queueUrl": self._url(self.queue)
            or f"{self._sqs.meta.endpoint_url.rstrip('/')}/{self._account}/{self.queue}",
            "allowedPrefixes": f"s3://{self.bucket}/{self.prefix}",
            "aws.region": self.region,
        }
        return {**options, **({"aws.endpointUrl": self.endpoint} if self.endpoint else {})}

    @cached_property
    def region(self) -> str:
        """The region of the bucket: S3 announces only to queues of its own region."""
        with _errors():
            place = self._client("s3", None).get_bucket_location(Bucket=self.bucket).get("LocationConstraint")
        return {None: "us-east-1", "": "us-east-1", "EU": "eu-west-1"}.get(place, str(place))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @property
    def _sqs(self) -> Any:
        return self._client("sqs", self.region)

    @property
    def _s3(self) -> Any:
        return self._client("s3", self.region)

    def _client(self, service: str, region: str | None) -> Any:
        key = f"{service} in {region}"
        if key not in self._clients:
            where = region or self._session.region_name or "us-east-1"
            # an address of one's own has no host name for each bucket
            style = {"addressing_style": "path"} if self.endpoint else {}
            config = Config(s3=style, retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=10)
            made = self._session.client(service, region_name=where, endpoint_url=self.endpoint, config=config)
            self._clients[key] = made
        return self._clients[key]

    @cached_property
    def _session(self) -> boto3.session.Session:
        return boto3.session.Session(profile_name=self.profile)

    @cached_property
    def _caller(self) -> list[str]:
        try:
            return str(self._client("sts", self.region).get_caller_identity()["Arn"]).split(":")
        except (ResponseParserError, KeyError):  # botocore's own, of an answer that is not one of STS
            raise CuesqueueError(
                "GetCallerIdentity: the answer is not one of STS, by which setup finds out the account; use an "
                "--endpoint-url that has STS, too, or make the queue with `cuesqueue queue create` and let the bucket "
                "announce to it"
            ) from None

    @property
    def _partition(self) -> str:
        return self._caller[1]

    @property
    def _account(self) -> str:
        return self._caller[4]

    def _arn(self, queue: str) -> str:
        return f"arn:{self._partition}:sqs:{self.region}:{self._account}:{queue}"

    def _url(self, queue: str) -> str | None:
        """Return the queue's URL; None where it does not exist."""
        try:
            return str(self._sqs.get_queue_url(QueueName=queue)["QueueUrl"])
        except self._sqs.exceptions.QueueDoesNotExist:
            return None


def _set(queue: str, attributes: Mapping[str, str]) -> Change:
    return {"action": "set-queue-attributes", "queue": queue, "attributes": dict(attributes)}


def _meaning(notification: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what is announced, and to which queue; S3 changes the case of names and adds an Id."""
    rules = notification.get("Filter", {}).get("Key", {}).get("FilterRules", [])
    filters = {(rule["Name"].lower(), rule["Value"]) for rule in rules if rule["Value"]}
    return notification["QueueArn"], sorted(notification["Events"]), sorted(filters)
