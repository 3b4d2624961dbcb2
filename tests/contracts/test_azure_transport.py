"""How Azure's client reaches the service: proxies, certificates, connections, redirections and broken answers."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from queue_source.errors import QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues.azurequeue import AzureQueue
from support.servers.azure_queue import KEY

URL = "azurequeue://account/files"
RECEIPT = "6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1/AgAA"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *map(str.upper, PROXIES), *BUNDLES):
        monkeypatch.delenv(name, raising=False)


class Host(ThreadingHTTPServer):
    """A host that answers each request with an empty list of messages, or as `answer` does."""

    request_queue_size = 64
    daemon_threads = False  # they are waited for

    def __init__(self, answer: Answer | None = None, context: ssl.SSLContext | None = None) -> None:
        self.asked: list[str] = []
        self.connections = self.closed = 0
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def setup(self) -> None:
                host.connections += 1
                super().setup()

            def finish(self) -> None:
                super().finish()
                host.closed += 1

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self.serve
                raise AttributeError(name)

            def serve(self) -> None:
                host.asked.append(f"{self.command} {self.path}")
                if answer is not None:
                    answer(self)
                elif self.command == "GET":
                    respond(self, 200, b"<QueueMessagesList/>")
                else:
                    respond(self, 204)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of clients that hang up."""


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if status != 204:
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(answer: Answer | None = None, context: ssl.SSLContext | None = None) -> Iterator[Host]:
    with Host(answer, context) as host:
        thread = Thread(target=host.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield host
        finally:
            host.shutdown()
            thread.join()


@pytest.fixture
def host() -> Iterator[Host]:
    with serving() as host:
        yield host


def opened(endpoint: str, **access: str) -> AzureQueue:
    return AzureQueue(URL, endpoint_url=endpoint, **(access or {"access_key": KEY}))


# --- proxies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_the_environments_proxy_is_asked(host: Host, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, host.url)
    with opened("http://queues.invalid") as queue:
        assert queue.receive(1, 60, 0) == []
        assert queue.acknowledge([Receipt(RECEIPT)]) == set()
    place = "http://queues.invalid/account/files/messages"
    assert [asked.partition("?")[0] for asked in host.asked] == [f"GET {place}", f"DELETE {place}/{RECEIPT[:36]}"]


def test_the_proxy_for_https_is_asked_for_a_way_and_not_for_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda handler: respond(handler, 403)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        with opened("https://queues.invalid") as queue:
            with pytest.raises(QueueUnavailable, match="cannot be reached"):
                queue.acknowledge([Receipt(RECEIPT)])
    assert proxy.asked == ["CONNECT queues.invalid:443"]


@pytest.mark.parametrize("hosts", ["127.0.0.1", "elsewhere.invalid,127.0.0.0/8", "*"])
def test_a_host_that_needs_no_proxy_is_asked_itself(host: Host, monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", hosts)
    with opened(host.url) as queue:
        assert queue.receive(1, 60, 0) == []
    assert host.asked[0].startswith("GET /account/files/messages?")


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate of 127.0.0.1 that nobody else has signed, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("certificates") / "host.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*form) + signed.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.mark.parametrize("variable", BUNDLES)
def test_the_certificates_of_the_environment_count_and_no_others_are_accepted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(context=context) as host:
        with opened(host.url) as queue:
            with pytest.raises(QueueUnavailable, match=r"cannot be reached.*CERTIFICATE_VERIFY_FAILED"):
                queue.acknowledge([Receipt(RECEIPT)])
        assert host.asked == []
        monkeypatch.setenv(variable, str(certificate))
        with opened(host.url) as queue:
            assert queue.receive(1, 60, 0) == []


# --- connections -----------------------------------------------------------------------------------------------------


def test_connections_are_kept_for_all_threads(host: Host) -> None:
    with opened(host.url) as queue:
        for _ in range(5):
            assert queue.acknowledge([Receipt(f"{RECEIPT}{number}") for number in range(40)]) == set()
    assert len(host.asked) == 200
    assert host.connections <= 16


def test_a_queue_that_is_closed_closes_its_connections(host: Host) -> None:
    with opened(host.url) as queue:
        assert queue.receive(1, 60, 0) == []
        assert (host.connections, host.closed) == (1, 0)
    until = time.monotonic() + 3
    while host.closed < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert host.closed == 1


def test_no_more_connections_are_opened_than_the_session_has_and_requests_wait_for_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_source.queues.azurequeue.address._CONNECTIONS", 2)
    with opened(host.url) as queue:
        assert queue.acknowledge([Receipt(f"{RECEIPT}{number}") for number in range(40)]) == set()
    assert (len(host.asked), host.connections <= 2) == (40, True)


def test_a_redirection_leads_to_the_host_that_it_names(host: Host) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 307, Location=f"{host.url}/account/elsewhere/messages?a=b")

    with serving(redirect) as first, opened(first.url) as queue:
        assert queue.receive(1, 60, 0) == []
    assert host.asked == ["GET /account/elsewhere/messages?a=b"]
    assert len(first.asked) == 1


# --- broken answers --------------------------------------------------------------------------------------------------


def cut_in_the_body(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<QueueMessagesList>")
    handler.close_connection = True


def cut_in_the_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 2")
    handler.close_connection = True


def none(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"220 mail.example ESMTP\r\n")
    handler.close_connection = True


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<Queu\r\n")
    handler.close_connection = True


@pytest.mark.parametrize("answer", [cut_in_the_body, cut_in_the_head, none, no_http, endless])
def test_a_broken_answer_is_passing_trouble_and_no_secret_is_in_the_error(answer: Answer) -> None:
    with ExitStack() as stack:
        host = stack.enter_context(serving(answer))
        queue = stack.enter_context(opened(host.url, sas_token="sv=1&sig=secret"))
        with pytest.raises(QueueUnavailable, match="did not answer as it should") as raised:
            queue.acknowledge([Receipt(RECEIPT)])
    assert len(host.asked) == 1, "a deletion is not repeated"
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
