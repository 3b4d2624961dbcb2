"""Whatever a sender writes beside a message's body, the message is rows, or an error of its own: no other one's."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika import BasicProperties
from sqlalchemy import update
from sqlalchemy.dialects import sqlite

from queue_source.announcements.contents import announced_messages, announced_objects
from queue_source.coordinator.errors import _send
from queue_source.formats.metadata import ObjectMetadata
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.options import parse_reader_options
from queue_source.queues.adapter import convert_each
from queue_source.queues.amqp.messages import Delivery
from queue_source.queues.amqp.messages import received as of_amqp
from queue_source.queues.azurequeue.messages import Encoding, content_of, text_of
from queue_source.queues.base import Extras
from queue_source.queues.kafka.messages import LARGEST, record_of
from queue_source.queues.kafka.messages import received as of_kafka
from queue_source.queues.pubsub.messages import message_of
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import messages
from queue_source.queues.sqs.messages import entry_of
from queue_source.queues.sqs.messages import received as of_sqs
from queue_source.read.fixed_rows import MESSAGE_SCHEMA, fixed_rows
from shard_store.error_table.search import StoredError
from shard_store.model import BEGINNING
from shard_store.sql.schema import AnyText
from support.sessions import LEAST

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)  # lone surrogates and NUL too
BYTES = st.binary(max_size=5) | TEXT.map(lambda text: text.encode("utf-8", "replace"))
VALUE = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
PACKED = TEXT | st.dictionaries(TEXT, VALUE, max_size=3).map(json.dumps) | st.lists(VALUE, max_size=2).map(json.dumps)
PACKED = PACKED | st.sampled_from(["[" * 100_000, '{"a":' * 100_000, "9" * 5000])
NUMBER = st.integers(0, 2**64 - 1) | st.sampled_from([1_764_500_000, 1_764_500_000_000, 253_370_764_800])


@st.composite
def sqs(draw: Callable[[Any], Any]) -> Received:
    names = st.sampled_from(["cuesqueue.encoding", "cuesqueue.tag", "cuesqueue.headers", "trace"])
    texts = draw(st.dictionaries(names, PACKED, max_size=3))
    of_queue = {"SentTimestamp": str(draw(NUMBER)), "ApproximateReceiveCount": "1"}
    attributes = {name: {"StringValue": text.encode("utf-8", "replace").decode()} for name, text in texts.items()}
    message = {"MessageId": "1", "ReceiptHandle": "r", "Body": "x", "Attributes": of_queue}
    return of_sqs("q", message | {"MessageAttributes": attributes}, 0.0)


def table(fields: dict[bytes, bytes]) -> bytes:
    some = b"".join(struct.pack("B", len(name)) + name + field for name, field in fields.items())
    return struct.pack(">I", len(some)) + some


def array(fields: list[bytes]) -> bytes:
    return b"A" + struct.pack(">I", len(joined := b"".join(fields))) + joined


EIGHT = st.binary(min_size=8, max_size=8)
FIELD = st.recursive(
    st.just(b"V")
    | st.sampled_from([b"T", b"l", b"L"]).flatmap(lambda kind: EIGHT.map(lambda value: kind + value))
    | st.sampled_from([b"S", b"x"]).flatmap(
        lambda kind: BYTES.map(lambda text: kind + struct.pack(">I", len(text)) + text)
    ),
    lambda inner: (
        st.lists(inner, max_size=2).map(array)
        | st.dictionaries(BYTES, inner, max_size=2).map(lambda fields: b"F" + table(fields))
    ),
)
"""Values of headers as they are on the wire."""


@st.composite
def amqp(draw: Callable[[Any], Any]) -> Received:
    names = BYTES | st.sampled_from([b"x-delivery-count", b"Republish-Tag", b"Republish-Count"])
    properties = BasicProperties()
    headers = table(draw(st.dictionaries(names, FIELD, max_size=3)))
    properties.decode(struct.pack(">H", properties.FLAG_HEADERS) + headers)
    properties.timestamp = draw(st.none() | NUMBER)
    properties.message_id = draw(st.none() | BYTES | st.just("1"))
    routing_key, exchange = draw(BYTES), draw(st.sampled_from(["", "s"]))
    method = SimpleNamespace(routing_key=routing_key, exchange=exchange, redelivered=False)
    return of_amqp(Delivery(method, properties, b"x"), "q", Receipt("r"), 0.0)


@st.composite
def kafka(draw: Callable[[Any], Any]) -> Received:
    headers, key, time = draw(st.lists(st.tuples(st.just("h"), BYTES))), draw(st.none() | BYTES), draw(NUMBER)
    said = {"headers": headers, "key": key, "timestamp": (1, time - 2**63), "value": None, "topic": "t"}
    raw: Any = {name: lambda value=value: value for name, value in (said | {"partition": 0, "offset": 1}).items()}
    return of_kafka(SimpleNamespace(**raw), "q", Receipt("r"), 1, 0.0)


@st.composite
def azure(draw: Callable[[Any], Any]) -> Received:
    parts = draw(st.dictionaries(st.sampled_from(["text", "base64", "tag", "headers"]), PACKED | VALUE, max_size=4))
    envelope = json.dumps({"cuesqueue.message": 1, **parts}, separators=(",", ":"))
    body, tag, headers = content_of(envelope, draw(st.sampled_from(Encoding)))
    return Received("q", "1", Receipt("r"), body, 1, 0.0, tag=tag, headers=headers)


@st.composite
def own(draw: Callable[[Any], Any]) -> Received:
    """A message of a kind of queue that is a user's own."""
    headers, time = draw(st.dictionaries(TEXT, TEXT, max_size=2)), draw(st.none() | st.floats())
    count = draw(st.integers())
    return Received("q", draw(TEXT), Receipt("r"), b"x", count, 0.0, sent_at=time, tag=draw(TEXT), headers=headers)


