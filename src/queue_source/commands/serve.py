"""`cuesqueue serve`: a page, metrics and a health check over a store, for a browser, Prometheus and probes."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from queue_source.commands.output import tell
from queue_source.commands.parameters import Store, duration_of, option
from queue_source.commands.status import limits_of
from queue_source.errors import OptionError
from shard_store import open_store

_PATIENCE = 2.0  # seconds for which one read tries an unavailable store again


def serve(
    store: Store,
    host: Annotated[str, option("H", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "The port to listen on.", min=1, max=65535)] = 8642,
    token: Annotated[
        str | None,
        option(
            "TEXT",
            "What readers have to know; needed with any --host but loopback. Other users of the machine see "
            "options, so set CUESQUEUE_SERVE_TOKEN.",
            envvar="CUESQUEUE_SERVE_TOKEN",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, option("NAME", "A name that browsers and scrapers may use for it; may be repeated.")
    ] = None,
    max_lag: Annotated[
        str | None, option("D", "Unhealthy if the oldest message that is not published is older than this.")
    ] = None,
    max_silence: Annotated[
        str | None, option("D", "Unhealthy if the last heartbeat is older, also of a stopped pipeline.")
    ] = None,
    max_errors: Annotated[int | None, option("N", "Unhealthy if the last hour had more errors.", min=0)] = None,
    store_timeout: Annotated[str, option("D", "How long a request waits for the store.")] = "5s",
) -> None:
    """Serve a page, metrics and a health check of all pipelines of a store, until Ctrl-C.

    / is the page, /metrics is for Prometheus, /healthz answers 200 or 503 with the limits that are given here, as
    `cuesqueue status` does. It reads the store and changes nothing. Without more it can be reached from this machine
    alone. Needs the extra `serve`: pip install 'cuesqueue[serve]'.
    """
    time_out = duration_of("--store-timeout", store_timeout)
    try:
        from queue_source.serve import app
    except ModuleNotFoundError as error:
        raise OptionError("serve", f"needs {error.name}: pip install 'cuesqueue[serve]'") from None
    access = app.access_of(host, token or None, allowed_host or [])
    limits = limits_of(max_lag, max_silence, max_errors)
    with open_store(store, create=False, patience=_PATIENCE) as opened:
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):  # the server has shut down properly before it comes
            app.serve(opened, host=host, port=port, access=access, limits=limits, time_out=time_out.total_seconds())
