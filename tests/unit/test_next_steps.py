"""What a first day brings (a full disk, a closed port, no rights) is said with what to do about it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.queues.sqs import SqsQueue
from shard_store.errors import StoreUnavailable
from shard_store.sql.dialects import next_step
from shard_store.store import open_store


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_closed_port_of_the_store_is_said_with_the_next_step(driver: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"check that the server runs, and the host and port of the URL$"):
        open_store(f"{driver}://me:pw@127.0.0.1:9/db", patience=0.1, create=False)


def test_a_disk_that_takes_nothing_more_is_said_with_the_next_step(tmp_path: Path) -> None:
    """A limit of the process's files stands for the disk: SQLite says the same."""
    script = f"""
        import resource, signal
        from shard_store.store import open_store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        open_store("sqlite:///{tmp_path}/store.db", patience=0.1)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "shard_store.errors.StoreUnavailable: database" in last
    assert last.endswith("disk I/O error; free space on its disk, or mend what the system's log says of it")


@pytest.mark.parametrize(
    "cause",
    [
        "database or disk is full",
        "could not extend file: No space left on device",
        "(1021, 'Disk full; waiting for someone to free some space')",
        "(1114, 'The table is full')",
    ],
)
def test_a_store_without_room_is_said_with_the_next_step(cause: str) -> None:
    assert next_step(cause) == "; free space on its disk"
    assert next_step("deadlock detected") == ""


XML = """<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>
<Type>Sender</Type><Code>{}</Code><Message>Access is denied.</Message></Error></ErrorResponse>"""


class Answers(BaseHTTPRequestHandler):
    status, body = 200, ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay silent."""


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/123456789012/orders"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (403, XML.format("AccessDenied"), QueueConfigurationError, "AccessDenied: Access is denied; check the permis"),
        (403, "", QueueConfigurationError, "403: the answer is no error of SQS; check the permissions"),
        (401, "<html>log in</html>", QueueConfigurationError, "401: the answer is no error of SQS; check the permis"),
        (400, XML.format("Throttling"), QueueUnavailable, "Throttling: Access is denied"),
        (404, "<html>none</html>", QueueError, "404: the answer is no error of SQS; check the address of the endpoint"),
        (200, "<html>log in</html>", QueueError, "the answer is none of SQS; check the address of the endpoint"),
    ],
)
def test_an_answer_in_xml_or_of_another_program_is_said_in_words(
    service: str, status: int, body: str, kind: type[QueueError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "body", body)
    with SqsQueue(service, access_key_id="test", secret_access_key="test", region="eu-west-1") as queue:
        with pytest.raises(kind, match=said) as caught:
            queue.depth()
    assert type(caught.value) is kind
    assert "<" not in str(caught.value)
