"""URIs in their one form: scheme in small letters, `s3` for Hadoop's names of it, local files as `file:///path`. Pure.

Objects of Azure have one name for both services of an account: `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`.

The path after the bucket (or `file://`) is never encoded: `%`, `+`, `?` and `#` mean themselves. Only a URI that comes
in as `file:` is decoded, and one of Azure's that begins with `https:`, since such URIs name a path in that way.
"""

from __future__ import annotations

import json
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
_HADOOP = re.compile(r"(?:abfs|wasb)s?://(?P<container>[^/@]+)@(?P<host>[^/]*)(?P<rest>(?:/.*)?)", re.DOTALL | re.I)
_WEB = re.compile(
    r"https?://(?P<host>[a-z0-9]{3,24}\.(?:z\d+\.)?(?:blob|dfs)\."
    r"(?:core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net|storage\.azure\.net))(?::443|:80)?"
    r"/(?P<container>[^/?#]+)(?P<rest>(?:/.*)?)",
    re.DOTALL | re.I,
)
_BLOB_HOST = re.compile(r"(?P<account>[^.]+\.(?:z\d+\.)?)blob\.")
_SUBJECT = re.compile(r"/?blobServices/[^/]+/containers/(?P<container>[^/]+)/blobs/(?P<key>.+)", re.DOTALL)
_LONGEST_KEYS = {"s3": 1024, "gs": 1024}
_LONGEST_OTHER = 4096  # 1,024 characters in Azure, and paths of Linux
_HADOOP_ALONE = re.compile(r"(?:abfs|wasb)s?://", re.I)
_NOT_ENCODED = re.compile(r'[^\x21-\x7e]|["#<>?\\^`{|}]')
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
    text = azure_uri(text) or text
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


def written_uri(uri: str) -> str:
    """Write a URI so that `plain_uri` reads the same: the path of a file whose URI would be decoded, and quotes around
    white space, which no message has at its ends.
    """
    text = uri.removeprefix("file://") if "%" in uri else uri
    return text if text == text.strip() else json.dumps(text, ensure_ascii=False)


def plain_prefix(text: str) -> str:
    """Return a prefix in the same form, so that texts can be compared: `s3a://b` is `s3://b/`, never `s3://b-other/`.

    In a local path `//` and `/./` become `/`, as in the URIs of its files. Raises ValueError for what no URI begins
    with.
    """
    if text.startswith("/"):
        return f"file://{_EMPTY_SEGMENTS.sub('/', text)}"
    try:
        text = azure_uri(text) or text
    except MalformedNotification as error:
        raise ValueError(str(error)) from None
    parts = _PREFIX.fullmatch(text)
    if parts is None or (parts["bucket"] and _scheme(parts["scheme"]) == "file"):
        raise ValueError(f"no URI begins with {text!r}; write scheme://bucket/ or file:///folder/")
    scheme, path = _scheme(parts["scheme"]), parts["rest"] or ("/" if parts["bucket"] else "")
    return f"{scheme}://{parts['bucket']}{_EMPTY_SEGMENTS.sub('/', path) if scheme == 'file' else path}"


def azure_uri(uri: str) -> str | None:
    """Return the one name of an object or prefix of Azure; None for what is not Azure's. Raises MalformedNotification.

    The URL of a service is decoded, without its query, which may hold a token.
    """
    if _HADOOP_ALONE.fullmatch(uri):  # a prefix of all containers
        return "abfss://"
    if (parts := _HADOOP.fullmatch(uri)) is not None:
        return _azure(parts["container"], parts["host"], parts["rest"])
    if (parts := _WEB.fullmatch(uri)) is not None:
        path = parts["rest"].partition("?")[0].partition("#")[0]
        return _azure(unquoted(parts["container"]), parts["host"], unquoted(path))
    return None


def azure_event_uri(url: str, subject: str) -> str:
    """Return the name of the object of an event. Raises MalformedNotification.

    The event has the name twice: in `url`, and in `subject`, which is not encoded. Where they are the same text, the
    URL is encoded, unless it has what no encoded URL has.
    """
    parts = _WEB.fullmatch(url)
    if parts is None or not parts["rest"].strip("/"):
        raise MalformedNotification(f"{redact_url(url)[:100]!r} is not the URL of a blob")
    named = _SUBJECT.fullmatch(subject)
    text = parts["rest"][1:]
    key = unquoted(text)
    if named is not None and key != named["key"] and text == named["key"] and _NOT_ENCODED.search(text):
        key = text
    return _azure(unquoted(parts["container"]), parts["host"], f"/{key}")


def _azure(container: str, host: str, path: str) -> str:
    host = _BLOB_HOST.sub(r"\g<account>dfs.", host.lower(), count=1)
    if "." not in host:
        host = f"{host}.dfs.core.windows.net"
    return f"abfss://{container}@{host}{path}"


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


def is_text(name: str) -> bool:
    """Tell whether a name is Unicode text: without lone surrogates, which stand for bytes that are not UTF-8."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
