"""The programs of deploy/orders, with the kinds of servers of the page on Docker Compose, without containers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from docs.test_pages import Reader
from support.browser import serving
from support.engine.harness import environment
from support.servers.fixtures import postgres_url
from support.servers.ministack import ministack_server
from support.servers.postgres import new_database
from support.snippets import ROOT

__all__ = ["postgres_url"]
ORDERS = ROOT / "deploy" / "orders"
TOKEN = "only-for-this-machine"


@pytest.fixture
def host(tmp_path: Path, postgres_url: str) -> Iterator[Reader]:
    """Yield a reader's host with the surroundings that the services get."""
    with ministack_server() as url:
        found = Reader(tmp_path)
        found.environment |= environment() | {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "CUESQUEUE_STORE": new_database(postgres_url),
            "CHECKPOINTS": str(tmp_path),
        }
        yield found


@contextmanager
def reading(host: Reader) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(ORDERS / "read.py")]
    with (host.folder / "log").open("ab") as log:
        query = subprocess.Popen(command, cwd=host.folder, env=host.environment, stdout=log, stderr=log)
        try:
            yield query
        finally:
            for process in psutil.Process(query.pid).children(recursive=True):  # as a container that is killed
                process.kill()
            query.kill()
            query.wait()


def rows(host: Reader) -> int:
    done = subprocess.run(
        ["cuesqueue", "files", "--pipeline", "orders", "--json"], env=host.environment, capture_output=True, check=False
    )
    if done.returncode:
        return 0  # the reader has not made the store yet
    return sum(json.loads(line)["rows"] for line in done.stdout.splitlines())


def await_rows(host: Reader, count: int, query: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while (seen := rows(host)) < count:
        assert query.poll() is None, (host.folder / "log").read_text()[-4000:]
        assert time.monotonic() < deadline, (host.folder / "log").read_text()[-4000:]
        time.sleep(1)
    assert seen == count


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_orders_are_published_once_also_after_a_kill_and_the_metrics_say_so(host: Reader) -> None:
    prepare = f"python {ORDERS / 'prepare.py'}"
    host.run(prepare)
    host.run(prepare)  # as when the services are started again
    host.run(f"{prepare} 20")
    with reading(host) as query:
        await_rows(host, 20, query)
    host.run(f"{prepare} 10")
    with reading(host) as query:
        await_rows(host, 30, query)
        with serving(host.environment["CUESQUEUE_STORE"], token=TOKEN) as address:
            request = urllib.request.Request(f"{address}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request) as answer:
                metrics = answer.read().decode()
    assert 'cuesqueue_published_objects_total{pipeline="orders",source="orders"} 30.0' in metrics
