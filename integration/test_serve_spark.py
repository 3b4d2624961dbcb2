"""A real query fills a store, and a real browser watches it: a bad object is found, reopened, and the query dies.

Chromium and promtool come from Debian's packages, where they may be installed.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine.conftest import spark
from shard_store.store import open_store
from support.browser import Watched, chromium, running_browser, serving
from support.engine.queries import described, start
from support.engine.world import World, eventually
from support.servers.debian import NotInstalled, install
from support.servers.fixtures import gcs_server
from support.servers.prometheus import unpacked

__all__ = ["gcs_server", "spark"]  # the fixture: one Spark for all tests here

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def browser() -> None:
    if chromium() is None:
        try:
            install("chromium")
        except NotInstalled as error:
            pytest.skip(str(error))


@pytest.fixture
def promtool(tmp_path: Path) -> str:
    """A path with promtool on it."""
    try:
        return f"{unpacked(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    except NotInstalled as error:
        pytest.skip(str(error))


def test_the_alert_rules_and_the_metrics_pass_promtool(promtool: str) -> None:
    expect("tests/unit/test_monitoring.py", PATH=promtool)


def test_the_page_in_a_browser(browser: None) -> None:
    expect("tests/browser/test_serve.py")


def expect(tests: str, **variables: str) -> None:
    """In a process of its own: what is installed is looked for when the tests are imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


def test_a_running_query_is_watched_and_its_bad_object_is_found_and_reopened(
    spark: SparkSession, tmp_path: Path, browser: None
) -> None:
    world = World(tmp_path / "world")
    rows = world.feed(0, 3)
    query = start(spark, described(world, trigger={"processingTime": "0 seconds"}))
    bad = world.root / "in" / "bad.json.gz"
    try:
        with open_store(world.store_url) as store, running_browser() as chrome, serving(world.store_url) as address:
            eventually("three objects", lambda: sum(one.total.objects for one in store.status()) == 3)
            watched = Watched.of(chrome.new_page())
            page = watched.page
            page.goto(address)
            assert page.locator("#pipelines .state.running").count() == 1
            page.wait_for_selector("[data-drawn]")
            assert page.locator("canvas").count() == 2
            bad.write_bytes(b"\x1f\x8b, and no gzip behind its magic bytes")
            world.publish([bad.as_uri()])
            eventually("the bad object", lambda: any(one.total.errors for one in store.status()))
            page.goto(address)
            page.wait_for_selector("#causes tbody tr")  # the page is live, and one reading of the store serves a second
            [cause] = page.locator("#causes tbody tr td:first-child").all_inner_texts()
            page.fill("input[name=q]", bad.as_uri())
            page.click("text=Find")
            page.wait_for_selector(".outcome >> text=quarantined")
            assert cause in page.inner_text("main")
            bad.write_bytes(gzip.compress(b'{"id": 7, "name": "repaired"}\n'))
            command = [sys.executable, "-m", "queue_source.commands.main", "shards", "reopen", "--store"]
            subprocess.run([*command, world.store_url, bad.as_uri(), "--reason", "repaired"], check=True)
            eventually("the repaired object", lambda: (7, "repaired") in world.published())
            page.goto(f"{address}/search?q={bad.as_uri()}")
            assert page.inner_text(".outcome").startswith("published")
            assert "reopen" in page.inner_text("main")
            assert json.loads(urllib.request.urlopen(f"{address}/healthz").read())["healthy"]
            query.stop()
            text = urllib.request.urlopen(f"{address}/metrics").read().decode()
            assert f'cuesqueue_errors_total{{cause="{cause}",pipeline="files",source="files"}} 1.0' in text
            assert watched.complaints == []
            assert [url for url in watched.requests if not url.startswith(address)] == []
    finally:
        query.stop()
    assert sorted([*rows, (7, "repaired")]) == world.published()
