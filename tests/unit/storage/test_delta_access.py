"""Our storage options in the words of delta-rs."""

from __future__ import annotations

import pytest

from queue_source.errors import OptionError
from queue_source.options.connections import AzureOptions, StorageOptions
from queue_source.sinks.delta.tables import delta_storage_options, delta_uri
from queue_source.storage import s3_client

KEYS = StorageOptions(endpoint="http://localhost:9000", region="eu-central-1", access_key="id", secret_key="secret")


def test_a_local_folder_needs_none() -> None:
    assert delta_storage_options("/lake/orders", KEYS) == {}
    assert delta_storage_options("file:///lake/orders", KEYS) == {}
    assert delta_uri("file:///lake/ü x") == "/lake/ü x"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("with_boto3", [True, False])
def test_s3_is_reached_with_the_keys_and_the_endpoint_of_the_options(
    monkeypatch: pytest.MonkeyPatch, scheme: str, with_boto3: bool
) -> None:
    monkeypatch.setattr(s3_client, "is_installed", lambda: with_boto3)
    assert delta_storage_options(f"{scheme}://lake/orders", KEYS) == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "secret",
        "aws_region": "eu-central-1",
        "aws_endpoint_url": "http://localhost:9000",
        "aws_allow_http": "true",
        "conditional_put": "etag",
    }


def test_secrets_may_be_references_and_an_endpoint_is_https_unless_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_SECRET", "of the variable")
    storage = StorageOptions(endpoint="minio.example", region="r", access_key="id", secret_key="env:THE_SECRET")
    options = delta_storage_options("s3://lake/orders", storage)
    assert options["aws_secret_access_key"] == "of the variable"
    assert options["aws_endpoint_url"] == "https://minio.example"
    assert "aws_allow_http" not in options


def test_without_keys_requests_are_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = StorageOptions(region="r", anonymous=True)
    options = delta_storage_options("s3://lake/orders", storage)
    assert options == {"aws_region": "r", "aws_skip_signature": "true", "conditional_put": "etag"}


def test_a_role_is_assumed_by_boto3_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "is_installed", lambda: False)
    with pytest.raises(OptionError, match=r"option 's3.roleArn': is assumed by boto3"):
        delta_storage_options("s3://lake/orders", StorageOptions(region="r", role_arn="arn:aws:iam::1:role/writer"))


def test_azure_is_reached_with_the_options_of_azure() -> None:
    azure = AzureOptions(account_key="key", endpoint="http://localhost:10000")
    assert delta_storage_options("abfss://c@lake.dfs.core.windows.net/orders", StorageOptions(azure=azure)) == {
        "azure_storage_account_name": "lake",
        "azure_storage_account_key": "key",
        "azure_storage_endpoint": "http://localhost:10000/lake",
        "azure_allow_http": "true",
    }


@pytest.mark.parametrize("uri", ["s3n://lake/orders", "hdfs://lake/orders"])
def test_schemes_that_delta_rs_does_not_know_are_refused(uri: str) -> None:
    with pytest.raises(OptionError, match="its scheme is not one of"):
        delta_uri(uri)
