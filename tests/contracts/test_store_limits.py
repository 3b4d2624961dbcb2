"""Contract: a server out of room, time or patience is unavailable; the cause is kept and nothing is half-written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from shard_store.errors import StoreUnavailable
from shard_store.model import Plan, ShardState, Split
from shard_store.store import ShardStore, open_store
from support.store_backends import SERVERS, Pipeline, StoreBackend, rows

SPLIT = Split("/x", 1, 1)
servers = pytest.mark.parametrize("backend", SERVERS, indirect=True)
postgresql = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
REFUSALS = [
    ("postgresql", "53100", "could not extend file: No space left on device"),
    ("postgresql", "53200", "out of memory"),
    ("postgresql", "53400", "temporary file size exceeds temp_file_limit"),
    ("mysql", "1021", "Disk full; waiting for someone to free some space"),
    ("mysql", "1114", "The table is full"),
]


@contextmanager
def refusing_attempts(store: ShardStore, code: str, text: str) -> Iterator[None]:
    """The server refuses the last row of a publish, when splits and positions are written already."""
    on = "BEFORE INSERT ON cuesqueue_attempts FOR EACH ROW"
    if store.database.dialect.name == "postgresql":
        raising = f"BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{code}'; END"
        make = [
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '{raising.replace(chr(39), chr(39) * 2)}'",
            f"CREATE TRIGGER refuse {on} EXECUTE FUNCTION refuse()",
        ]
        drop = ["DROP TRIGGER refuse ON cuesqueue_attempts", "DROP FUNCTION refuse()"]
    else:
        signal = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{text}'"
        make, drop = [f"CREATE TRIGGER refuse {on} {signal}"], ["DROP TRIGGER refuse"]

    def run(statements: list[str]) -> None:
        with store.database.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    run(make)
    try:
        yield
    finally:
        run(drop)


def expect_nothing_written(us: Pipeline, plan: Plan) -> None:
    """And the same publish goes through once the trouble is over."""
    assert rows(us.store, "splits") == rows(us.store, "attempts") == []
    assert us.look("a")["a"].state is ShardState.OPEN
    assert us.look("a")["a"].position == ""
    assert us.publish(plan, SPLIT).shards == 1


@pytest.mark.parametrize(
    ("backend", "code", "text"), [known for known in REFUSALS if known[0] in SERVERS], indirect=["backend"]
)
def test_a_server_without_room_is_unavailable_and_nothing_is_half_written(
    backend: StoreBackend, code: str, text: str
) -> None:
    store = backend.open(patience=0.3)
    us = Pipeline.start(store)
    plan = us.planned("a")
    with refusing_attempts(store, code, text):
        with pytest.raises(StoreUnavailable, match=f"did not serve us within 0.3 s: .*{text}") as error:
            us.publish(plan, SPLIT)
        cause = error.value.__cause__
        assert isinstance(cause, sa.exc.DBAPIError)
        assert cause.orig is not None
        assert code in (getattr(cause.orig, "sqlstate", None), str(cause.orig.args[0]))
    expect_nothing_written(us, plan)


@servers
@pytest.mark.parametrize("own_transaction", [True, False])
def test_a_row_that_another_session_holds_locked_is_waited_for_no_longer_than_our_patience(
    backend: StoreBackend, own_transaction: bool
) -> None:
    us = Pipeline.start(backend.open())
    plan = us.planned("a")
    blocker, impatient = backend.open(), backend.open(patience=1.0)
    with blocker.database.engine.begin() as holding:
        holding.exec_driver_sql("SELECT * FROM cuesqueue_pipelines FOR UPDATE")
        callers: AbstractContextManager[sa.Connection | None] = (
            nullcontext() if own_transaction else impatient.database.engine.begin()
        )
        with callers as connection, pytest.raises(StoreUnavailable, match=r"(?i)lock.*time ?out") as error:
            Pipeline(impatient, us.token, us.source).publish(plan, SPLIT, connection=connection)
        assert isinstance(error.value.__cause__, sa.exc.OperationalError)
    expect_nothing_written(us, plan)


@postgresql
def test_a_statement_time_out_of_the_server_is_unavailable(backend: StoreBackend) -> None:
    """An administrator's `statement_timeout`, here set by the URL, ends a wait for a lock."""
    us = Pipeline.start(backend.open())
    plan = us.planned("a")
    url = make_url(backend.url).update_query_dict({"options": "-c statement_timeout=100"})
    with (
        open_store(url.render_as_string(hide_password=False), patience=0.5) as store,
        us.store.database.engine.begin() as holding,
    ):
        holding.exec_driver_sql("SELECT * FROM cuesqueue_pipelines FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="canceling statement due to statement timeout"):
            store.publish([plan.identity], [SPLIT])
    expect_nothing_written(us, plan)
