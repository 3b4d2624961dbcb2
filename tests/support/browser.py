"""A real browser over a running server of a store: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SRC = Path(__file__).resolve().parents[2] / "src"
ARGUMENTS = [
    "--no-sandbox",  # as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """The program, where there is one: `apt-get install chromium`."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def running_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serving(store_url: str, *, token: str = "", said: list[str] | None = None) -> Iterator[str]:
    """The address of `cuesqueue serve` over the store, in a process of its own; `said` gets what it printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    program = [sys.executable, "-m", "queue_source.commands.main", "serve", "--port", str(port)]
    surroundings = {**os.environ, "PYTHONPATH": str(SRC), "CUESQUEUE_SERVE_TOKEN": token, "CUESQUEUE_STORE": store_url}
    with subprocess.Popen(program, env=surroundings, stderr=subprocess.PIPE, text=True) as server:
        try:
            _await(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)
            _, printed = server.communicate(timeout=30)
    if said is not None:
        said.append(printed)
    assert (server.returncode, "Traceback" in printed) == (0, False), printed


def _await(port: int, server: subprocess.Popen[str]) -> None:
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(server.communicate()[1])


@dataclass
class Watched:
    """A page, and what it asked for, said and broke."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, page: Page) -> Watched:
        found = cls(page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("console", lambda line: found.complaints.append(line.text) if line.type != "log" else None)
        return found