OF_MESSAGES = {"queueUrl": "sim://files", "source": "files", "content": "message"}


@given(st.lists(sqs() | amqp() | kafka() | azure() | own(), min_size=1, max_size=3))
def test_a_message_is_a_row_or_an_error(received: list[Received]) -> None:
    options = parse_reader_options(OF_MESSAGES)
    announced = announced_messages(
        [*received, Received("q", "good", Receipt("g"), b"x", 1, 0.0)], options.notifications
    )
    contents = [content for one in announced for content in one.contents]
    assert contents[-1:] == list(announced[-1].contents)
    assert len(contents) + sum(one.error is not None for one in announced) == len(received) + 1
    rows = fixed_rows(options.content)
    assert rows is not None
    [batch] = rows.batches([(content, ObjectMetadata()) for content in contents], MESSAGE_SCHEMA)
    batch.to_pylist()  # no time that Python does not have
    for content in contents:
        assert 0 <= content.receive_count < 2**31
        assert content.sent_at is None or abs(content.sent_at) < 2**63
        AnyText().bind_processor(sqlite.dialect())(content.message_id)


CARRIERS: dict[str, Callable[[Outgoing], object]] = {
    "azure, base64": lambda message: text_of(message, Encoding.BASE64),
    "azure, text": lambda message: text_of(message, Encoding.TEXT),
    "sqs": lambda message: entry_of(message, fifo=False),
    "kafka": lambda message: record_of(message, LARGEST),
    "pubsub": message_of,
}


@given(
    st.sampled_from(sorted(CARRIERS)),
    st.sampled_from([b"x", b'"', b"\xff", b"\0"]),
    st.sampled_from([0, 10_000, 60_000]),
    st.dictionaries(TEXT, st.sampled_from(["1", "\0" * 200_000]), max_size=2),
    TEXT.map(lambda text: text * 3_000),
)
def test_each_kind_of_queue_carries_each_error(
    kind: str, byte: bytes, size: int, headers: dict[str, str], detail: str
) -> None:
    sent: list[object] = []

    class Errors:
        extras = Extras(sends_many=True)

        def send_messages(self, messages: list[Outgoing]) -> None:
            sent.extend(convert_each(messages, CARRIERS[kind]))

    texts: Any = {field.name: "" for field in fields(StoredError)}
    error = StoredError(**{**texts, "scope": "message", "position": BEGINNING, "seqs": None, "key": b"k"})
    error = replace(error, occurred_at=0, input=byte * size, input_size=size, headers=headers, detail=detail)
    few = replace(error, input=b"", input_size=0, headers={}, detail="")
    _send(Errors(), [few, error, few])  # type: ignore[arg-type]
    assert len(sent) == 3


@given(st.dictionaries(st.sampled_from(["Object-Version", "Object-Size", "Object-ETag"]), TEXT | st.just("9" * 5000)))
@example({"Object-Version": "v", "Object-Size": "9" * 19})
def test_a_version_that_a_header_names_can_be_stored_or_is_an_error(headers: dict[str, str]) -> None:
    options = parse_reader_options({**LEAST, "allowOverwrites": "true"})
    received = Received("q", "1", Receipt("r"), b"s3://b/k", 1, 0.0, headers=headers)
    [one] = announced_objects([received], options.notifications, lambda uris: [None] * len(uris))
    for content in one.contents:
        assert content.size is None or 0 <= content.size < 2**63
        (content.shard_id + (content.etag or "")).encode()  # which rows have
    assert one.error is not None or len(one.contents) == 1


@pytest.mark.parametrize("headers", ["", "null", "[]", "{", '{"a": 1}', '{"a": "\\ud800"}', "[" * 100_000])
def test_headers_that_other_programs_insert_end_no_receive(tmp_path: Path, headers: str) -> None:
    with SqlQueue(f"sql+sqlite:///{tmp_path}/q.db?queue=files") as queue:
        queue.send(["x", "y"])
        first = update(messages).where(messages.c.body == b"x").values(headers=headers)
        queue._database.write(lambda transaction: transaction.execute(first))
        assert [message.body for message in queue.receive(2, 60, 0)] == [b"x", b"y"]
