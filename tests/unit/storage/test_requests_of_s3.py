"""What goes to S3 without boto3 is what boto3 would send: the same URL and headers, signed alike, by the same proxy."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.credentials import RefreshableCredentials
from botocore.httpsession import URLLib3Session

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_object
from queue_source.storage.files import open_version
from support.aws_environment import forget_aws

HEADERS = {"ETag": '"1"', "Content-Length": "4", "Content-Range": "bytes 0-3/4"}
OF_BOTO3 = {"amz-sdk-invocation-id", "amz-sdk-request", "user-agent", "x-amz-checksum-mode"}
"""Headers that say nothing of the object: for statistics, and for checksums that a range has not."""


class Sent:
    """What was sent, in place of the network: each request with the session that sent it."""

    def __init__(self, answers: list[tuple[int, dict[str, str], bytes]]) -> None:
        self.requests: list[AWSPreparedRequest] = []
        self.sessions: list[URLLib3Session] = []
        self.answers = answers

    def send(self, session: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        self.requests.append(request)
        self.sessions.append(session)
        status, headers, body = self.answers.pop(0) if self.answers else (206, HEADERS, b"1,x\n")
        response = AWSResponse(request.url, status, HeadersDict(headers), _Body(body))
        if not request.stream_output:
            response.content  # noqa: B018
        return response

    @property
    def by_boto3(self) -> list[bool]:
        return ["amz-sdk-invocation-id" in request.headers for request in self.requests]


class _Body(io.BytesIO):
    def drain_conn(self) -> None:
        """Nothing remains."""

    def stream(self, *_: Any) -> Iterator[bytes]:
        yield self.read()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a new process that has keys and a region, and nothing else of AWS."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    forget_aws()
    yield monkeypatch
    forget_aws()


@pytest.fixture
def sent(environment: pytest.MonkeyPatch) -> Sent:
    made = Sent([])
    environment.setattr(URLLib3Session, "send", lambda session, request: made.send(session, request))
    environment.setattr(s3_object, "pause", lambda seconds: None)
    return made


def storage(**options: str) -> StorageOptions:
    given = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": "s3://", **options}
    return parse_reader_options(given).content.storage


def opened(uri: str, **options: str) -> None:
    assert open_version(uri, storage(**options), 0, 100).get(0, 4) == b"1,x\n"


def compared(sent: Sent, uri: str, **options: str) -> AWSPreparedRequest:
    """Ask twice, compare boto3's request with the other one, and return that."""
    before = len(sent.requests)
    opened(uri, **options)
    opened(uri, **options)
    first, second = sent.requests[before:]
    assert sent.by_boto3[before:] == [True, False]
    assert first.url == second.url
    assert first.method == second.method == "GET"
    assert facts(first) == facts(second)
    one, other = sent.sessions[before:]
    assert one._proxy_config._proxies == other._proxy_config._proxies
    assert one._verify == other._verify
    assert str(one._timeout) == str(other._timeout)
    return second


def facts(request: AWSPreparedRequest) -> dict[str, str]:
    """Return the headers as far as they matter, with the scope and the headers of the signature."""
    found = {name.lower(): text(value) for name, value in request.headers.items()}
    found = {name: value for name, value in found.items() if name not in OF_BOTO3}
    said = found.pop("authorization", "")
    found.pop("x-amz-date", None)
    if said:
        scope, names = re.findall(r"Credential=(\S+), SignedHeaders=(\S+),", said)[0]
        signed = set(names.split(";")) - OF_BOTO3
        found |= {"scope": scope, "signed": ";".join(sorted(signed))}
    return found


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


