"""The content of a message of Azure Storage Queue: bytes, tag and headers as one text, and back. Pure functions.

A queue carries text alone, of characters that XML has, and no headers. What cannot be such a text travels as JSON in an
envelope of ours. Others send text as it is or in base64 (Event Grid does): `Encoding` says what is expected.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from queue_source.messages import Outgoing
from queue_source.uris import looks_like_uri

LARGEST = 64 << 10
"""Most bytes of one message, as it is sent."""

_MARK = "cuesqueue.message"
_ENVELOPE = f'{{"{_MARK}":1,'
_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # \r is \n after XML
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]+={0,2}\s*")


class Encoding(str, Enum):
    """The form of messages: text, base64, or (`auto`) whichever of the two it is; then text is sent."""

    AUTO = "auto"
    BASE64 = "base64"
    TEXT = "text"


class Content(NamedTuple):
    """What a message holds."""

    body: bytes
    tag: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


def text_of(message: Outgoing, encoding: Encoding) -> str:
    """Return the text that the queue carries. Raises ValueError for what it cannot carry in any form."""
    content = Content(message.body, message.tag, {str(k): str(v) for k, v in message.headers.items()})
    text: str | None = None  # where XML would change or refuse it
    if encoding is Encoding.BASE64:
        text = base64.b64encode(message.body).decode() or None
    else:
        with suppress(UnicodeDecodeError):
            text = message.body.decode()
        if not text or text != text.strip() or _FORBIDDEN.search(text):
            text = None
    if text is None or content_of(text, encoding) != content:
        text = _envelope(content)
        text = base64.b64encode(text.encode()).decode() if encoding is Encoding.BASE64 else text
    if (size := len(text.encode())) > LARGEST:
        raise ValueError(
            f"a message of {len(message.body)} bytes takes {size} in an Azure queue, which carries at most {LARGEST}"
        )
    return text


def content_of(text: str, encoding: Encoding) -> Content:
    """Return what a text of the queue holds. One that is not in the expected encoding is the body as it is."""
    body = text.encode() if encoding is Encoding.TEXT else _decoded(text, encoding)
    return _unpacked(body) if body.startswith(_ENVELOPE.encode()) else Content(body)


def _decoded(text: str, encoding: Encoding) -> bytes:
    if encoding is Encoding.AUTO and text[:1] in ("{", "[", ""):  # nearly all that is no base64
        return text.encode()
    if _BASE64.fullmatch(text) is None:
        return text.encode()
    try:
        body = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return text.encode()
    if encoding is Encoding.BASE64:
        return body
    # in `auto` it has to look like JSON or a URI, as no text that happens to be base64 does when it is decoded
    try:
        inner = body.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return text.encode()
    return body if inner[:1] in ("{", "[") or looks_like_uri(inner) else text.encode()


def _envelope(content: Content) -> str:
    parts: dict[str, Any] = {}
    try:
        parts["text"] = content.body.decode()
    except UnicodeDecodeError:
        parts["base64"] = base64.b64encode(content.body).decode()
    if content.tag:
        parts["tag"] = content.tag
    if content.headers:
        parts["headers"] = content.headers
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    text.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
    if _FORBIDDEN.search(text):
        text = json.dumps(parts, separators=(",", ":"))
    return _ENVELOPE + text[1:]


def _unpacked(body: bytes) -> Content:
    """Return what an envelope holds; one that is not ours after all is the body as it is."""
    try:
        parts = json.loads(body)
        inner = parts["text"].encode() if "text" in parts else base64.b64decode(parts["base64"], validate=True)
        tag, headers = parts.get("tag", ""), parts.get("headers", {})
        json.dumps([tag, headers], ensure_ascii=False).encode()  # no row can hold half a character
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Content(body)
    if not isinstance(tag, str) or not isinstance(headers, dict):
        return Content(body)
    return Content(inner, tag, {str(name): str(value) for name, value in headers.items()})
