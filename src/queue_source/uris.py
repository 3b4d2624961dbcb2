"""URIs in their one form: scheme in small letters, `s3` for Hadoop's names of it, local files as `file:///path`. Pure.

The path after the bucket (or `file://`) is never encoded: `%`, `+`, `?` and `#` mean themselves. Only a URI that comes
in as `file:` is decoded, since such a URI names a path in that way.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote, unquote_plus

from queue_source.errors import MalformedNotification
from shard_store.redaction import redact_url

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31}):(?P<rest>//.+|/.+)", re.DOTALL)
_PREFIX = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://(?P<bucket>[^/]*)(?P<rest>(?:/.*)?)", re.DOTALL)
_EMPTY_SEGMENTS = re.compile(r"/(?:\.?/)+")
_CONTROL = re.compile(r"[\0-\x1f]")
_S3_SCHEMES = ("s3a", "s3n")  # Hadoop's names for the same objects
_BUCKET = re.compile(r"[\w$][\w.:@$-]{0,511}", re.ASCII)  # also `container@account.domain`, and tenants and ports
_LONGEST_KEYS = {"s3": 1024, "gs": 1024}
_LONGEST_OTHER = 4096  # 1,024 characters in Azure, and paths of Linux
_LITERAL_KEYS = ("gs",)  # their keys travel encoded as one word, slashes too


def looks_like_uri(text: str) -> bool:
    """Tell whether a text is meant as a URI or an absolute path, valid or not."""
    return text.startswith("/") or _URI.fullmatch(text) is not None


def plain_uri(text: str) -> str:
    """Return the URI of an object, or of a local file by its absolute path. Raises MalformedNotification."""
    if _CONTROL.search(text):
        raise MalformedNotification("a URI holds no control characters; send one message for each URI")
    if text.startswith("/"):
        return _local(text)
    parts = _URI.fullmatch(text)
    if parts is None:
        raise MalformedNotification("not a URI (scheme://bucket/key) and not an absolute path")
    scheme, location = _scheme(parts["scheme"]), parts["rest"]
    if scheme == "file":
        host, slash, path = location[2:].partition("/") if location.startswith("//") else ("", "/", location[1:])
        if host not in ("", "localhost") or not slash:
            raise MalformedNotification("a file URI names a path of this machine: file:///path")
        return _local("/" + unquoted(path))
    bucket, _, key = location[2:].partition("/")
    if not location.startswith("//") or not bucket or not key:
        raise MalformedNotification("the URI names no object: scheme://bucket/key")
    return f"{scheme}://{bucket}/{key}"


def plain_prefix(text: str) -> str:
    """Return a prefix in the same form, so that texts can be compared: `s3a://b` is `s3://b/`, never `s3://b-other/`.

    In a local path `//` and `/./` become `/`, as in the URIs of its files. Raises ValueError for what no URI begins
    with.
    """
    if text.startswith("/"):
        return f"file://{_EMPTY_SEGMENTS.sub('/', text)}"
    parts = _PREFIX.fullmatch(text)
    if parts is None or (parts["bucket"] and _scheme(parts["scheme"]) == "file"):
        raise ValueError(f"no URI begins with {text!r}; write scheme://bucket/ or file:///folder/")
    scheme, path = _scheme(parts["scheme"]), parts["rest"] or ("/" if parts["bucket"] else "")
    return f"{scheme}://{parts['bucket']}{_EMPTY_SEGMENTS.sub('/', path) if scheme == 'file' else path}"


def check_object(uri: str) -> None:
    """Refuse a name that no store can hold, or that would change the request for it. Raises MalformedNotification.

    With addresses of the form `host/bucket/key` a bucket `b?acl=` would be the bucket `b` and a query.
    """
    scheme, _, location = uri.partition("://")
    bucket, _, key = location.partition("/")
    if scheme != "file" and not _BUCKET.fullmatch(bucket):
        raise MalformedNotification(f"{redact_url(bucket)[:100]!r} is not a bucket name")  # `user:password@host`
    size, most = len(key.encode()), _LONGEST_KEYS.get(scheme, _LONGEST_OTHER)
    if size > most:
        raise MalformedNotification(
            f"the key {key[:60]!r}... has {size} bytes, and the longest that there can be has {most}"
        )


def climbs(uri: str) -> bool:
    """Tell whether a segment `.` or `..` makes clients ask for another object: HTTP resolves them, over buckets too."""
    if "/." not in uri:  # nearly all
        return False
    scheme, _, path = uri.partition("://")
    return scheme not in _LITERAL_KEYS and any(part in (".", "..") for part in path.split("/"))


def unquoted(text: str, plus: bool = False) -> str:
    """Decode `%XX` in a text, and `+` as a space where `plus` is true. Raises MalformedNotification."""
    try:
        return (unquote_plus if plus else unquote)(text, errors="strict")
    except UnicodeError:
        raise MalformedNotification("a key is not UTF-8 once its %XX are decoded") from None


def _scheme(written: str) -> str:
    scheme = written.lower()
    return "s3" if scheme in _S3_SCHEMES else scheme


def _local(path: str) -> str:
    # no `..` remains, or a path could leave the allowed folders
    plain = posixpath.normpath(path).lstrip("/")
    if not plain:
        raise MalformedNotification("the path names no file")
    return f"file:///{plain}"
