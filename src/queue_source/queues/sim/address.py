"""The `sim://` URL taken apart."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.engine import URL

from queue_source.errors import QueueConfigurationError
from queue_source.queues.sql.database import Address
from queue_source.queues.urls import checked_parameters, query_of, without_fragment
from queue_source.tags import parse_filters
from shard_store.redaction import redact_url

LISTENER = "listener-"
"""What the names of the private queues of listeners begin with."""

_NAME = re.compile(r"[\w.\-]{1,200}")
_FORM = "write sim://SOURCE?dir=PATH, with &pool=NAME and &tags=FILTER where they are wanted"


@dataclass(frozen=True, slots=True)
class SimAddress:
    """A `sim://` URL taken apart.

    `table` holds the pool's messages; `filters` is None where the URL names none. `is_named`: the URL says what is read
    here; one that does not may be a sender's.
    """

    table: Address
    folder: Path
    source: str
    pool: str
    listener: bool
    filters: tuple[str, ...] | None
    mandatory: bool
    is_named: bool


def parse_address(url: str) -> SimAddress:
    """Parse the URL, without touching a file. Raises `QueueConfigurationError` for whatever is wrong with it."""
    name = redact_url(url)

    def refused(problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(name, f"{problem}; {_FORM}")

    parts = urlsplit(without_fragment(url))
    parameters = checked_parameters(name, query_of(url))
    source, pool = parts.netloc, parameters.get("pool", parts.netloc)
    if parts.path not in ("", "/") or not _NAME.fullmatch(source) or not _NAME.fullmatch(pool):
        raise refused("source and pool are named by letters, digits, '.', '-' and '_'")
    if not parameters.get("dir"):
        raise refused("it needs dir=PATH, a folder of this machine for the simulator's file")
    for key in ("listener", "mandatory"):
        if parameters.get(key, "true") not in ("true", "false"):
            raise refused(f"{key}={parameters[key]!r} is neither true nor false")
    listener = parameters.get("listener") == "true"
    if pool.startswith(LISTENER):
        raise refused(f"names that start with {LISTENER!r} are those of listeners")
    if listener and "pool" in parameters:
        raise refused("a listener has a private queue and no pool")
    try:
        filters = parse_filters(parameters["tags"]) if "tags" in parameters else None
    except ValueError as error:
        raise refused(str(error)) from None
    pool = f"{LISTENER}{uuid.uuid4().hex}" if listener else pool
    folder = Path(parameters["dir"])
    database = URL.create("sqlite", database=str(folder / f"{source}.sim.db"))
    mandatory = parameters.get("mandatory", "true") == "true"
    table = Address(database, pool, name)
    is_named = not parameters.keys().isdisjoint(("pool", "listener", "tags"))
    return SimAddress(table, folder, source, pool, listener, filters, mandatory, is_named)
