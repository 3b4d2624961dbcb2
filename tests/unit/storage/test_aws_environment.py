"""What boto3 takes from the environment and the configuration files counts for objects too; options go before it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.session import Session

from queue_source.commands.doctor import State, examine_prefixes
from queue_source.errors import BadObject, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client
from queue_source.storage.buckets import open_bucket
from queue_source.storage.files import open_object, stat_objects
from queue_source.storage.s3_client import for_pyarrow
from support.aws_environment import forget_aws
from support.servers.ministack import client, new_name
from support.servers.s3 import S3Server, s3_server
from support.sessions import LEAST

NOWHERE = "http://127.0.0.1:9"
_GIVEN = (
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_DEFAULT_PROFILE AWS_REGION "
    "AWS_DEFAULT_REGION AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_IGNORE_CONFIGURED_ENDPOINT_URLS AWS_CA_BUNDLE"
)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a new process that has keys and nothing else of AWS; `tmp_path/config` is its file."""
    for name in _GIVEN.split():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    forget_aws()
    yield monkeypatch
    forget_aws()


@pytest.fixture
def uri(ministack_url: str) -> str:
    """An object of a real server."""
    made, bucket = client(ministack_url, "s3"), new_name("bucket")
    made.create_bucket(Bucket=bucket)
    made.put_object(Bucket=bucket, Key="in/a.csv", Body=b"1,x\n")
    made.close()
    return f"s3://{bucket}/in/a.csv"


def storage(**options: str) -> StorageOptions:
    return parse_reader_options({**LEAST, "fileFormat": "csv", **options}).content.storage


def read(uri: str, **options: str) -> bytes:
    with open_object(uri, storage(**options)) as file:
        return file.read()


CONFIGURED = {
    "AWS_ENDPOINT_URL": ({"AWS_ENDPOINT_URL": "{url}"}, ""),
    "AWS_ENDPOINT_URL_S3": ({"AWS_ENDPOINT_URL_S3": "{url}", "AWS_ENDPOINT_URL": NOWHERE}, ""),
    "endpoint_url": ({}, "[default]\nendpoint_url = {url}\n"),
    "services": (
        {"AWS_PROFILE": "here"},
        f"[profile here]\nendpoint_url = {NOWHERE}\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = {{url}}\n",
    ),
}


@pytest.mark.parametrize("given", CONFIGURED.values(), ids=CONFIGURED)
def test_the_endpoint_of_the_environment_is_that_of_objects(
    environment: pytest.MonkeyPatch, tmp_path: Path, uri: str, ministack_url: str, given: tuple[dict[str, str], str]
) -> None:
    variables, config = given
    for name, value in variables.items():
        environment.setenv(name, value.format(url=ministack_url))
    (tmp_path / "config").write_text(config.format(url=ministack_url), "utf-8")
    assert read(uri) == b"1,x\n"
    assert [stat and stat.size for stat in stat_objects([uri], storage())] == [4]
    bucket = open_bucket(uri, storage())
    assert len(bucket.page(uri).objects) == 1
    bucket.close()
    assert for_pyarrow(storage())[0].endpoint == ministack_url


def test_without_boto3_the_variables_of_the_endpoint_count(
    environment: pytest.MonkeyPatch, uri: str, ministack_url: str
) -> None:
    environment.setitem(sys.modules, "boto3", None)
    environment.setitem(sys.modules, "botocore", None)
    environment.setitem(sys.modules, "botocore.configprovider", None)
    environment.setenv("AWS_ENDPOINT_URL", ministack_url)
    environment.setenv("AWS_REGION", "us-east-1")
    assert read(uri) == b"1,x\n"


def test_options_go_before_the_environment(environment: pytest.MonkeyPatch, uri: str, ministack_url: str) -> None:
    environment.setenv("AWS_ENDPOINT_URL", NOWHERE)
    environment.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    options = {"s3.endpointUrl": ministack_url, "aws.region": "us-east-1"}
    assert read(uri, **options) == b"1,x\n"
    found, _ = for_pyarrow(storage(**options))
    assert (found.endpoint, found.region) == (ministack_url, "us-east-1")
    assert s3_client.client(storage(**options)).meta.region_name == "us-east-1"


