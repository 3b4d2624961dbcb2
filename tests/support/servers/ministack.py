"""SQS, S3, SNS, EventBridge and STS over HTTP on loopback: `with ministack_server() as url:`; a fifth of a second.

Any keys are good for it; `client(url, "s3")` has some. One server serves a whole test session: each test makes queues
and buckets of its own.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

REGION = "us-east-1"
ACCOUNT = "000000000000"
KEYS = {"access_key_id": "test", "secret_access_key": "test"}
"""As the keywords of `open_queue`."""
_START_SECONDS = 60
_names = itertools.count(1)


@contextmanager
def ministack_server() -> Iterator[str]:
    """The URL of a server of one's own; it keeps everything in memory."""
    variables = {"BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "SERVICES": "sqs,s3,sns,events,sts"}
    with _server(lambda port: ["-m", "ministack"], variables, "_ministack/health") as url:
        yield url


@contextmanager
def moto_server() -> Iterator[str]:
    """The same from moto: a second opinion on shallow queues. It may deliver a leased message again."""
    with _server(lambda port: ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}, "moto-api/") as url:
        yield url


@contextmanager
def _server(arguments: Callable[[int], list[str]], variables: Mapping[str, str], health: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="cuesqueue-aws-") as folder:
        process, url = _start(Path(folder), arguments, variables, health)
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def client(url: str, service: str) -> Any:
    """A client of one of its services; close it."""
    return _session().client(
        service,
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}),
    )


@cache
def _session() -> boto3.session.Session:
    """One for all: each new one reads the descriptions of the services again."""
    return boto3.session.Session()


def new_name(kind: str = "test") -> str:
    """A name that nobody has used."""
    return f"{kind}-{os.getpid()}-{next(_names)}"


def new_queue(url: str, *, fifo: bool = False, **attributes: str) -> str:
    """The URL of a new, empty queue."""
    name = new_name("queue") + (".fifo" if fifo else "")
    sqs = client(url, "sqs")
    try:
        made = sqs.create_queue(QueueName=name, Attributes={**({"FifoQueue": "true"} if fifo else {}), **attributes})
    finally:
        sqs.close()
    return str(made["QueueUrl"])


def _start(
    folder: Path, arguments: Callable[[int], list[str]], variables: Mapping[str, str], health: str
) -> tuple[subprocess.Popen[bytes], str]:
    log = folder / "log"
    for _ in range(3):  # somebody else may take the free port before the server does
        port = _free_port()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments(port)],
                cwd=folder,
                env={**os.environ, **variables, "GATEWAY_PORT": str(port)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        url = f"http://127.0.0.1:{port}"
        if _answers(process, f"{url}/{health}"):
            return process, url
        process.kill()
        process.wait()
    raise RuntimeError(f"{arguments(0)} did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:  # URLError is one
            time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
