"""PySpark's daemon with workers that Spark leaves alone."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

import psutil
import pytest

SECRET = b"secret"


def text(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


@pytest.mark.parametrize(("module", "traces"), [("pyspark.daemon", True), ("queue_source.spark.daemon", False)])
def test_a_worker_whose_socket_spark_has_closed_ends_without_a_trace(module: str, traces: bool) -> None:
    environment = {
        **os.environ,
        "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark 4.1 and later set it
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", module, "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        assert running.stderr is not None
        (port,) = struct.unpack("!i", running.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as spark:
            worker = psutil.Process(struct.unpack("!i", spark.recv(4))[0])
            spark.sendall(text(SECRET) + text(b"another version"))
            spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed, with what is in it
        worker.wait(60)
        running.stdin.close()  # ends the daemon
        assert running.wait(60) is not None
        assert ("Traceback" in running.stderr.read().decode()) is traces
