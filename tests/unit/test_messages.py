"""A received message shows its content as what it is."""

from __future__ import annotations

import pytest

from queue_source.messages import Receipt, Received, headers_of


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b'{"id": 7}', {"id": 7}),
        (b"[1, 2]", [1, 2]),
        (b'"text"', "text"),
        (b"null", None),
        (b"NaN", "NaN"),
        (b'{"x": -Infinity}', '{"x": -Infinity}'),
        ("{grüße".encode(), "{grüße"),
        (b"s3://landing/1.csv", "s3://landing/1.csv"),
        (b"", ""),
        (b"\xff\x00", b"\xff\x00"),
        (b"[" * 200_000, "[" * 200_000),
    ],
    ids=["object", "list", "string", "null", "nan", "infinity", "text", "uri", "empty", "bytes", "deep"],
)
def test_the_content_is_json_or_text_or_the_bytes(body: bytes, content: object) -> None:
    assert Received("files", "m", Receipt("r"), body, receive_count=1, lease_until=0.0).content == content


@pytest.mark.parametrize("text", ["", "null", "[1]", "7", "{", "[" * 100_000, '{"a":' * 100_000])
def test_headers_that_are_no_json_object_are_a_header(text: str) -> None:
    assert headers_of(text, "packed") == {"packed": text}


def test_headers_are_text_whatever_the_object_holds() -> None:
    assert headers_of('{"a": "1", "b": 2, "c": {"d": null}}', "packed") == {"a": "1", "b": "2", "c": "{'d': None}"}
