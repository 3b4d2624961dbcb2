"""The adapter of Azure Storage Queue without a server: URLs, access, the content of messages, receipts, errors."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from hypothesis import given
from hypothesis import strategies as st

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt
from queue_source.queues import open_queue, queue_name
from queue_source.queues.azurequeue import Leases
from queue_source.queues.azurequeue.address import Access, parse_address, service_errors
from queue_source.queues.azurequeue.messages import LARGEST, Encoding, content_of, text_of

KEY = base64.b64encode(b"the key of an account").decode()
EVENT = '[{"topic": "/subscriptions/x", "eventType": "Microsoft.Storage.BlobCreated"}]'
VARIABLES = ("CONNECTION_STRING", "ACCOUNT", "KEY", "SAS_TOKEN")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


# --- URLs and access -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "access", "service"),
    [
        ("azurequeue://account/files", {}, "https://account.queue.core.windows.net"),
        ("azurequeue://Account/files/", {}, "https://account.queue.core.windows.net"),
        ("azurequeue:///files", {"account_name": "account"}, "https://account.queue.core.windows.net"),
        ("azurequeue://account/files", {"account_name": "lake"}, "https://account.queue.core.windows.net"),
        ("azurequeue://account/files", {"endpoint_url": "http://localhost:1"}, "http://localhost:1/account"),
        ("azurequeue://account/files", {"endpoint_url": "http://localhost:1/account/"}, "http://localhost:1/account"),
        (
            "azurequeue://account/files",
            {"endpoint_url": "account.queue.core.chinacloudapi.cn"},
            "https://account.queue.core.chinacloudapi.cn",
        ),
        (
            "azurequeue:///files",
            {"connection_string_secret": f"AccountName=account;AccountKey={KEY};EndpointSuffix=core.usgovcloudapi.net"},
            "https://account.queue.core.usgovcloudapi.net",
        ),
        (
            "azurequeue:///files",
            {"connection_string_secret": f"AccountName=account;AccountKey={KEY};QueueEndpoint=http://h:1/account;"},
            "http://h:1/account",
        ),
    ],
)
def test_url_and_options_name_the_queues_service(url: str, access: dict[str, str], service: str) -> None:
    address, _ = parse_address(url, Access(**access))
    assert (address.service, address.name) == (service, "azurequeue://account/files")
    assert queue_name(url) == "files"


@pytest.mark.parametrize(
    ("url", "access", "problem"),
    [
        ("azurequeue://account", {}, "names no Azure queue"),
        ("azurequeue://account/Files", {}, "small letters"),
        ("azurequeue://account/a--b", {}, "single hyphens"),
        ("azurequeue://account/ab", {}, "3 to 63"),
        ("azurequeue://account/files/more", {}, "names no Azure queue"),
        ("azurequeue://account.queue.core.windows.net/files", {}, "the account's name alone"),
        ("azurequeue:///files", {}, "names no account"),
        ("azurequeue://account/files?sig=abc", {}, "options azureQueue"),
        ("azurequeue://account:abc@host/files", {}, "set the options azureQueue"),
        ("azurequeue://other/files", {"connection_string_secret": f"AccountName=account;AccountKey={KEY}"}, "'other'"),
        ("azurequeue://account/files", {"connection_string_secret": "AccountName=account;abc"}, "has no AccountKey"),
        ("azurequeue:///files", {"connection_string_secret": "UseDevelopmentStorage=true"}, "emulator"),
    ],
)
def test_a_wrong_address_is_refused_with_the_next_step_and_without_secrets(
    url: str, access: dict[str, str], problem: str
) -> None:
    with pytest.raises(QueueConfigurationError, match=problem) as refused:
        open_queue(url, **access)
    assert KEY not in str(refused.value)
    assert "abc" not in str(refused.value).replace("abc@", "")


def test_what_azures_command_line_reads_counts_for_its_own_account_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    assert parse_address("azurequeue://account/files", Access())[1].access_key == KEY
    assert parse_address("azurequeue://other/files", Access())[1] == Access()
    assert parse_address("azurequeue://account/files", Access(sas_token="t"))[1] == Access(sas_token="t")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=other;SharedAccessSignature=sv=1&sig=2")
    assert parse_address("azurequeue://other/files", Access())[1].sas_token == "sv=1&sig=2"


def test_secrets_are_in_no_repr() -> None:
    names = ("access_key", "sas_token", "connection_string_secret", "client_secret")
    assert KEY not in repr(Access(**dict.fromkeys(names, KEY)))


def test_a_key_that_is_none_is_refused_before_anything_is_sent() -> None:
    with open_queue("azurequeue://account/files", access_key="no base64!", endpoint_url="http://127.0.0.1:9") as queue:
        with pytest.raises(QueueConfigurationError, match="not in base64"):
            queue.acknowledge([Receipt("6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1/AgAA")])


# --- messages --------------------------------------------------------------------------------------------------------


@given(
    body=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode(errors="replace"))),
    tag=st.text(st.characters(codec="utf-8"), max_size=10),
    headers=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.text(st.characters(codec="utf-8"), max_size=5),
        max_size=3,
    ),
    encoding=st.sampled_from(Encoding),
)
def test_every_message_comes_out_as_it_went_in(
    body: bytes, tag: str, headers: dict[str, str], encoding: Encoding
) -> None:
    text = text_of(Outgoing(body, tag, headers), encoding)
    assert content_of(text, encoding) == (body, tag, headers)


def test_what_can_be_text_is_sent_as_it_is_and_a_text_that_would_be_decoded_is_not() -> None:
    assert text_of(Outgoing(b'{"a":1}'), Encoding.AUTO) == '{"a":1}'
    assert text_of(Outgoing(b"abfss://c@a/k"), Encoding.TEXT) == "abfss://c@a/k"
    assert text_of(Outgoing(b"\xff"), Encoding.BASE64) == "/w=="
    like_an_event = base64.b64encode(EVENT.encode())
    assert content_of(text_of(Outgoing(like_an_event), Encoding.AUTO), Encoding.AUTO).body == like_an_event


@pytest.mark.parametrize("newlines", [False, True])
def test_events_are_decoded_whether_they_are_in_base64_or_not(newlines: bool) -> None:
    encoded = base64.b64encode(EVENT.encode()).decode()
    if newlines:
        encoded = "\r\n".join(encoded[start : start + 76] for start in range(0, len(encoded), 76))
    assert content_of(encoded, Encoding.AUTO).body == EVENT.encode()
    assert content_of(EVENT, Encoding.AUTO).body == EVENT.encode()
    assert content_of(encoded, Encoding.BASE64).body == EVENT.encode()
    assert content_of(encoded, Encoding.TEXT).body == encoded.encode()
    uri = base64.b64encode(b"abfss://files@account.dfs.core.windows.net/a.json").decode()
    assert content_of(uri, Encoding.AUTO).body.startswith(b"abfss://")


@pytest.mark.parametrize("text", ["deadbeef", "order123", "e30", "!!!!", "eyJhIjoxfQ=", "\u00fcber", "TWFu"])
def test_a_text_that_is_not_surely_base64_stays_as_it_is(text: str) -> None:
    assert content_of(text, Encoding.AUTO).body == text.encode()


def test_wrong_base64_is_not_lost_but_is_the_body_as_it_came() -> None:
    assert content_of("not base64 at all", Encoding.BASE64).body == b"not base64 at all"
    assert content_of("YQ=", Encoding.BASE64).body == b"YQ="


@pytest.mark.parametrize(
    "text",
    [
        '{"cuesqueue.message":1,',
        '{"cuesqueue.message":1,"text":1}',
        '{"cuesqueue.message":1,"text":"a","headers":[]}',
        '{"cuesqueue.message":1,"base64":"*"}',
        '{"cuesqueue.message":1,"tag":"a"}',
        '{"cuesqueue.message":1,"text":"a","tag":"\\ud800"}',
        '{"cuesqueue.message":1,"text":"a","headers":{"k":"\\ud800"}}',
        '{"cuesqueue.message":1,"text":"a","headers":{"\\udfff":"v"}}',
    ],
)
def test_an_envelope_that_is_not_ours_after_all_is_the_body(text: str) -> None:
    assert content_of(text, Encoding.AUTO) == (text.encode(), "", {})


def test_what_is_too_large_is_refused_with_both_sizes() -> None:
    assert len(text_of(Outgoing(b"x" * LARGEST), Encoding.AUTO)) == LARGEST
    with pytest.raises(ValueError, match="49153 bytes takes 655"):
        text_of(Outgoing(b"\xff" * 49_153), Encoding.AUTO)


def test_an_envelope_is_text_that_others_can_read() -> None:
    text = text_of(Outgoing(b"hello", "a.b", {"k": "\u00fc"}), Encoding.AUTO)
    assert json.loads(text) == {"cuesqueue.message": 1, "text": "hello", "tag": "a.b", "headers": {"k": "\u00fc"}}


# --- receipts --------------------------------------------------------------------------------------------------------

ID = "6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1"


def test_the_receipt_of_a_caller_stays_while_the_services_own_changes() -> None:
    leases = Leases()
    receipt = leases.add(ID, "first+/=", 1e12)
    lease = leases.find([receipt])[receipt]
    assert (lease.message_id, lease.pop_receipt) == (ID, "first+/=")
    leases.extend(receipt, lease, "second", 1e12)
    assert leases.find([receipt, receipt]) == {receipt: lease}
    assert lease.pop_receipt == "second"
    leases.end(receipt, lease)
    assert lease.is_over
    assert leases.find([receipt])[receipt].pop_receipt == "first+/="
    assert len(leases) == 0


def test_leases_that_ended_long_ago_take_no_memory() -> None:
    leases = Leases()
    for number in range(100):
        leases.add(ID, f"r{number}", 0.0)
    kept = leases.add(ID, "kept", 1e12)
    leases.find([kept])
    assert len(leases) == 1


def test_a_receipt_of_no_message_is_found_nowhere() -> None:
    texts = ("", "x", f"{ID}/", f"{ID}/a b", f"../{ID}/a", f"{ID}/a?x=y#z", "1.0")
    assert Leases().find([Receipt(text) for text in texts]) == {}


def test_an_acknowledgement_waits_for_an_extension_under_way_and_has_its_receipt() -> None:
    leases = Leases()
    receipt = leases.add(ID, "first", 1e12)
    lease = leases.find([receipt])[receipt]
    lease.lock.acquire()
    seen: list[str] = []

    def acknowledge() -> None:
        with leases.find([receipt])[receipt].lock:
            seen.append(lease.pop_receipt)

    thread = threading.Thread(target=acknowledge)
    thread.start()
    leases.extend(receipt, lease, "second", 1e12)
    lease.lock.release()
    thread.join()
    assert seen == ["second"]


# --- errors ----------------------------------------------------------------------------------------------------------


class Answer:
    reason = "Refused"
    request: Any = None

    def __init__(self, status: int, code: str) -> None:
        self.status_code = status
        self.headers = {"x-ms-error-code": code}

    def text(self, *_: Any) -> str:
        return "<Error><Message>https://h/q?sv=1&sig=abc</Message></Error>"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (HttpResponseError(response=Answer(404, "QueueNotFound")), QueueNotFound, "create it"),
        (HttpResponseError(response=Answer(403, "AuthenticationFailed")), QueueConfigurationError, "clock"),
        (
            HttpResponseError(response=Answer(403, "AuthorizationPermissionMismatch")),
            QueueConfigurationError,
            "Storage Queue Data Contributor",
        ),
        (HttpResponseError(response=Answer(403, "Unheard")), QueueConfigurationError, "credentials"),
        (HttpResponseError(response=Answer(503, "ServerBusy")), QueueUnavailable, "ServerBusy"),
        (HttpResponseError(response=Answer(409, "QueueBeingDeleted")), QueueUnavailable, "QueueBeingDeleted"),
        (HttpResponseError(response=Answer(429, "")), QueueUnavailable, "429"),
        (HttpResponseError(response=Answer(400, "InvalidInput")), QueueError, "InvalidInput"),
        (ClientAuthenticationError("no credential at https://x/?sig=abc"), QueueConfigurationError, "clientId"),
        (ServiceRequestError("https://h/q?sig=abc"), QueueUnavailable, "cannot be reached"),
        (ServiceResponseError("broken"), QueueUnavailable, "broken"),
    ],
)
def test_errors_of_the_client_are_ours_with_the_next_step_and_without_tokens(
    error: Exception, kind: type[QueueError], text: str
) -> None:
    with pytest.raises(kind, match=text) as raised, service_errors("azurequeue://account/files"):
        raise error
    assert type(raised.value) is kind
    assert "abc" not in str(raised.value)
    assert raised.value.__cause__ is None
