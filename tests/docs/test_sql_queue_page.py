"""The page about queues in a database: its statements announce what a reader receives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from queue_source.announcements.parser import parse_notification
from queue_source.queues import open_queue
from queue_source.queues.base import administered
from support.servers.postgres import new_database
from support.snippets import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "sql-queue.md"
(POSTGRESQL,) = [b.text for b in blocks(PAGE) if b.language == "sql"]
SQLITE = """
INSERT INTO cuesqueue_messages (queue, message_id, body, tag, headers, sent_at, visible_at, receive_count)
SELECT 'orders', lower(hex(randomblob(16))), CAST('s3://landing/orders/2.csv' AS BLOB), '', '{}', t, t, 0
FROM (SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) AS t);
"""
"""The same by what the page says of the columns."""
MINIO_BODY = "convert_to(NEW.event_data::text, 'UTF8')"
MINIO = f"""
CREATE FUNCTION announce_minio_event() RETURNS trigger AS $$
BEGIN
  {POSTGRESQL.replace("convert_to('s3://landing/orders/2.csv', 'UTF8')", MINIO_BODY)}
  RETURN NEW;
END
$$ LANGUAGE plpgsql;
CREATE TRIGGER announce AFTER INSERT ON minio_events FOR EACH ROW EXECUTE FUNCTION announce_minio_event();
"""


def received(url: str) -> list[tuple[str, str | None, bool]]:
    """The objects of each message, its id's uniqueness being the table's; and whether it was sent just now."""
    with open_queue(url) as queue:
        messages = queue.receive(10, 60.0, 0.0)
        queue.acknowledge([message.receipt for message in messages])
        return [
            (notice.uri, message.group, message.sent_at is not None and message.lease_until > 0)
            for message in messages
            for notice in parse_notification(message.body).objects
        ]


def create(url: str) -> None:
    with open_queue(url) as queue:
        manager = administered(queue)
        assert manager is not None
        manager.create()


def execute(database: str, *statements: str) -> None:
    engine = create_engine(database)
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_statement_announces_an_object(kind: str, tmp_path: object, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        database, statement = f"sqlite:///{tmp_path}/jobs.db", SQLITE
    else:
        database, statement = new_database(request.getfixturevalue("postgres_url")), POSTGRESQL
    url = f"sql+{database}?queue=orders"
    create(url)
    execute(database, statement, statement)
    assert received(url) == [("s3://landing/orders/2.csv", None, True)] * 2
    assert received(url) == []


def test_a_program_handles_messages(tmp_path: Path) -> None:
    (program,) = [block.text for block in blocks(PAGE) if "queue.work" in block.text]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "{'order': 7}\n"
    assert received(f"sql+sqlite:///{tmp_path}/jobs.db?queue=orders") == []


def test_the_trigger_announces_the_events_of_minio(postgres_url: str) -> None:
    assert MINIO_BODY in PAGE.read_text("utf-8")
    assert MINIO_BODY in MINIO
    database = new_database(postgres_url)
    url = f"sql+{database}?queue=orders"
    create(url)
    execute(
        database,
        "CREATE TABLE minio_events (event_time TIMESTAMP WITH TIME ZONE NOT NULL, event_data JSONB)",
        MINIO,
    )
    record = {
        "eventSource": "minio:s3",
        "eventName": "s3:ObjectCreated:Put",
        "s3": {"bucket": {"name": "lake"}, "object": {"key": "in%2Fa.csv", "size": 9}},
    }
    execute(database, f"INSERT INTO minio_events VALUES (now(), '{json.dumps({'Records': [record]})}')")
    assert received(url) == [("s3://lake/in/a.csv", None, True)]
