"""Whatever the bytes are, a parser announces something well-formed or raises `MalformedNotification`."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_source.errors import MalformedNotification
from queue_source.notifications import FORMATS, parse_notification

CORPUS = sorted((Path(__file__).parents[1] / "data" / "notifications").glob("*.json"))
EVENTS = [json.loads(path.read_text()) for path in CORPUS]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(["ObjectCreated:Put", "s3:TestEvent", "Notification", "Object Created", "s3://b/k", "%FF", "{}"]),
)
FIELDS = st.sampled_from(
    ["Records", "s3", "bucket", "object", "key", "name", "size", "eventName", "Type", "Message", "detail"]
)
JSON = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(FIELDS | st.text(), inner)), max_leaves=30
)
FORMAT = st.sampled_from(["auto", *FORMATS])


def well_formed_or_malformed(body: bytes, attributes: dict[str, str], format: str) -> None:
    try:
        found = parse_notification(body, attributes, format)
    except MalformedNotification as error:
        str(error).encode()
        return
    assert found.objects or found.ignored > 0
    for notice in found.objects:
        scheme, _, rest = notice.uri.partition("://")
        assert scheme
        assert rest
        notice.uri.encode()
        assert notice.size is None or 0 <= notice.size < 2**63


@given(st.binary(), FORMAT)
def test_arbitrary_bytes(body: bytes, format: str) -> None:
    well_formed_or_malformed(body, {}, format)


@given(JSON, FORMAT)
def test_arbitrary_json(value: object, format: str) -> None:
    well_formed_or_malformed(json.dumps(value).encode(), {}, format)


@given(st.dictionaries(st.sampled_from(["eventType", "bucketId", "objectId", "payloadFormat"]), st.text()), JSON)
def test_arbitrary_attributes(attributes: dict[str, str], value: object) -> None:
    well_formed_or_malformed(json.dumps(value).encode(), {"eventType": "OBJECT_FINALIZE", **attributes}, "auto")


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


@given(st.data())
def test_real_events_with_one_part_exchanged_or_lost(data: st.DataObject) -> None:
    event = json.loads(json.dumps(data.draw(st.sampled_from(EVENTS))))
    *parents, last = data.draw(st.sampled_from(places(event)))
    parent = event
    for step in parents:
        parent = parent[step]
    if data.draw(st.booleans()):
        del parent[last]
    else:
        parent[last] = data.draw(JSON)
    well_formed_or_malformed(json.dumps(event).encode(), {}, data.draw(FORMAT))


@given(st.data())
def test_real_events_with_bytes_exchanged_or_cut_off(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(CORPUS)).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    well_formed_or_malformed(bytes(body[: data.draw(st.integers(0, len(body)))]), {}, "auto")


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(st.lists(KEYS.filter(lambda key: not key.endswith("/")), min_size=1, max_size=20), st.sampled_from(["/", ""]))
def test_every_key_of_every_record_comes_back_whatever_it_holds(keys: list[str], safe: str) -> None:
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": quote_plus(key, safe=safe), "size": 1}},
        }
        for key in keys
    ]
    found = parse_notification(json.dumps({"Records": records}).encode())
    assert [notice.uri for notice in found.objects] == [f"s3://b/{key}" for key in keys]


@given(st.integers(100, 5_000), st.sampled_from(["[", '{"a":', '{"Type":"Notification","Message":']))
def test_deep_nesting_never_ends_in_a_recursion_error(depth: int, opening: str) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification((opening * depth).encode())
