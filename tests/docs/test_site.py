"""The site: built from the same pages, strictly; what it links to is there, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import pytest

from support.browser import Watched, chromium, running_browser
from support.snippets import PAGES, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is installed by the locks: 'make test'")
REPOSITORY = "https://github.com/cuesqueue/cuesqueue"
_LINK = re.compile(r'<a [^>]*?href="([^"]*)"')
_LOADED = re.compile(r'<(?:link[^>]*? rel="(?:stylesheet|preconnect|icon)"[^>]*?|script[^>]*?|img[^>]*?)>')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    surroundings = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def html_of(folder: Path) -> Iterator[tuple[Path, str]]:
    for page in sorted(folder.rglob("*.html")):
        if page.name != "404.html":  # its links begin at the site's root
            yield page, page.read_text("utf-8")


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    written = {page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")}
    wanted = {page.parent if page.name in ("index.md", "README.md") else page.with_suffix("") for page in written}
    wanted |= {Path("changelog"), Path("contributing"), Path("security")}
    assert {page.parent.relative_to(site) for page, _ in html_of(site)} == wanted


def test_links_lead_to_pages_of_the_site_or_to_files_of_the_repository(site: Path) -> None:
    pages = dict(html_of(site))
    seen = 0
    for page, html in pages.items():
        for link in map(unescape, _LINK.findall(html)):
            parts = urlsplit(link)
            if link.startswith(f"{REPOSITORY}/blob/main/"):
                assert (ROOT / unquote(parts.path.split("/blob/main/")[1])).exists(), f"{page}: {link}"
            if parts.scheme or not parts.path:
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            found = target / "index.html" if target.is_dir() else target
            is_other_file = found.suffix in (".json", ".yml", ".svg") and found.is_file()
            assert found in pages or is_other_file, f"{page}: {link}"
            assert not parts.fragment or f'id="{parts.fragment}"' in pages[found], f"{page}: {link}"
            seen += 1
    assert seen > 1000


def test_the_pages_load_nothing_from_another_host(site: Path) -> None:
    tags = [tag for _, html in html_of(site) for tag in _LOADED.findall(html)]
    assert tags
    assert not [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
    assert not [page for page, html in html_of(site) if 'class="mermaid"' in html]  # the theme would load its script
    asks_the_repository = 'data-md-component="source"'  # the theme's script, for stars and forks
    assert not [page for page, html in html_of(site) if asks_the_repository in html]


def test_tables_lists_and_code_are_not_left_as_text(site: Path) -> None:
    """Markdown of the repository that the site's parser would take for a paragraph."""
    for page, html in html_of(site):
        assert not re.search(r"<p>\s*(?:\||```)|\n(?:- |\|---)", html.split("<article")[1]), page


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


_STICKS_OUT = """
[...document.querySelectorAll("article *")].filter(element => {
  if (element.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false
  for (let around = element; around; around = around.parentElement)
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(around).overflowX)) return false
  return true
}).map(element => element.outerHTML.slice(0, 100))
"""
WIDE = ("", "reference/options/", "reference/commands/", "explanation/exactly-once/", "how-to/from-auto-loader/")


@pytest.mark.skipif(chromium() is None, reason="no Chromium here; Debian's package chromium has it")
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1200, "light")])
def test_wide_pages_fit_a_telephone_and_a_screen_and_ask_no_other_host(
    browser: Browser, address: str, width: int, scheme: Literal["dark", "light"]
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    watched = Watched.of(context.new_page())
    for path in WIDE:
        watched.page.goto(f"{address}/{path}")
        assert watched.page.evaluate(_STICKS_OUT) == [], path
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width, path
    context.close()
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((address, "data:"))] == []


_CUT_OFF = """
[...document.querySelectorAll("article pre code")].filter(code => code.scrollWidth > code.clientWidth + 1)
  .map(code => code.innerText.slice(0, 100))
"""
LONG_LINES = ("tutorial/", "how-to/routes/", "how-to/iceberg/", "how-to/foreach-batch/", "how-to/group-by/")


@pytest.mark.skipif(chromium() is None, reason="no Chromium here; Debian's package chromium has it")
def test_a_screen_of_1200_pixels_shows_the_menu_and_whole_lines_of_code(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = context.new_page()
    for path in LONG_LINES:
        page.goto(f"{address}/{path}")
        assert page.locator(".md-sidebar--primary").evaluate("menu => menu.getBoundingClientRect().left") == 0, path
        assert page.evaluate(_CUT_OFF) == [], path
    context.close()


@pytest.mark.skipif(chromium() is None, reason="no Chromium here; Debian's package chromium has it")
def test_the_name_of_an_option_leads_to_its_line(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/reference/options/")
    page.click("li > a[href='#reader-visibilityTimeout']")
    assert page.url.endswith("#reader-visibilityTimeout")
    assert 0 < page.locator("#reader-visibilityTimeout").evaluate("line => line.getBoundingClientRect().top") < 300
    context.close()


@pytest.mark.skipif(chromium() is None, reason="no Chromium here; Debian's package chromium has it")
def test_the_site_has_an_icon_of_its_own(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/how-to/load/")
    icon = page.locator("link[rel=icon]").evaluate("link => link.href")
    assert icon == f"{address}/icon.svg"
    answer = page.goto(icon)
    assert answer is not None
    assert answer.status == 200
    context.close()
