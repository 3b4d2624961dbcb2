"""The web application: the page, its charts, `/metrics` and `/healthz`, and the server that answers with it.

Each answer is made from one or a few reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from queue_source.commands.output import number, on_signals, size_text, time_text
from queue_source.commands.shards import find_shards, shard_stories, story_as_dict
from queue_source.commands.status import NO_SUCH_PIPELINE, amounts, since, status_lines
from queue_source.errors import OptionError
from queue_source.serve.guard import LOGIN, LOOPBACK, SHORTEST_TOKEN, Access, Guard, given_token, logged_in
from queue_source.serve.metrics import Export
from queue_source.serve.reads import Routed, StoreReads
from shard_store.error_table import search
from shard_store.error_table.search import Criteria
from shard_store.errors import ShardStoreError
from shard_store.model import time_of
from shard_store.operators.limits import StatusLimits, complaints, complaints_of_routes
from shard_store.operators.shards import ShardCriteria
from shard_store.operators.status import SLOT_SECONDS, Hour, PipelineStatus, Published
from shard_store.redaction import redact_text, visible
from shard_store.sql import install
from shard_store.store import ShardStore

_LONGEST = 1_024  # as long as keys of objects may be


def _readable(value: Any) -> Any:
    """Hide secrets and control characters: URIs may be signed, and some characters change the direction of text."""
    return visible(redact_text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cut(value: Any) -> Any:
    """Shorten a text to what people read: senders of messages choose names, and a page has many."""
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... ({len(value):,} characters)"


_TEMPLATES = Environment(
    loader=PackageLoader("queue_source.serve"),
    autoescape=True,
    finalize=_readable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"time": time_text, "number": number, "size": size_text, "cut": _cut}
_TEMPLATES.globals |= {
    "since": since,
    "amounts": amounts,
    "lines": status_lines,
    "moment": lambda micros: time_of(micros).strftime("%Y-%m-%d %H:%M"),  # UTC
}


def page(template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status_code)


DAYS = 7
TOGETHER = 50
"""Pipelines that are shown in one chart; of more, the chart would read their whole history at each look."""
_HOUR = 3600


def series(store: ShardStore, status: Sequence[PipelineStatus], pipeline: str | None) -> dict[str, Any]:
    """Return the last hour in steps of five minutes, and a week in hours. `status`: of the pipelines shown."""
    if not status:
        return {"recent": _grid((), SLOT_SECONDS, 0, 0), "hours": _grid((), _HOUR, 0, 0)}
    now = max(
        status_of_pipeline.heartbeat_at.timestamp() + status_of_pipeline.silence for status_of_pipeline in status
    )  # the database's clock
    since = datetime.fromtimestamp(now - DAYS * 24 * _HOUR, timezone.utc)
    hours = store.hours(since=since, pipeline=pipeline)
    first = min((hour.start.timestamp() for hour in hours), default=now)
    return {
        "recent": _grid(store.recent(pipeline=pipeline), SLOT_SECONDS, now - _HOUR, now),
        "hours": _grid(hours, _HOUR, min(first, now - 24 * _HOUR), now),
    }


def _grid(periods: Iterable[Hour], step: int, first: float, now: float) -> dict[str, list[float | None]]:
    """Return rates a second, and lags of the slowest pipeline. A period without work has rate 0, and no lag."""
    times = list(range(int(first // step) * step, int(now) + 1, step)) if now else []
    by_time: dict[int, list[Published]] = {time: [] for time in times}
    for period in periods:
        by_time.get(round(period.start.timestamp()), []).append(period.published)
    lasted = [max(1.0, min(float(step), now - time)) for time in times]
    parts = list(by_time.values())
    has_rows = any(published.rows is not None for part in parts for published in part)
    return {
        "times": list(times),
        "objects": [sum(p.objects for p in part) / s for part, s in zip(parts, lasted, strict=True)],
        "rows": [
            sum(p.rows or 0 for p in part) / s if has_rows else None for part, s in zip(parts, lasted, strict=True)
        ],
        "errors": [sum(sum(p.errors.values()) for p in part) for part in parts],
        "lag_p50": [max((p.lag_p50 for p in part if p.lag_p50 is not None), default=None) for part in parts],
        "lag_p99": [max((p.lag_p99 for p in part if p.lag_p99 is not None), default=None) for part in parts],
    }


STATIC = Path(__file__).parent / "static"
ASSETS = ("page.css", "icon.svg", "charts.js", "refresh.js", "uPlot.iife.min.js", "uPlot.min.css")
PIPELINES = 50
"""Pipelines on one page; receivers and sources too."""
FOUND = 20
"""Shards that a search lists, where it finds several."""
ENTRIES = 20
"""Attempts, errors and changes of an object that are shown, the newest ones, and files of an attempt."""
CERTIFICATES = 50
OTHERS = ("missing", "quarantined", "skipped", "given_up", "changed", "waiting", "beyond_memory")
"""Categories of objects that are not published, in the order in which a certificate has them."""
LONGEST_TEXT = 2_048
"""Characters of a search, or of a name; keys of objects have up to 1,024."""
ERRORS = 50
"""Errors of one page."""
RECENT = 200
"""Errors among which the newest of each cause is looked for."""


class Site:
    """The pages. Their functions run in threads of the web server, since reading the store blocks."""

    def __init__(self, reads: StoreReads, access: Access, limits: StatusLimits) -> None:
        self._reads = reads
        self._access = access
        self._limits = limits
        self._export = Export(reads)
        self._about: dict[str, object] | None = None

    def routes(self) -> list[Route | Mount]:
        return [
            Route("/", self.overview),
            Route("/pipeline", self.pipeline),
            Route("/search", self.search),
            Route("/errors", self.errors),
            Route("/certificates", self.certificates),
            Route("/charts.json", self.charts),
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthz),
            Route(LOGIN, self.login, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def overview(self, request: Request) -> Response:
        statuses = self._reads.status()
        wrong = {status.pipeline: complaints(status, self._limits) for status in statuses}
        text = _text(request, "page", "1")
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 6):
            raise HTTPException(400, "the parameter 'page' is a number from 1 on")
        number = max(1, int(text))
        statuses_of_page = statuses[(number - 1) * PIPELINES : number * PIPELINES]
        causes: Counter[str] = Counter()
        recent: Counter[str] = Counter()
        for status in statuses:
            causes.update(status.total.errors)
            recent.update(status.last_hour.errors)
        return self._page(
            "overview.html",
            live=True,
            total=len(statuses),
            pipelines=statuses_of_page,
            wrong=wrong,
            unhealthy=sum(map(bool, wrong.values())),
            causes=[(cause, recent[cause], count) for cause, count in causes.most_common(PIPELINES)],
            texts=self._texts(None) if causes else {},
            chart="" if 0 < len(statuses) <= TOGETHER else None,
            number=number,
            pages=max(1, -(-len(statuses) // PIPELINES)),
            routed=self._reads.routed().first(PIPELINES),
        )

    def pipeline(self, request: Request) -> Response:
        name = _text(request, "name")
        status = self._the(name)
        now = status.heartbeat_at.timestamp() + status.silence
        since = datetime.fromtimestamp(now - 24 * 3600, timezone.utc)
        hours = self._reads.read(lambda store: store.hours(since=since, pipeline=name))
        causes = Counter(status.total.errors).most_common()
        return self._page(
            "pipeline.html",
            live=True,
            one=status,
            causes=[(cause, status.last_hour.errors.get(cause, 0), count) for cause, count in causes],
            texts=self._texts(name) if causes else {},
            wrong=complaints(status, self._limits),
            hours=list(reversed(hours)),
            chart="?" + urlencode({"pipeline": name}),
        )

    def search(self, request: Request) -> Response:
        text = _text(request, "q", "")
        if not text.strip():
            return self._page("search.html", text="", story=None, several=())
        # a name may end in a space; pasted with one more it is found too
        criteria = ShardCriteria(ids=sorted({text, text.strip()}), source=_text(request, "source", "") or None)

        def find(store: ShardStore) -> tuple[dict[str, object] | None, list[object]]:
            shards = list(find_shards(store, criteria, limit=FOUND + 1))
            if len(shards) > 1:
                return None, list(shards)
            story = next(shard_stories(store, criteria, limit=1), None)  # it may have been forgotten in other sources
            return (None if story is None else story_as_dict(story)), []

        story, several = self._reads.read(find)
        return self._page("search.html", text=text, story=story, several=several, most=FOUND, entries=ENTRIES)

    def errors(self, request: Request) -> Response:
        """Show the newest errors of a cause, each with its text and the way to its object's story."""
        cause, pipeline = _text(request, "cause", ""), _text(request, "pipeline", "") or None
        criteria = Criteria(pipeline=pipeline, words={"cause": [cause]} if cause else {})
        newest = self._reads.read(lambda store: search.newest(store.database, criteria, ERRORS + 1))
        return self._page("errors.html", cause=cause, pipeline=pipeline, errors=newest, most=ERRORS)

    def certificates(self, request: Request) -> Response:
        certificates = self._reads.read(lambda store: store.latest_certificates(limit=CERTIFICATES))
        return self._page("certificates.html", certificates=certificates, others=OTHERS, most=CERTIFICATES)

    def charts(self, request: Request) -> Response:
        name = _text(request, "pipeline", "") or None
        statuses = self._reads.status() if name is None else (self._the(name),)
        if len(statuses) > TOGETHER:
            raise HTTPException(400, "name a pipeline")
        return JSONResponse(self._reads.read(lambda store: series(store, statuses, name)))

    def metrics(self, request: Request) -> Response:
        text, content_type = self._export.text(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    def healthz(self, request: Request) -> Response:
        """Answer whether all is well, in a word; list the pipelines and their problems for those who may read."""
        name, source = _text(request, "pipeline", ""), _text(request, "source", "")
        try:
            statuses = [
                status
                for status in self._reads.status()
                if name in ("", status.pipeline) and source in ("", status.source)
            ]
            routed = Routed() if name else self._reads.routed()
        except ShardStoreError as error:
            return self._health(request, False, {"store": redact_text(str(error))})
        if (name or source) and not statuses:
            return self._health(request, False, {"error": NO_SUCH_PIPELINE})
        wrong = {status.pipeline: list(complaints(status, self._limits)) for status in statuses}
        waiting = [waits for waits in routed.waiting if source in ("", waits.source)]
        routes = complaints_of_routes(() if source else routed.receivers, waiting, self._limits)
        details: dict[str, object] = {"pipelines": wrong, **({"routes": routes} if routes else {})}
        return self._health(request, not any(wrong.values()) and not routes, details)

    def _health(self, request: Request, healthy: bool, details: dict[str, object]) -> Response:
        visible_details = details if self._access.may_read(request) else {}
        return JSONResponse({"healthy": healthy, **visible_details}, 200 if healthy else 503)

    async def login(self, request: Request) -> Response:
        if self._access.token is None:
            raise HTTPException(404, "no token is asked for here")
        if request.method != "POST":
            return await run_in_threadpool(page, "login.html", refused=False)
        token = await given_token(request)
        if token is None or not self._access.is_token(token):
            return await run_in_threadpool(page, "login.html", 401, refused=True)
        return logged_in(request, self._access)

    def _page(self, template: str, **values: Any) -> Response:
        if self._about is None:  # the foot of each page: the store's name without secrets, and the versions of both
            try:
                ours = version("cuesqueue")
            except PackageNotFoundError:
                ours = "from a folder"
            name, schema = self._reads.read(lambda store: (store.database.name, install.installed(store.database)))
            self._about = {"store": name, "schema": schema, "version": ours}
        return page(template, about=self._about, now=datetime.now(timezone.utc), **values)

    def _texts(self, pipeline: str | None) -> dict[str, str]:
        """Return the text of the newest error of each cause that has a recent one."""
        recent = self._reads.read(lambda store: search.newest(store.database, Criteria(pipeline=pipeline), RECENT))
        return {error.cause: error.detail for error in reversed(recent)}

    def _the(self, name: str) -> PipelineStatus:
        status = next((candidate for candidate in self._reads.status() if candidate.pipeline == name), None)
        if status is None:
            raise HTTPException(404, "no such pipeline has started with this store")
        return status


def create_app(reads: StoreReads, access: Access, limits: StatusLimits | None = None) -> ASGIApp:
    """Build the application, behind its guard."""
    site = Site(reads, access, limits or StatusLimits())

    def failed(request: Request, error: Exception) -> Response:
        code, text = 503, redact_text(str(error))
        if isinstance(error, HTTPException):
            code, text = error.status_code, error.detail
        if "text/html" in request.headers.get("accept", ""):
            return page("problem.html", code, code=code, problem=text)
        return PlainTextResponse(text + "\n", code)

    application = Starlette(routes=site.routes(), exception_handlers={ShardStoreError: failed, HTTPException: failed})
    return Guard(application, access, open_paths=(LOGIN, "/healthz", *(f"/static/{name}" for name in ASSETS)))


def _text(request: Request, name: str, default: str | None = None) -> str:
    """Return a parameter of the query. Raises HTTPException if it is missing without a default, or too long."""
    text = request.query_params.get(name, default)
    if text is None:
        raise HTTPException(400, f"the parameter {name!r} is missing")
    if len(text) > LONGEST_TEXT:
        raise HTTPException(400, f"the parameter {name!r} has more than {LONGEST_TEXT} characters")
    if "\0" in text:
        raise HTTPException(400, f"the parameter {name!r} holds a character that no name has")
    return text


_REQUESTS = 64
"""At the same time; more are answered with 503."""

_SILENCE = 10.0
"""Seconds in which a connection has to bring a whole request; it may take twice as long."""


class Connection(H11Protocol):
    """A connection that is closed when no request comes.

    uvicorn would wait for ever, and `_REQUESTS` of them fill it.
    """

    _answered: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_SILENCE, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.transport.is_closing():
            return
        waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if waits and self.cycle is self._answered:
            self.transport.close()
            return
        self._answered = self.cycle
        self.loop.call_later(_SILENCE, self._close_if_silent)


def access_of(host: str, token: str | None, allowed_hosts: list[str]) -> Access:
    """Build the access that the command's options ask for. Raises OptionError."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OptionError(
            "--token",
            f"has fewer than {SHORTEST_TOKEN} characters; make one with: python -c 'import secrets; "
            "print(secrets.token_urlsafe(32))'",
        )
    if host not in LOOPBACK and token is None:
        raise OptionError(
            "--host", f"{host!r} can be reached from elsewhere: set a token with CUESQUEUE_SERVE_TOKEN or --token"
        )
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise OptionError("--token", "has a line end, a space at an end, or a letter that no header can carry")
    # a wildcard needs explicit names; no browser sends the zone of an address (`fe80::1%eth0`)
    own = [] if host in ("0.0.0.0", "::", "") or "%" in host else [host]
    try:
        return Access.to([*own, *allowed_hosts], token)
    except ValueError as error:
        raise OptionError(
            "--allowed-host", f"{error.args[0]!r} is no name of a host; write it as queues.example.com"
        ) from None


def serve(store: ShardStore, *, host: str, port: int, access: Access, limits: StatusLimits, time_out: float) -> None:
    """Answer requests until the process is asked to end (SIGINT, SIGTERM, SIGHUP)."""
    reads = StoreReads(store, time_out=time_out)
    config = uvicorn.Config(
        create_app(reads, access, limits),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # queries hold names of objects
        server_header=False,
        http=Connection,
        ws="none",
        limit_concurrency=_REQUESTS,
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)

    def end(_: int) -> None:  # uvicorn has handlers of its own for the others, and none for SIGHUP
        server.should_exit = True

    try:
        with on_signals(end):
            server.run()
    finally:
        reads.close()
