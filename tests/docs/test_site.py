"""The site: built from the same pages, strictly; what it links to is there, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.snippets import PAGES, ROOT

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
    written -= {Path("decisions/template.md")}
    wanted = {page.parent if page.name in ("index.md", "README.md") else page.with_suffix("") for page in written}
    wanted |= {Path(), Path("changelog"), Path("contributing"), Path("security")}
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
            is_other_file = found.suffix in (".json", ".yml") and found.is_file()
            assert found in pages or is_other_file, f"{page}: {link}"
            assert not parts.fragment or f'id="{parts.fragment}"' in pages[found], f"{page}: {link}"
            seen += 1
    assert seen > 1000


def test_the_pages_load_nothing_from_another_host(site: Path) -> None:
    tags = [tag for _, html in html_of(site) for tag in _LOADED.findall(html)]
    assert tags
    assert not [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
    asks_the_repository = 'data-md-component="source"'  # the theme's script, for stars and forks
    assert not [page for page, html in html_of(site) if asks_the_repository in html]


def test_tables_lists_and_code_are_not_left_as_text(site: Path) -> None:
    """Markdown of the repository that the site's parser would take for a paragraph."""
    for page, html in html_of(site):
        assert not re.search(r"<p>\s*(?:\||```)|\n(?:- |\|---)", html.split("<article")[1]), page