KEYS = [
    "plain.csv", "a//b", "//a", "/a", "a/", "a//", "a%2Fb", "a%20b", "a b", "a+b", "a~b", "ä/🦆", "a?b", "a#b", "a&b=c",
    "a;b,c:d@e!f$g'h(i)j*k", "a\\b", "a|b^c`d{e}f[g]h<i>j\"k", "k" * 1024, "b", "s3.eu-central-1.amazonaws.com/b",
    "..a/.b", "a\tb", "a\u00a0b", "e\u0301",
]  # fmt: skip
PLACES = {
    "a host of the bucket": ("bucket", {}),
    "a path, since the name has dots": ("my.dotted.bucket", {}),
    "a path, since the endpoint is an address": ("bucket", {"s3.endpointUrl": "http://127.0.0.1:9000"}),
    "an endpoint with a name": ("bucket", {"s3.endpointUrl": "https://minio.example:9000"}),
    "an endpoint with a path": ("bucket", {"s3.endpointUrl": "https://gateway.example/s3"}),
    "a host of another service": ("bucket", {"s3.endpointUrl": "https://oss-cn-hangzhou.aliyuncs.com"}),
    "a region by option": ("bucket", {"s3.region": "cn-north-1"}),
    "the first region": ("bucket", {"s3.region": "us-east-1"}),
    "a token": ("bucket", {}),
}


@pytest.mark.parametrize(("bucket", "options"), PLACES.values(), ids=PLACES)
def test_the_request_is_that_of_boto3(sent: Sent, bucket: str, options: dict[str, str]) -> None:
    for number, key in enumerate(KEYS):
        s3_object._sender_of.cache_clear()  # so that the bucket is met by each key
        forget_aws()
        compared(sent, f"s3://{bucket}/{key}", **options)
        opened(f"s3://{bucket}/other{number}", **options)
        assert not sent.by_boto3[-1]


@pytest.mark.parametrize("key", ["a/../b", "../a", "a/./b", ".", ".."])
def test_a_key_by_which_another_would_be_read_is_refused(sent: Sent, key: str) -> None:
    with pytest.raises(BadObject, match="missing-object"):
        opened(f"s3://bucket/{key}")
    assert not sent.requests


def test_the_scheme_is_another_name_only(sent: Sent) -> None:
    opened("s3a://bucket/k")
    opened("s3n://bucket/k")
    assert len({request.url for request in sent.requests}) == 1


CONFIGURED = {
    "dual stack": "use_dualstack_endpoint = true\n",
    "FIPS": "use_fips_endpoint = true\n",
    "path style": "s3 =\n  addressing_style = path\n",
    "virtual style": "s3 =\n  addressing_style = virtual\n",
    "accelerated": "s3 =\n  use_accelerate_endpoint = true\n",
    "an endpoint": "endpoint_url = https://minio.example\n",
    "signed content": "s3 =\n  payload_signing_enabled = true\n",
    "certificates": "ca_bundle = /etc/own.pem\n",
    "the first region as one of many": "s3 =\n  us_east_1_regional_endpoint = regional\n",
}


