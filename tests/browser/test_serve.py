"""The page in a real browser, over a store that a running query fills. It also makes the pictures of the docs.

`CUESQUEUE_WRITE_PICTURES=1` writes those anew, into docs/how-to/images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from shard_store.completeness.comparing import Category, Scope, Tally
from shard_store.model import Content, ErrorRecord, Position, Split
from shard_store.store import open_store
from support.browser import Watched, chromium, running_browser, serving
from support.coordinator_world import World
from support.filling import filling
from support.store_backends import Pipeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here; Debian's package chromium has it")

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "images"
TOKEN = "a token of the tests, long enough"
HOSTILE = "s3://bucket/<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
TEXTS = {
    "malformed-record": "line 7 is no JSON object: it ends within a text",
    "missing-object": "there is no such object: it was deleted or renamed after it was announced",
    "price < 0": "the price is negative",
}
WIDTHS = (1100, 400)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PICTURES: tuple[tuple[str, str, int, Literal["light", "dark"]], ...] = (
    ("serve-light", "/", 1100, "light"),
    ("serve-dark-narrow", "/pipeline?name=returns", 400, "dark"),
)
PATHS = (
    "/",
    "/pipeline?name=orders",
    "/search?q=s3://landing/orders/1-0.json",
    "/certificates",
    "/errors?cause=malformed-record",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store with a day of history, a dead pipeline, a stopped one, and a query that runs."""
    world = World(tmp_path_factory.mktemp("world"))
    _past(world)
    with filling(world):
        with world.store() as store:
            while not any(one.pipeline == "files" and one.total.objects >= 10 for one in store.status()):
                time.sleep(0.05)
        yield world


def _past(world: World) -> None:
    """Pipelines whose time has gone by: the store's clock is set back, and comes forward."""
    now = time.time()
    clock = [now - 30 * 3600]
    with open_store(world.store_url, clock=lambda: clock[0]) as store:
        us, other = (Pipeline.start(store, name, name) for name in ("orders", "returns"))
        number = 0
        while clock[0] < now - 400:
            busy = 2 + round(clock[0] / 3600) % 7
            number += 1
            lag = 2.0 + busy / 3
            _deliver(us, clock[0] - lag, lag * 3, [f"s3://landing/orders/{number}-{part}.json" for part in range(busy)])
            if number % 3 == 0:
                _deliver(other, clock[0] - 4.0, 9.0, [f"s3://landing/returns/{number}.json"])
            clock[0] += 350
        plan = us.planned(HOSTILE)
        causes = ["malformed-record"] * 5 + ["missing-object"] * 2 + ["price < 0"]
        digest = plan.identity.delivery_hash
        records = [
            ErrorRecord("record", cause, TEXTS[cause], HOSTILE, digest, Position(str(number)))
            for number, cause in enumerate(causes)
        ]
        store.record_errors("orders", "orders", records)
        us.publish(plan)
        other.open("s3://landing/returns/waits.json")
        tally = Tally()
        for part in range(40):
            tally.add(f"s3://landing/orders/{part}", 1, None, Category.PUBLISHED)
        store.certify(Scope("orders", "s3://landing/orders/", None, 1, "{}"), "listing", tally, "somebody")
        tally.add("s3://landing/orders/lost", 1, None, Category.MISSING)
        store.certify(Scope("returns", "s3://landing/returns/", None, 1, "{}"), "listing", tally, "somebody")


def _deliver(us: Pipeline, sent: float, slowest: float, ids: list[str]) -> None:
    """A micro-batch of objects whose messages were sent then, but for one that was sent earlier."""
    times = [sent - slowest, *[sent] * (len(ids) - 1)]
    contents = [
        Content(i, i, 1 << 20, None, "queue", f"message of {i}", sent_at=round(at * 1_000_000))
        for i, at in zip(ids, times, strict=True)
    ]
    us.snapshot(*us.store.open_shards(us.token, us.source, contents).values())
    us.publish(us.plan(), Split(f"/data/{us.source}/{us.seq}.parquet", 40_000 * len(ids), len(ids) << 19))
    us.confirm()
    us.store.heartbeat(us.token, stale_after=60.0)


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    with serving(world.store_url) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def watched(browser: Browser, address: str) -> Iterator[Watched]:
    """A page that fails the test if anything in it breaks, or is asked for elsewhere."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    found = Watched.of(context.new_page())
    yield found
    context.close()
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(address)] == []


def drawn(page: Page) -> None:
    page.wait_for_selector("[data-drawn]")
    assert page.locator(".chart canvas").count() == 2


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways but what scrolls by itself."""
    found: bool = page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return found


