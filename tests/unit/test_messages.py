"""A received message shows its content as what it is."""

from __future__ import annotations

import pytest

from queue_source.messages import Receipt, Received


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