@pytest.mark.parametrize("text", CONFIGURED.values(), ids=CONFIGURED)
def test_what_the_configuration_file_says_counts(sent: Sent, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(f"[default]\nregion = us-east-2\n{text}", "utf-8")
    compared(sent, "s3://bucket/a b")


def test_a_session_token_is_sent_and_signed(sent: Sent, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_SESSION_TOKEN", "token of the session")
    request = compared(sent, "s3://bucket/k")
    assert text(request.headers["x-amz-security-token"]) == "token of the session"
    assert "x-amz-security-token" in text(request.headers["authorization"])


@pytest.mark.parametrize("options", [{"s3.accessKeyId": "OTHER", "s3.secretAccessKey": "s"}, {"s3.profile": "job"}])
def test_the_keys_of_options_are_used(sent: Sent, tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "config").write_text("[profile job]\naws_access_key_id = OTHER\naws_secret_access_key = s\n", "utf-8")
    assert facts(compared(sent, "s3://bucket/k", **options))["scope"].startswith("OTHER/")


def test_without_keys_nothing_is_signed(sent: Sent, environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    assert "scope" not in facts(compared(sent, "s3://public/k"))


def test_buckets_of_s3_express_are_left_to_boto3(sent: Sent) -> None:
    session = (
        b"<CreateSessionResult><Credentials><SessionToken>t</SessionToken><SecretAccessKey>s</SecretAccessKey>"
        b"<AccessKeyId>EXPRESS</AccessKeyId><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
        b"</CreateSessionResult>"
    )
    sent.answers.append((200, {}, session))
    for key in ("k", "l"):
        opened(f"s3://bucket--euc1-az1--x-s3/{key}", **{"s3.region": "eu-central-1"})
    assert sent.by_boto3 == [True, True, True]
    assert all(b"s3express" in request.headers["Authorization"] for request in sent.requests[1:])
    opened("s3://bucket/k")
    opened("s3://bucket/k")
    assert sent.by_boto3[3:] == [True, False], "another bucket of the same client"


@pytest.mark.parametrize(
    ("bucket", "region"),
    [
        ("arn:aws:s3:eu-central-1:123456789012:accesspoint:mine", "eu-central-1"),
        ("mine-abcdefghijklmnopqrstuvwxyz0123456789-s3alias", "eu-central-1"),
    ],
)
def test_access_points_are_reached_as_by_boto3(sent: Sent, bucket: str, region: str) -> None:
    compared(sent, f"s3://{bucket}/a b", **{"s3.region": region})


REDIRECT = (301, {"x-amz-bucket-region": "ap-south-1"}, b"<Error><Code>PermanentRedirect</Code></Error>")
MALFORMED = (
    400,
    {"x-amz-bucket-region": "ap-south-1"},
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>ap-south-1</Region></Error>",
)


@pytest.mark.parametrize("answer", [REDIRECT, MALFORMED], ids=["301", "400"])
def test_a_bucket_of_another_region_is_found_once_and_again_when_it_moves(
    sent: Sent, answer: tuple[int, dict[str, str], bytes]
) -> None:
    uri = "s3://bucket/a b"
    sent.answers.append(answer)
    opened(uri)
    assert "ap-south-1" in sent.requests[-1].url
    number = len(sent.requests)
    opened(uri)
    assert sent.by_boto3[number:] == [False]
    assert sent.requests[-1].url == sent.requests[-2].url
    assert "/ap-south-1/" in facts(sent.requests[-1])["scope"]
    elsewhere = {**answer[1], "x-amz-bucket-region": "sa-east-1"}
    moved = (answer[0], elsewhere, answer[2].replace(b"ap-south-1", b"sa-east-1"))
    sent.answers += [moved, moved]  # to our request, and to boto3's
    opened(uri)
    number = len(sent.requests)
    opened(uri)
    assert sent.by_boto3[number:] == [False]
    assert "/sa-east-1/" in facts(sent.requests[-1])["scope"]


def test_keys_that_end_are_asked_for_again(sent: Sent, environment: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def keys() -> dict[str, str]:
        made.append(f"KEY{len(made)}")
        ends = datetime.now(timezone.utc) + timedelta(seconds=1000)
        return {"access_key": made[-1], "secret_key": "s", "token": "t", "expiry_time": ends.isoformat()}

    found = RefreshableCredentials.create_from_metadata(keys(), keys, "test")
    environment.setattr("botocore.session.Session.get_credentials", lambda session: found)
    compared(sent, "s3://bucket/k")
    assert made == ["KEY0"]
    found._expiry_time = datetime.now(timezone.utc) + timedelta(seconds=5)
    opened("s3://bucket/k")
    assert not sent.by_boto3[-1]
    assert facts(sent.requests[-1])["scope"].startswith("KEY1/")


def test_keys_that_cannot_be_had_any_more_are_said(sent: Sent, environment: pytest.MonkeyPatch) -> None:
    now = datetime.now(timezone.utc)
    facts_of = {"access_key": "K", "secret_key": "s", "token": "t", "expiry_time": (now + timedelta(1)).isoformat()}

    def none() -> dict[str, str]:
        raise ConnectionError("the service of keys is away")

    found = RefreshableCredentials.create_from_metadata(facts_of, none, "test")
    environment.setattr("botocore.session.Session.get_credentials", lambda session: found)
    opened("s3://bucket/k")
    found._expiry_time = now - timedelta(1)
    with pytest.raises(ObjectStoreError, match="service of keys is away"):
        opened("s3://bucket/k")


def test_single_sign_on_gives_the_keys(sent: Sent, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """By the token that `aws sso login` has left."""
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("HOME", str(tmp_path))
    (tmp_path / "config").write_text(
        "[profile sso]\nsso_start_url = https://start.example\nsso_region = eu-central-1\n"
        "sso_account_id = 123456789012\nsso_role_name = reader\n",
        "utf-8",
    )
    ends = (datetime.now(timezone.utc) + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    token = {"startUrl": "https://start.example", "region": "eu-central-1", "accessToken": "t", "expiresAt": ends}
    environment.setattr("botocore.utils.SSOTokenLoader.__call__", lambda *_, **__: token)
    keys = {"accessKeyId": "SSO", "secretAccessKey": "s", "sessionToken": "t", "expiration": (time.time() + 9999) * 1e3}
    sent.answers.append((200, {}, json.dumps({"roleCredentials": keys}).encode()))
    opened("s3://bucket/k", **{"s3.profile": "sso"})
    opened("s3://bucket/k", **{"s3.profile": "sso"})
    assert sent.by_boto3[-2:] == [True, False]
    assert [facts(request)["scope"].split("/")[0] for request in sent.requests[-2:]] == ["SSO", "SSO"]


def test_a_web_identity_gives_the_keys(sent: Sent, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "token").write_text("of the cluster", "utf-8")
    environment.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    environment.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    sent.answers.append((200, {}, assumed("AssumeRoleWithWebIdentity")))
    opened("s3://bucket/k")
    opened("s3://bucket/k")
    assert sent.by_boto3[-2:] == [True, False]
    assert [facts(request)["scope"].split("/")[0] for request in sent.requests[-2:]] == ["ROLE", "ROLE"]


def test_a_role_gives_the_keys(sent: Sent) -> None:
    sent.answers.append((200, {}, assumed("AssumeRole")))
    options = {"s3.roleArn": "arn:aws:iam::123456789012:role/reader"}
    opened("s3://bucket/k", **options)
    opened("s3://bucket/k", **options)
    assert sent.by_boto3[-2:] == [True, False]
    assert [facts(request)["scope"].split("/")[0] for request in sent.requests[-2:]] == ["ROLE", "ROLE"]


def assumed(action: str) -> bytes:
    ends = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = "<AccessKeyId>ROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    result = f"<Credentials>{keys}<Expiration>{ends}</Expiration></Credentials><AssumedRoleUser><Arn>a</Arn>"
    result += "<AssumedRoleId>i</AssumedRoleId></AssumedRoleUser>"
    space = "https://sts.amazonaws.com/doc/2011-06-15/"
    return f'<{action}Response xmlns="{space}"><{action}Result>{result}</{action}Result></{action}Response>'.encode()


PROXIES = {
    "a proxy": {"HTTPS_PROXY": "http://proxy.example:3128"},
    "not for Amazon": {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": ".amazonaws.com"},
    "not for this bucket": {
        "HTTPS_PROXY": "http://proxy.example:3128",
        "NO_PROXY": "bucket.s3.eu-central-1.amazonaws.com",
    },
    "own certificates": {"AWS_CA_BUNDLE": "/etc/own.pem"},
    "those of another library": {"REQUESTS_CA_BUNDLE": "/etc/others.pem"},
    "an endpoint": {"AWS_ENDPOINT_URL_S3": "https://minio.example", "AWS_ENDPOINT_URL": "https://nowhere.example"},
}


@pytest.mark.parametrize("variables", PROXIES.values(), ids=PROXIES)
def test_the_way_there_is_that_of_boto3(sent: Sent, environment: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    request = compared(sent, "s3://bucket/k")
    assert (urlsplit(request.url).hostname == "minio.example") is ("AWS_ENDPOINT_URL" in variables)