def test_all_pipelines_are_seen_and_one_is_followed(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(address)
    assert [page.locator(f"#pipelines .state.{state}").count() for state in ("running", "dead")] == [1, 2]
    assert "2 unhealthy" in page.inner_text("h1")
    drawn(page)
    page.click("[data-range=hours]")
    page.wait_for_selector('[data-drawn="hours"]')
    page.click("text=orders >> nth=0")
    page.wait_for_url("**/pipeline?name=orders")
    assert page.inner_text("h1").startswith("orders")
    drawn(page)
    assert page.locator("#hours tbody tr").count() > 20
    assert "malformed-record" in page.inner_text("#causes")


def test_the_numbers_go_on_while_the_query_runs(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(f"{address}/pipeline?name=files")

    before = page.inner_text("dl")
    deadline = time.monotonic() + 60
    while page.inner_text("dl").partition("in all")[2] == before.partition("in all")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        page.reload()


def test_numbers_are_renewed_without_loading_the_page_again(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    page.goto(f"{address}/pipeline?name=files")
    drawn(page)
    page.fill("input[name=q]", "half a name")
    before = page.inner_text("dl")
    deadline = time.monotonic() + 60
    while page.inner_text("dl").partition("in all")[2] == before.partition("in all")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        page.clock.run_for(16_000)
    assert page.input_value("input[name=q]") == "half a name"
    drawn(page)
    context.close()


def test_the_legend_says_the_newest_numbers(watched: Watched, address: str) -> None:
    watched.page.goto(f"{address}/pipeline?name=orders")
    drawn(watched.page)
    watched.page.wait_for_function("!document.querySelector('[data-chart=lag] .u-legend').innerText.includes('--')")
    legend = watched.page.inner_text("[data-chart=lag] .u-legend")
    assert "half within" in legend
    assert "99 of 100 within" in legend
    assert legend.count(" s") == 2


def test_an_error_leads_to_its_objects_story(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(address)
    page.click("#causes >> text=missing-object")
    page.click("#errors tbody a[href^='/search']")
    page.wait_for_selector(".outcome")


def test_an_object_is_found_by_hand(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(address)
    page.fill("input[name=q]", "s3://landing/orders/1-0.json")
    page.click("text=Find")
    assert "published by attempt" in page.inner_text(".outcome")
    page.fill("input[name=q]", "s3://landing/orders/nowhere")
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("h1 >> text=Not found")


def test_no_script_in_a_name_or_a_cause_runs(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(f"{address}/search")
    page.fill("input[name=q]", HOSTILE)
    page.click("text=Find")
    page.wait_for_selector(".outcome")
    assert HOSTILE in page.inner_text("main")
    assert page.title() == "Find - cuesqueue"
    page.goto(address)
    assert "price < 0" in page.inner_text("#causes")


def test_the_browser_refuses_scripts_that_are_not_files_of_ours(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    refused = Watched.of(page)
    page.goto(address)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = true\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in line for line in refused.complaints)
    context.close()


def test_certificates_are_listed(watched: Watched, address: str) -> None:
    watched.page.goto(f"{address}/certificates")
    assert watched.page.locator("#certificates .state.complete").count() == 1
    assert watched.page.locator("#certificates .state.incomplete").count() == 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PATHS)
def test_every_page_fits_a_telephone_and_a_screen(watched: Watched, address: str, path: str, width: int) -> None:
    watched.page.set_viewport_size({"width": width, "height": 800})
    watched.page.goto(address + path)
    if path in ("/", "/pipeline?name=orders"):
        drawn(watched.page)
    assert fits(watched.page)


def test_a_page_and_all_that_it_loads_is_small(watched: Watched, address: str) -> None:
    sizes: list[int] = []
    watched.page.on("response", lambda answer: sizes.append(len(answer.body())))
    watched.page.goto(address)
    drawn(watched.page)
    watched.page.wait_for_load_state("networkidle")
    assert len(sizes) >= 5
    assert sum(sizes) < 200_000


def test_without_javascript_all_numbers_are_there(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/pipeline?name=orders")
    assert "Charts need JavaScript" in page.inner_text("main")
    assert page.locator("#hours tbody tr").count() > 20
    context.close()


def test_light_and_dark_differ_and_both_can_be_read(browser: Browser, address: str) -> None:
    seen = {}
    for scheme in SCHEMES:
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(address)
        seen[scheme] = [_luminance(page.evaluate(f"getComputedStyle(document.body).{what}")) for what in _COLOURS]
        context.close()
    for text, ground in seen.values():
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) > 7
    assert (seen["light"][0] < seen["light"][1]) != (seen["dark"][0] < seen["dark"][1])


_COLOURS = ("color", "backgroundColor")


def _luminance(rgb: str) -> float:
    parts = [int(part) / 255 for part in rgb[rgb.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_token_is_typed_once(browser: Browser, world: World) -> None:
    with serving(world.store_url, token=TOKEN) as guarded:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{guarded}/pipeline?name=orders")
        assert page.url == f"{guarded}/login"
        page.fill("input[name=token]", "not the token at all")
        page.press("input[name=token]", "Enter")
        page.wait_for_selector(".bad >> text=not the token")
        page.fill("input[name=token]", TOKEN)
        page.press("input[name=token]", "Enter")
        page.wait_for_selector("#pipelines")
        assert page.evaluate("document.cookie") == ""
        context.close()


def test_the_pictures_of_the_docs_are_made(browser: Browser, address: str, tmp_path: Path) -> None:
    folder = IMAGES if os.environ.get("CUESQUEUE_WRITE_PICTURES") else tmp_path
    for name, path, width, scheme in PICTURES:
        viewport: ViewportSize = {"width": width, "height": 900 if width > 400 else 1400}
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        page.goto(address + path)
        drawn(page)
        page.click("[data-range=hours]")
        page.wait_for_selector('[data-drawn="hours"]')
        page.mouse.wheel(0, -10_000)  # a click scrolls
        page.wait_for_function("scrollY === 0")
        page.screenshot(path=folder / f"{name}.png", full_page=width == 1100)
        context.close()
        assert (folder / f"{name}.png").stat().st_size < 180_000
    assert {path.name for path in IMAGES.iterdir()} == {f"{name}.png" for name, *_ in PICTURES}
