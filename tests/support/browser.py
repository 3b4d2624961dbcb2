"""A real browser over a running server of a store: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from queue_source.serve.app import create_app
from queue_source.serve.guard import Access
from queue_source.serve.reads import StoreReads
from shard_store.store import open_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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
def serving(store_url: str, *, token: str | None = None) -> Iterator[str]:
    """The address of a server over the store."""
    with open_store(store_url, create=False) as store:
        reads = StoreReads(store)
        app = create_app(reads, Access(token=token))
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, name="serve")
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
            reads.close()


@dataclass
class Watched:
    """A page, and what it asked for, said and broke."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    received: int = 0

    @classmethod
    def of(cls, page: Page) -> Watched:
        found = cls(page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("console", lambda line: found.complaints.append(line.text) if line.type != "log" else None)
        return found