def test_endpoints_may_be_ignored_as_aws_says_it(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", NOWHERE)
    environment.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert for_pyarrow(storage())[0].endpoint is None
    assert "amazonaws.com" in s3_client.client(storage()).meta.endpoint_url


@pytest.mark.parametrize(
    ("variables", "config", "region"),
    [
        ({"AWS_DEFAULT_REGION": "eu-north-1"}, "", "eu-north-1"),
        ({"AWS_REGION": "eu-south-1"}, "", "eu-south-1"),
        ({}, "[default]\nregion = eu-west-3\n", "eu-west-3"),
        ({}, "", "us-east-1"),
    ],
)
def test_the_region_is_found_where_the_tools_of_aws_find_it(
    environment: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], config: str, region: str
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    (tmp_path / "config").write_text(config, "utf-8")
    assert s3_client.client(storage()).meta.region_name == region
    assert for_pyarrow(storage())[0].region == region


@pytest.fixture
def machine(environment: pytest.MonkeyPatch) -> Iterator[str]:
    """The metadata service of a machine in Frankfurt, whose URL this is."""

    class Metadata(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.answer(b"token")

        def do_GET(self) -> None:
            self.answer(b"eu-central-1a")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is said."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    environment.delenv("AWS_EC2_METADATA_DISABLED")
    environment.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_machine_of_aws_knows_its_region(environment: pytest.MonkeyPatch, machine: str) -> None:
    """So does pyarrow alone, by which versions before 0.3 read and wrote."""
    assert s3_client.client(storage()).meta.region_name == "eu-central-1"
    assert for_pyarrow(storage())[0].region == "eu-central-1"
    environment.setenv("AWS_REGION", "eu-south-1")
    assert for_pyarrow(storage())[0].region == "eu-south-1"


def test_the_region_of_the_machine_is_not_that_of_another_endpoint(
    environment: pytest.MonkeyPatch, machine: str
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", NOWHERE)
    assert for_pyarrow(storage())[0].region == "us-east-1"


def test_the_certificates_of_the_environment_are_used(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("AWS_CA_BUNDLE", f"{tmp_path}/no-such-file.pem")
    assert for_pyarrow(storage())[1] == f"{tmp_path}/no-such-file.pem"
    with s3_server() as server:
        environment.setenv("AWS_ENDPOINT_URL", server.url.replace("http", "https"))
        with pytest.raises(ObjectStoreError, match=r"SSL validation failed.*No such file"):
            read("s3://bucket/key")


def test_the_profile_of_the_environment_gives_keys_of_any_kind(
    environment: pytest.MonkeyPatch, tmp_path: Path, uri: str, ministack_url: str
) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_PROFILE", "job")
    answer = '{"Version": 1, "AccessKeyId": "made", "SecretAccessKey": "secret"}'
    (tmp_path / "keys").write_text(answer, "utf-8")
    config = f"[profile job]\nendpoint_url = {ministack_url}\ncredential_process = cat {tmp_path}/keys\n"
    (tmp_path / "config").write_text(config, "utf-8")
    assert read(uri) == b"1,x\n"
    assert for_pyarrow(storage())[0].access_key == "made"


def test_what_needs_no_keys_is_read_without_any(environment: pytest.MonkeyPatch) -> None:
    """Public buckets, as pyarrow reads them."""
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    with s3_server() as server:
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        server.objects["public/a"] = b"1,x\n"
        assert read("s3://public/a") == b"1,x\n"


def test_threads_that_read_at_once_look_for_keys_once(environment: pytest.MonkeyPatch) -> None:
    looked = []
    environment.setattr(s3_client, "_NO_KEYS_SECONDS", 1e9)  # no minute ends meanwhile

    def look(session: Session) -> None:
        looked.append(session)
        time.sleep(0.05)

    environment.setattr(Session, "get_credentials", look)
    with s3_server() as server:
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        server.objects["public/a"] = b"1,x\n"
        assert [stat and stat.size for stat in stat_objects(["s3://public/a"] * 8, storage())] == [4] * 8
    assert len(looked) == 1


def test_the_doctor_reads_as_a_task_does(environment: pytest.MonkeyPatch, uri: str, ministack_url: str) -> None:
    environment.setenv("AWS_ENDPOINT_URL", ministack_url)
    prefix = uri.removesuffix("a.csv")
    found = list(examine_prefixes([prefix, f"{prefix}typo/"], storage()))
    assert [(one.check, one.state) for one in found] == [
        ("prefix", State.OK),
        ("object", State.OK),
        ("prefix", State.WARNING),
    ]


REQUESTS = {"small": (1_000, 1), "at the edge": (256 << 10, 1), "large": (20 << 20, 3)}


@pytest.mark.parametrize(("size", "most"), REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("announced", [True, False])
def test_an_object_takes_as_few_requests_as_it_can(size: int, most: int, announced: bool) -> None:
    """One opens it, and brings it if it is small; each large read is one more."""
    with s3_server() as server:
        server.objects["b/k"] = bytes(size)
        with open_object("s3://b/k", storage(**server.options), size=size if announced else None) as file:
            assert file.size() == size
            assert len(file.read(16 << 20) + file.read()) == size
        assert requests(server) == most


@pytest.mark.parametrize("announced", [True, False])
def test_a_large_read_takes_its_memory_once(announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`binaryFile` reads an object of up to 2 GB at once."""
    with s3_server() as server:
        server.objects["b/k"] = data = bytes(8 << 20)
        with open_object("s3://b/k", storage(**server.options), size=len(data) if announced else None) as file:
            monkeypatch.setattr(type(file.version), "read_range", lambda *_: data)
            assert file.read() is data


def test_a_bucket_that_can_have_no_such_name_is_said_in_one_line(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadObject, match='Invalid bucket name "a:b"') as raised:
        read("s3://a:b/k", **{"s3.endpointUrl": NOWHERE})
    assert "\n" not in str(raised.value)


def test_an_empty_object_is_empty_and_its_etag_is_known() -> None:
    with s3_server() as server:
        server.objects["b/k"] = b""
        with open_object("s3://b/k", storage(**server.options)) as file:
            assert (file.size(), file.read(), file.version.etag) == (0, b"", "d41d8cd98f00b204e9800998ecf8427e")


def requests(server: S3Server) -> int:
    return sum(server.requests.values())


ROLE = "arn:aws:iam::000000000000:role/reader"


def test_a_role_is_assumed_with_the_keys_that_are_found(
    environment: pytest.MonkeyPatch, uri: str, ministack_url: str
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", ministack_url)
    options = {"s3.roleArn": ROLE, "s3.roleExternalId": "id"}
    assert read(uri, **options) == b"1,x\n"
    keys = s3_client.client(storage(**options))._get_credentials()
    assert keys.method == "cuesqueue-role"
    assert keys.access_key != "test"
    assert keys.token


def test_a_role_that_no_keys_ask_for_is_said(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ObjectStoreError, match="Unable to locate credentials"):
        read("s3://b/k", **{"s3.roleArn": ROLE, "s3.endpointUrl": NOWHERE})
