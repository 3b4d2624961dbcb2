"""Objects in Azure, over HTTP against a server of the tests: by the options a user would set."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, ObjectStoreError, OptionError
from queue_source.formats.base import BadRecords, Part
from queue_source.options import AzureOptions, StorageOptions, parse_reader_options
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.schema.columns import parse_columns
from queue_source.schema.location import SchemaLocation
from queue_source.storage.files import azure_arguments, azure_place, resolve, stat_objects
from queue_source.uris import plain_uri
from support.servers.azure import KEY, TOKEN, AzureServer, azure_server
from support.sessions import LEAST

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
ABFSS = "abfss://landing@lake.dfs.core.windows.net"


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    with azure_server() as server:
        server.blobs["lake/landing/in/a b.csv"] = b"1,x\n2,y\n"
        yield server


def storage(azure: AzureServer, **options: str) -> StorageOptions:
    given = {**LEAST, "fileFormat": "csv", "azure.endpointUrl": azure.url, **options}
    return parse_reader_options(given).content.storage


def rows(uri: str, store: StorageOptions, **more: Any) -> list[int]:
    batches = read_object(uri, SCHEMA, FormatOptions("csv"), BadRecords("FAILFAST"), storage=store, **more)
    return [row["a"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("credentials", [{"azure.accessKey": KEY}, {"azure.sasToken": TOKEN}], ids=["key", "token"])
def test_objects_of_azure_are_read(azure: AzureServer, credentials: dict[str, str]) -> None:
    store = storage(azure, **credentials)
    assert rows(f"{ABFSS}/in/a b.csv", store) == [1, 2]
    assert rows(f"{ABFSS}/in/a b.csv", store, part=Part(1, 8)) == [2]
    assert stat_objects([f"{ABFSS}/in/a b.csv", f"{ABFSS}/gone"], store)[1] is None
    with pytest.raises(BadObject, match="missing-object"):
        rows(f"{ABFSS}/gone", store)
    named = storage(azure, **credentials, **{"azure.accountName": "lake"})
    assert rows("az://landing/in/a b.csv", named) == [1, 2]


def test_a_key_from_a_file_is_read_where_the_object_is(azure: AzureServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    store = storage(azure, **{"azure.accessKey": f"file:{tmp_path}/key"})
    assert rows(f"{ABFSS}/in/a b.csv", store) == [1, 2]
    assert KEY not in repr(store) + str(pickle.dumps(store))


def test_what_is_not_allowed_is_the_stores_fault_and_shows_no_secret(azure: AzureServer) -> None:
    with pytest.raises(ObjectStoreError) as refused:
        rows(f"{ABFSS}/in/a b.csv", storage(azure, **{"azure.sasToken": "sv=1&sig=wrongtoken"}))
    assert "wrongtoken" not in str(refused.value)
    assert "wrongtoken" not in repr(storage(azure, **{"azure.sasToken": "sv=1&sig=wrongtoken"}))


def test_schemas_are_kept_in_azure(azure: AzureServer) -> None:
    store = storage(azure, **{"azure.accessKey": KEY})
    kept = SchemaLocation(f"{ABFSS}/schemas", store)
    assert kept.latest() is None
    assert kept.record(parse_columns("a INT")).version == 0
    assert kept.record(parse_columns("b INT")).schema.names == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"azure.accessKey": KEY, "azure.sasToken": TOKEN}, "azure.sasToken"),
        ({"azure.clientSecret": "s", "azure.clientId": "c"}, "azure.clientSecret"),
    ],
)
def test_credentials_that_contradict_each_other_are_refused(azure: AzureServer, options: Any, wrong: str) -> None:
    with pytest.raises(OptionError) as refused:
        storage(azure, **options)
    assert refused.value.option == wrong


def test_uris_name_their_account_and_keys_go_to_no_other(azure: AzureServer) -> None:
    store = storage(azure, **{"azure.accessKey": KEY, "azure.accountName": "other"})
    with pytest.raises(BadObject, match=r"account 'lake', and azure\.accountName is 'other'"):
        resolve(f"{ABFSS}/x", store)
    with pytest.raises(ObjectStoreError, match=r"set azure\.accountName"):
        resolve("az://landing/x", storage(azure))
    with pytest.raises(BadObject, match="abfss://container@account"):
        resolve("abfss://landing/x", storage(azure))


@pytest.mark.parametrize(
    "host",
    [
        "lake.attacker.example",
        "127.0.0.1:8080",
        "lake.dfs.core.windows.net.attacker.example",
        "lake.dfs.core.windows.net:8080",
        "attacker.example#.dfs.core.windows.net",
        "attacker#.dfs.core.windows.net",
        "lake@attacker.dfs.core.windows.net",
    ],
)
def test_credentials_go_to_no_host_that_is_not_of_azure(host: str) -> None:
    with pytest.raises(BadObject, match=r"no domain of Azure|abfss://container@account") as refused:
        azure_place(f"abfss://c@{host}/k", "abfss", f"c@{host}", AzureOptions(sas_token=TOKEN))
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("domain", ["z01.blob.storage.azure.net", "blob.local.azurestack.external"])
def test_the_domain_of_the_blob_service_allows_the_one_form_of_its_uris(domain: str) -> None:
    uri = plain_uri(f"abfss://landing@lake.{domain}/a")
    options = AzureOptions(domains=(domain,))
    account, found, container = azure_place(uri, "abfss", uri.split("/")[2], options)
    assert (account, container) == ("lake", "landing")
    assert azure_arguments(account, found, options)["blob_storage_authority"] == f".{domain}"


def test_domains_of_azure_and_those_that_the_user_names_are_taken(azure: AzureServer) -> None:
    own = storage(azure, **{"azure.domains": "z01.dfs.storage.azure.net, my.cloud"}).azure
    for domain in ("dfs.core.windows.net", "blob.core.usgovcloudapi.net", "dfs.fabric.microsoft.com", "my.cloud"):
        assert azure_place(f"abfss://c@lake.{domain}/k", "abfss", f"c@lake.{domain}", own) == ("lake", domain, "c")
    with pytest.raises(OptionError, match=r"azure\.domains.*is not a domain"):
        storage(azure, **{"azure.domains": "https://my.cloud/"})


def test_clouds_of_their_own_and_principals_are_passed_on() -> None:
    options = AzureOptions(tenant_id="t", client_id="c", client_secret="s")
    assert azure_arguments("lake", "dfs.core.chinacloudapi.cn", options) == {
        "account_name": "lake",
        "tenant_id": "t",
        "client_id": "c",
        "client_secret": "s",
        "dfs_storage_authority": ".dfs.core.chinacloudapi.cn",
        "blob_storage_authority": ".blob.core.chinacloudapi.cn",
    }
    assert azure_arguments("lake", "dfs.core.windows.net", AzureOptions()) == {"account_name": "lake"}
