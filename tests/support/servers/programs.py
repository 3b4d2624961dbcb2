"""What database servers of one's own have in common: a free port, waiting for an answer, an end."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, exc

_START_SECONDS = 60
_END_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: list[Any], folder: Path, user: dict[str, Any]) -> None:
    """Run a program to its end, as `user` (the settings of subprocess); raises with what it said when it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, **user)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr).decode(errors='replace')}")


def start(command: list[Any], folder: Path, user: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to the file `log` in the folder."""
    with (folder / "log").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, **user)


def answers(server: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server lets us in; false when it ends or takes too long."""
    engine = create_engine(url)
    deadline = time.monotonic() + _START_SECONDS
    try:
        while server.poll() is None and time.monotonic() < deadline:
            try:
                with engine.connect():
                    return True
            except exc.OperationalError:
                time.sleep(0.02)
        return False
    finally:
        engine.dispose()


def end(server: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Send the signal and wait; a server that does not end of itself is killed."""
    if server.poll() is None:
        server.send_signal(number)
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
    server.wait()
