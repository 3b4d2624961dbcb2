"""`cuesqueue serve`: who is answered, with which headers, what is shown of hostile names, and what stays bounded."""

from __future__ import annotations

import hmac
import itertools
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient
from typer.testing import CliRunner

from queue_source.commands.main import app as program
from queue_source.commands.shards import forget_shards
from queue_source.serve import guard
from queue_source.serve import reads as reads_module
from queue_source.serve.app import ASSETS, STATIC, create_app
from queue_source.serve.guard import COOKIE, Access
from queue_source.serve.reads import THREADS, WAITING, StoreReads
from shard_store.completeness.comparing import Category, Scope, Tally
from shard_store.errors import StoreUnavailable
from shard_store.model import ErrorRecord, Position, Split
from shard_store.operators.limits import StatusLimits
from shard_store.operators.shards import ShardCriteria
from shard_store.shards.activity import Report
from shard_store.shards.recording import Receipts
from shard_store.sql.schema import REVISION
from shard_store.store import ShardStore, open_store
from support.servers.programs import free_port
from support.store_backends import Pipeline, content

TOKEN = "a token of the tests, long enough"
HOSTILE = "s3://landing/<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202egpj.exe\x1b[31m"
HTML = {"accept": "text/html"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShardStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def client(store: ShardStore) -> Iterator[Callable[..., TestClient]]:
    """A browser on this machine; arguments are those of `Access`."""
    opened: list[StoreReads] = []

    def make(limits: StatusLimits | None = None, scheme: str = "http", **access: str) -> TestClient:
        opened.append(StoreReads(store))
        served = create_app(opened[-1], Access(**access), limits)  # type: ignore[arg-type]
        return TestClient(served, base_url=f"{scheme}://localhost:8642", follow_redirects=False)

    yield make
    for reads in opened:
        reads.close()


def published(store: ShardStore, name: str = "files", *ids: str) -> Pipeline:
    us = Pipeline.start(store, name, name)
    us.deliver(*(ids or ("s3://landing/1.json",)))
    return us


PATHS = [
    "/",
    "/metrics",
    "/healthz",
    "/login",
    "/search?q=x",
    "/certificates",
    "/errors",
    "/charts.json",
    "/static/page.css",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_headers_that_keep_browsers_from_doing_harm(
    client: Callable[..., TestClient], path: str
) -> None:
    for found in (client().get(path), client(token=TOKEN).get(path), client().post(path)):
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert found.headers["cache-control"] == "no-store"


def test_a_failure_of_ours_has_the_headers_too(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("boom")

    reads = StoreReads(store)
    monkeypatch.setattr(reads, "status", broken)
    served = TestClient(create_app(reads, Access()), base_url="http://localhost", raise_server_exceptions=False)
    found = served.get("/")
    reads.close()
    assert found.status_code == 500
    assert "boom" not in found.text
    assert found.headers["x-content-type-options"] == "nosniff"


def test_pages_have_no_script_or_style_of_their_own_and_load_nothing_from_elsewhere(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    published(store)
    browser = client()
    for path in ("/", "/pipeline?name=files", "/search?q=s3://landing/1.json", "/certificates", "/errors"):
        text = browser.get(path, headers=HTML).text
        assert not re.search(r"<style|<script(?! src=\"/static/)| style=| on\w+=|javascript:", text)
        assert {
            url for url in re.findall(r"(?:src|href|action)=\"([^\"]*)\"", text) if not url.startswith("/")
        } == set()


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:8642", 200),
        ("127.0.0.1", 200),
        ("[::1]:8642", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8642", 421),
        ("localhost@evil.example", 421),
        ("localhost:8642:1", 421),
        ("", 421),
    ],
)
def test_only_names_of_this_machine_are_answered(client: Callable[..., TestClient], host: str, code: int) -> None:
    for path in ("/", "/metrics", "/healthz", "/static/page.css"):
        assert client().get(path, headers={"host": host}).status_code == code


def test_a_name_that_is_allowed_is_answered(store: ShardStore) -> None:
    reads = StoreReads(store)
    served = TestClient(create_app(reads, Access.to(["Queues.example"], None)), base_url="http://queues.example")
    assert served.get("/").status_code == 200
    assert served.get("/", headers={"host": "other.example"}).status_code == 421
    reads.close()


@pytest.mark.parametrize("allowed", ["Queues.example.", "queues.example:443", "fe80::1", "[fe80::1]", "[fe80::1]:8642"])
def test_a_name_may_be_allowed_in_any_form_that_a_browser_sends(allowed: str) -> None:
    access = Access.to([allowed], None)
    assert access.knows("[fe80::1]:8642" if "::" in allowed else "queues.example:8642")
    assert not access.knows("other.example")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_answered(client: Callable[..., TestClient], method: str) -> None:
    for path in ("/", "/metrics", "/pipeline?name=files", "/search"):
        assert client().request(method, path).status_code == 405


def test_head_answers_as_get_without_a_body(client: Callable[..., TestClient]) -> None:
    for path in ("/", "/metrics", "/healthz"):
        found = client().head(path)
        assert (found.status_code, found.content) == (200, b"")


def test_a_token_is_asked_for_on_every_page_but_the_login(client: Callable[..., TestClient], store: ShardStore) -> None:
    published(store, "secret-name")
    browser = client(token=TOKEN)
    for path in ("/", "/metrics", "/search?q=x", "/certificates", "/charts.json", "/static/README.md", "/nothing"):
        found = browser.get(path)
        assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
        assert "secret-name" not in found.text
        page = browser.get(path, headers=HTML)
        assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert browser.get("/login").status_code == 200
    assert browser.get("/static/page.css").status_code == 200


@pytest.mark.parametrize(
    "header", [f"Basic {TOKEN}", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", TOKEN, "Bearer \xff"]
)
def test_another_authorization_is_refused(client: Callable[..., TestClient], header: str) -> None:
    assert client(token=TOKEN).get("/", headers=[(b"authorization", header.encode("latin-1"))]).status_code == 401


def test_the_token_opens_everything_as_a_bearer(client: Callable[..., TestClient], store: ShardStore) -> None:
    published(store)
    browser = client(token=TOKEN)
    for path in ("/", "/metrics", "/charts.json"):
        assert browser.get(path, headers={"authorization": f"bearer {TOKEN}"}).status_code == 200


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    access = Access(token=TOKEN)
    assert not access.is_token("x")
    assert access.is_token(TOKEN)
    assert [len(one) for pair in compared for one in pair] == [32] * 4


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_do_not_see(client: Callable[..., TestClient]) -> None:
    browser = client(token=TOKEN)
    found = browser.post("/login", data={"token": TOKEN})
    assert (found.status_code, found.headers["location"]) == (303, "/")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert browser.get("/").status_code == 200
    assert "Secure" in client(scheme="https", token=TOKEN).post("/login", data={"token": TOKEN}).headers["set-cookie"]


def test_a_wrong_login_sets_none(client: Callable[..., TestClient]) -> None:
    browser = client(token=TOKEN)
    bodies = [b"token=wrong", b"", b"token=" + b"x" * 5000, b"token=a&token=" + TOKEN.encode(), b"\xff", b"a&" * 100]
    for body in bodies:
        found = browser.post("/login", content=body)
        assert found.status_code == 401
        assert "set-cookie" not in found.headers
        assert "not the token" in found.text
    assert client().post("/login", data={"token": ""}).status_code == 404


def test_a_session_ends_and_cannot_be_made_without_the_token(client: Callable[..., TestClient]) -> None:
    then = Access(token=TOKEN, clock=lambda: time.time() - guard.SESSION - 1)
    others = Access(token="another token, also long enough")
    later = f"{int(time.time()) + 99999}.{Access(token=TOKEN).session().partition('.')[2]}"
    for value in (then.session(), others.session(), later, "", ".", "1", "9" * 50 + ".x", TOKEN):
        assert client(token=TOKEN).get("/", headers={"cookie": f"{COOKIE}={value}"}).status_code == 401
    good = Access(token=TOKEN).session()
    assert client(token=TOKEN).get("/", headers={"cookie": f"{COOKIE}={good}"}).status_code == 200


def test_health_says_a_word_to_everybody_and_names_to_those_who_may_read(
    client: Callable[..., TestClient], tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db", clock=lambda: time.time() - 3600) as earlier:
        Pipeline.start(earlier, "killed", "killed")
    browser = client(token=TOKEN)
    found = browser.get("/healthz")
    assert (found.status_code, found.json()) == (503, {"healthy": False})
    told = browser.get("/healthz", headers={"authorization": f"Bearer {TOKEN}"})
    assert told.status_code == 503
    assert "heartbeats ended" in told.json()["pipelines"]["killed"][0]


def test_health_has_the_limits_of_status(client: Callable[..., TestClient], store: ShardStore) -> None:
    us = Pipeline.start(store, "files", "files")
    plan = us.planned("a")
    store.record_errors("files", "files", [_bad(plan.identity.delivery_hash, "a")])
    us.publish(plan, Split("/x", 1, 1))
    assert client().get("/healthz").json() == {"healthy": True, "pipelines": {"files": []}}
    strict = client(StatusLimits(max_errors=0))
    assert strict.get("/healthz").status_code == 503
    assert strict.get("/healthz?pipeline=other").status_code == 503
    assert client().get("/healthz?pipeline=files").status_code == 200
    for unknown in ("pipeline=other", "source=other"):
        answer = client().get(f"/healthz?{unknown}")
        assert answer.status_code == 503
        assert answer.json()["error"] == "no such pipeline has started with this store"


def test_a_pipeline_that_has_ended_with_nothing_to_do_is_done(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    """As after a load; what still waits when its reader has ended makes it a stopped one."""
    us = Pipeline.start(store, "files", "files")
    store.retire(us.token, Report(stopped=True))
    assert '<span class="state done">done</span>' in client().get("/").text
    again = Pipeline.start(store, "files", "files")
    again.open("a")
    store.retire(again.token, Report(stopped=True))
    assert '<span class="state stopped">stopped</span>' in client().get("/").text


def _bad(delivery_hash: str, shard_id: str, cause: str = "malformed-record", detail: str = "why") -> ErrorRecord:
    return ErrorRecord("record", cause, detail, shard_id, delivery_hash, Position("1"))


def test_hostile_names_causes_and_details_are_text(client: Callable[..., TestClient], store: ShardStore) -> None:
    name = HOSTILE[13:].partition("\u202e")[0]  # the store takes printable names only
    us = Pipeline.start(store, name, name)
    plan = us.planned(HOSTILE)
    store.record_errors(us.source, us.source, [_bad(plan.identity.delivery_hash, HOSTILE, HOSTILE[:60], HOSTILE)])
    us.publish(plan, Split("/x", 1, 1))
    browser = client()
    paths = ["/", f"/pipeline?{urlencode({'name': us.source})}", f"/search?{urlencode({'q': HOSTILE})}"]
    paths += [
        f"/search?{urlencode({'q': '<script>alert(3)</script>'})}",
        f"/pipeline?{urlencode({'name': '<b>'})}",
    ]
    for path in paths:
        text = browser.get(path, headers=HTML).text
        assert "<script>" not in text
        assert "<img" not in text
        assert "<b>" not in text
        assert not set("\u202e\x1b") & set(text)
    assert "&lt;script&gt;alert(1)" in browser.get(paths[0]).text
    assert "&lt;script&gt;alert(1)" in browser.get(paths[2]).text
    metrics = browser.get("/metrics").text
    assert all(re.fullmatch(r"# .*|[a-z0-9_]+(\{.*\})? \S+", line) for line in metrics.splitlines())


def test_the_story_of_an_object_is_what_the_command_shows(client: Callable[..., TestClient], store: ShardStore) -> None:
    us = published(store, "files", "s3://landing/1.json", "s3://landing/2.json")
    text = client().get("/search?q=s3://landing/1.json").text
    assert "published by attempt" in text
    assert "/split-1" in text
    key = us.look("s3://landing/2.json")["s3://landing/2.json"].key.hex()
    assert "s3://landing/2.json" in client().get(f"/search?q={key[:12]}").text
    assert "knows nothing of" in client().get("/search?q=s3://landing/3.json").text


def test_a_search_takes_a_name_as_it_is_and_as_pasted(client: Callable[..., TestClient], store: ShardStore) -> None:
    published(store, "files", "s3://landing/in ", "s3://landing/out")
    for pasted in ("s3://landing/in ", "s3://landing/out", " s3://landing/out\n"):
        found = client().get(f"/search?{urlencode({'q': pasted})}").text
        assert "published by attempt" in found, pasted


def test_a_search_that_finds_several_lists_a_few(client: Callable[..., TestClient], store: ShardStore) -> None:
    for number in range(23):
        us = Pipeline.start(store, f"p{number}", f"s{number}")
        us.open("s3://landing/1.json")
    found = client().get("/search?q=s3://landing/1.json").text
    assert "20 or more objects" in found
    assert found.count("<tr><td") == 20


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/search?q=" + "x" * 2049, 400),
        ("/search?q=" + "x" * 2048, 200),
        ("/search?q=" + "x" * 8193, 414),
        ("/search?q=%00", 400),
        ("/search?q=%ff%fe", 200),
        ("/search?q=%ed%a0%80", 200),
        ("/pipeline", 400),
        ("/pipeline?name=nobody", 404),
        ("/charts.json?pipeline=nobody", 404),
        ("/?page=0", 200),
        ("/?page=-1", 400),
        ("/?page=1e9", 400),
        ("/?page=9999999", 400),
        ("/?page=%D9%A3", 400),
        ("/?refresh=0;url=//evil.example", 200),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/static/..%2fapp.py", 404),
    ],
)
def test_what_is_too_long_or_senseless_is_refused(client: Callable[..., TestClient], path: str, code: int) -> None:
    found = client().get(path)
    assert found.status_code == code
    assert "evil" not in found.text


def test_many_pipelines_are_shown_in_pages(client: Callable[..., TestClient], store: ShardStore) -> None:
    for number in range(52):
        Pipeline.start(store, f"p{number:03}", "s")
    first, second = (client().get(f"/?page={number}").text for number in (1, 2))
    assert ("p000" in first, "p051" in first, "p000" in second, "p051" in second) == (True, False, False, True)
    assert "A chart shows up to 50 pipelines" in first
    assert client().get("/charts.json").status_code == 400
    assert client().get("/charts.json?pipeline=p051").status_code == 200


def test_charts_have_rates_and_lags_on_an_even_grid(client: Callable[..., TestClient], store: ShardStore) -> None:
    published(store)
    found = client().get("/charts.json?pipeline=files").json()
    for name, step in (("recent", 300), ("hours", 3600)):
        times = found[name]["times"]
        assert {b - a for a, b in itertools.pairwise(times)} == {step}
        assert {len(values) for values in found[name].values()} == {len(times)}
        assert found[name]["rows"][-1] > 0 or found[name]["rows"][-2] > 0


def test_receivers_and_what_waits_for_their_sources_are_shown(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    store.start_receiver("landing", "sqs://files", "host-7", ["orders"])
    store.record("landing", {"orders": [content("x"), content("y")]}, Receipts(2, unrouted=4))
    page = re.sub(r"<[^>]*>|\s+", " ", client().get("/").text)
    assert re.search(r"landing +sqs://files +host-7 +0\.\d s ago +2 +2 +0 +0 +0 +4 +0 ", page)
    assert re.search(r"not taken by a reader yet .* orders +2 +0\.\d s ", page)


def test_an_empty_store_has_pages_too(client: Callable[..., TestClient]) -> None:
    for path in ("/", "/search", "/certificates", "/metrics", "/charts.json", "/healthz"):
        assert client().get(path).status_code == 200


def test_a_store_that_is_away_is_said_without_its_password(
    client: Callable[..., TestClient], store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StoreUnavailable("database 'postgresql://u:hidden-word@h/d': connection refused")

    monkeypatch.setattr(store, "status", away)
    browser = client()
    for path in ("/", "/pipeline?name=x", "/healthz", "/charts.json"):
        found = browser.get(path, headers=HTML)
        assert found.status_code == 503
        assert "hidden-word" not in found.text
    text = browser.get("/metrics").text
    assert "cuesqueue_scrape_success 0.0" in text
    assert "hidden-word" not in text
    assert browser.get("/metrics").text.count("cuesqueue_scrape_errors_total 2.0") == 1


def test_a_store_that_hangs_fails_requests_and_takes_no_more_threads(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = threading.Event(), []

    def hangs() -> tuple[()]:
        calls.append(1)
        release.wait()
        return ()

    monkeypatch.setattr(store, "status", hangs)
    reads = StoreReads(store, time_out=0.01)
    try:
        for _ in range(10):
            with pytest.raises(StoreUnavailable, match="did not answer within"):
                reads.status()
        assert len(calls) == 1  # one read serves all who wait for it
        for _ in range(THREADS + WAITING):
            with pytest.raises(StoreUnavailable):
                reads.read(lambda _: release.wait())
        assert len([t for t in threading.enumerate() if t.name.startswith("cuesqueue-serve")]) <= THREADS
    finally:
        release.set()
        reads.close()


def test_reads_beyond_what_may_wait_are_refused_at_once(store: ShardStore) -> None:
    release = threading.Event()
    reads = StoreReads(store, time_out=30.0)
    waiting = [threading.Thread(target=lambda: reads.read(lambda _: release.wait())) for _ in range(WAITING)]
    try:
        for one in waiting:
            one.start()
        while reads._room.acquire(blocking=False):
            reads._room.release()
            time.sleep(0.001)
        with pytest.raises(StoreUnavailable, match="too many reads"):
            reads.read(lambda _: None)
    finally:
        release.set()
        for one in waiting:
            one.join()
        reads.close()


def test_however_many_ask_the_store_is_read_once_a_second(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []

    def counted() -> tuple[()]:
        calls.append(1)
        return ()

    monkeypatch.setattr(store, "status", counted)
    reads = StoreReads(store, clock=lambda: now[0])
    for _ in range(5):
        reads.status()
    assert len(calls) == 1
    now[0] = 1.5
    reads.status()
    assert len(calls) == 2
    reads.close()


def test_all_that_a_page_loads_is_small() -> None:
    assert sum((STATIC / name).stat().st_size for name in ASSETS) < 150_000
    assert {path.name for path in STATIC.iterdir()} == {*ASSETS, "README.md", "uPlot.LICENSE.txt"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "set a token"),
        (["--host", "10.0.0.1", "--token", "short"], "fewer than 16 characters"),
        (["--token", "short"], "fewer than 16 characters"),
        (["--max-lag", "soon"], "--max-lag"),
        (["--token", "long enough, and a line end\n"], "has a line end"),
        (["--token", "long enough, and an \xe4"], "a letter that no header can carry"),
        (["--allowed-host", "https://queues.example/"], "is no name of a host"),
        (["--allowed-host", "*"], "is no name of a host"),
        (["--allowed-host", "*.example"], "is no name of a host"),
        (["--allowed-host", ""], "is no name of a host"),
    ],
)
def test_what_would_be_open_to_others_is_not_started(tmp_path: Path, arguments: list[str], said: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    done = CliRunner().invoke(program, ["serve", "--store", url, *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_an_object_that_was_forgotten_in_one_source_is_shown_as_the_other_has_it(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    here, gone, also_gone = (Pipeline.start(store, name, name) for name in ("a", "b", "c"))
    for us in (gone, also_gone):
        us.deliver("s3://landing/1.json")
        forget_shards(store, ShardCriteria(ids=["s3://landing/1.json"]), reason="by mistake")
    assert "by mistake" in client().get("/search?q=s3://landing/1.json").text
    here.deliver("s3://landing/1.json")
    assert "published by attempt" in client().get("/search?q=s3://landing/1.json").text


def test_a_search_for_nothing_costs_the_same_whatever_the_number_of_sources(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    statements: list[str] = []
    sa.event.listen(store.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    counts = []
    for first in (0, 20):
        for number in range(first, first + 20):
            Pipeline.start(store, f"p{number}", f"s{number}")
        statements.clear()
        assert "knows nothing of" in client().get("/search?q=s3://landing/none.json").text
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_the_story_of_an_object_is_small_whatever_senders_and_batches_make_of_it(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    us = Pipeline.start(store, "files", "files")
    long = "s3://landing/" + "<" * 100_000
    us.open(*(f"{long}{number}" for number in range(3)))
    plan = us.planned(long)
    errors = [_bad(plan.identity.delivery_hash, long, detail=f"{'<' * 5000}{number}") for number in range(300)]
    store.record_errors("files", "files", [replace(e, position=Position(str(n))) for n, e in enumerate(errors)])
    us.publish(plan, *(Split(f"/{'<' * 200}{number}", 1, 1) for number in range(300)))
    key = us.look(long)[long].key.hex()
    for text in (key, key[:4]):
        found = client().get(f"/search?q={text}")
        assert f"published by attempt {plan.identity.delivery_hash}" in found.text
        assert "The last 20 of 300." in found.text
        assert "and 280 more" in found.text
        assert len(found.content) < 400_000


def test_whatever_version_a_scraper_asks_for_there_are_metrics(client: Callable[..., TestClient]) -> None:
    headers = {"accept": "application/openmetrics-text;version=x"}
    assert "cuesqueue_scrape_success 1.0" in client().get("/metrics", headers=headers).text


def test_a_sqlite_file_that_was_restored_or_removed_is_noticed(
    client: Callable[..., TestClient], store: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads_module, "FRESH", 0.0)
    published(store, "before")
    browser = client()
    assert browser.get("/pipeline?name=before").status_code == 200
    with open_store(f"sqlite:///{tmp_path}/backup.db") as backup:
        published(backup, "restored")
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    assert browser.get("/healthz").status_code == 503
    assert not (tmp_path / "store.db").exists()
    (tmp_path / "backup.db").rename(tmp_path / "store.db")
    assert browser.get("/pipeline?name=restored").status_code == 200
    assert browser.get("/pipeline?name=before").status_code == 404


ENDED = """
import sys, time
from queue_source.commands.shards import forget_shards
from queue_source.commands.main import app
from queue_source.serve import app as web
from shard_store.store import ShardStore

def hangs(store):
    print("hangs", flush=True)
    time.sleep(600)

ShardStore.status = hangs
web._SILENCE = 0.2
app(["serve", "--store", sys.argv[1], "--port", sys.argv[2], "--store-timeout", "1s"])
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`cuesqueue serve` in a process of its own, over a store whose pipelines cannot be read, and its port."""
    url, port = f"sqlite:///{tmp_path}/hanging.db", free_port()
    open_store(url).close()
    given = [sys.executable, "-c", ENDED, url, str(port)]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None
                time.sleep(0.05)
            yield process, port
        finally:
            process.kill()


def answer(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to_also_while_the_store_hangs(
    hanging: tuple[subprocess.Popen[str], int], told: signal.Signals
) -> None:
    process, port = hanging
    assert answer(port, "/healthz") == 503
    assert process.stdout is not None
    while "hangs" not in process.stdout.readline():
        pass
    process.send_signal(told)
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nhost: local", b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"],
)
def test_connections_that_bring_no_whole_request_are_closed(
    hanging: tuple[subprocess.Popen[str], int], sent: bytes
) -> None:
    _, port = hanging
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(64)]
    for one in idle:
        one.sendall(sent)
    for one in idle:
        with suppress(ConnectionResetError):
            while one.recv(1000):
                pass
        one.close()
    assert answer(port, "/static/page.css") == 200


def test_errors_are_shown_by_cause_with_their_text_and_the_way_to_the_story(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    us = published(store)
    uri = "s3://landing/gone.json"
    plan = us.planned(uri)
    gone = ErrorRecord("object", "missing-object", "it is <gone>", uri, plan.identity.delivery_hash, Position("0"))
    store.record_errors("files", "files", [gone, ErrorRecord("message", "malformed-message", "no JSON at all", "m1")])
    browser = client()
    overview = browser.get("/", headers=HTML).text
    assert "no JSON at all" in overview
    assert 'href="/errors?cause=malformed-message"' in overview
    assert 'href="/errors?cause=malformed-message&amp;pipeline=files"' in browser.get("/pipeline?name=files").text
    text = browser.get("/errors?cause=missing-object").text
    assert "it is &lt;gone&gt;" in text
    assert "no JSON" not in text
    (link,) = re.findall(r'href="(/search\?q=[0-9a-f]{64})"', text)
    assert uri in browser.get(link).text
    assert "There are none" in browser.get("/errors?cause=never-heard-of").text


def test_the_foot_of_a_page_names_the_store_and_the_versions_without_secrets(
    client: Callable[..., TestClient], store: ShardStore
) -> None:
    text = client().get("/").text
    assert f"Store {store.database.name}, tables {REVISION}; cuesqueue " in text
    assert "renewed every 15 s" in text
    assert store.database.name not in client(token=TOKEN).get("/login").text


def test_certificates_have_their_time_and_their_period(client: Callable[..., TestClient], store: ShardStore) -> None:
    day = 86_400_000_000
    tally = Tally()
    tally.add("s3://landing/1.json", 1, None, Category.PUBLISHED)
    scope = Scope("files", "s3://landing/", 20_000 * day, 20_001 * day, "{}")
    store.certify(scope, "listing", tally, "somebody")
    text = client().get("/certificates").text
    assert "from 2024-10-04 00:00<br>before 2024-10-05 00:00" in text
    assert time.strftime("%Y-%m-%d", time.gmtime()) in text
