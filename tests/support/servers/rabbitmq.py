"""A real RabbitMQ: `with rabbitmq_server() as server: server.url`; about five seconds, from Debian's package.

There is none on PyPI, so only `make integration` has it: it installs `rabbitmq-server` where it may, and skips with a
reason where it may not. The node, its port mapper (epmd) and its data belong to the block alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from support.servers import debian
from support.servers.debian import NotInstalled

_START_SECONDS = 90
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONTROL = _SERVER.with_name("rabbitmqctl")


class RabbitServer:
    """One node. `stop` and `start` keep its data and its port; `control` runs `rabbitmqctl` on it."""

    def __init__(self, folder: Path, settings: str, arguments: str) -> None:
        self._folder = folder
        self.port = _free_port()
        self._epmd_port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "plugins").write_text("[].\n")
        # the user of the tests may come from any loopback address; nothing listens elsewhere
        (folder / "rabbitmq.conf").write_text(f"loopback_users.guest = true\nlog.console = false\n{settings}")
        (folder / "home").mkdir()
        self._environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "RABBITMQ_NODENAME": f"cuesqueue{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {arguments}",
        }

    @property
    def url(self) -> str:
        """Address of the default virtual host, to which `?source=...` is added."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> None:
        output = self._folder / "output"
        with output.open("wb") as log:
            self._process = subprocess.Popen(
                [str(_SERVER)],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"RabbitMQ did not start:\n{output.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the node as an administrator would; what is durable is there after the next start."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def freeze(self) -> None:
        """Connections stay open and nobody answers, until `thaw`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Stop for good, with the port mapper that the node has started."""
        self.stop()
        subprocess.run(
            ["epmd", "-port", str(self._epmd_port), "-kill"], env=self._environment, capture_output=True, check=False
        )

    def control(self, *arguments: str) -> str:
        """`rabbitmqctl ARGUMENTS`; takes about two seconds."""
        done = subprocess.run(
            [str(_CONTROL), "--quiet", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _answers(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(f"{self.url}?socket_timeout=5")).close()
        except (AMQPError, OSError):
            return False
        return True


@contextmanager
def rabbitmq_server(settings: str = "", arguments: str = "") -> Iterator[RabbitServer]:
    """A server of one's own, with more lines of rabbitmq.conf and arguments of Erlang; its data ends with the block."""
    if not _SERVER.exists():
        debian.install("rabbitmq-server")
    if not _SERVER.exists():
        raise NotInstalled(f"rabbitmq-server is not installed: there is no {_SERVER}")
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-rabbitmq-"))
    server = RabbitServer(folder, settings, arguments)
    try:
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
