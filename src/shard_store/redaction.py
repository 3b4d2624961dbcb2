"""Hiding what must not be shown: passwords in URLs, URLs in texts, what a terminal obeys. For the whole project.

Purely textual, and greedy where a URL is malformed, because malformed URLs are what error messages show: too much is
hidden rather than too little. (SQLAlchemy's own rendering shows the rest of a password after an `@` that was not
percent-encoded.)
"""

from __future__ import annotations

import re

HIDDEN = "***"

_NEXT_URL = re.compile(r",(?=[A-Za-z][\w+.\-]*://)")  # between the URLs of a comma-separated list
# A "?" that no `name=` follows belongs to a password that was not percent-encoded, and is hidden with it.
_QUERY = re.compile(r"\?(?=[\w.\-]+=)")
_PORT = re.compile(r":\d*(?:/|$)")
# Words that mean a secret wherever a name holds them, and those that do as the last word; `ssl_key` names a file.
_SECRET_PARAMETER = re.compile(
    r"((?:^|[?&;\s])(?!ssl_?key=)(?:[\w.\-]{0,64}?"
    r"(?:password|passwd|passphrase|pwd|secret|token|credential|signature|(?:access|account|api|private|shared)[_\-]?key|sig)"
    r"[\w.\-]{0,64}|(?:[\w.\-]{0,64}[._\-])?(?:pass|auth|authorization|key))=)[^&;#\s]*",
    re.IGNORECASE,
)
_URL_IN_TEXT = re.compile(r"[A-Za-z][\w+.\-]{0,31}://\S+")
_LONGEST = 8_192
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All of C0 and C1 but line ends and tabs, what changes the direction of text, and halves of characters."""


def redact_url(url: str) -> str:
    """Return `url`, or each of a comma-separated list, with its password and secret query parameters as `***`."""
    return ",".join(_redact_one(part) for part in _NEXT_URL.split(url))


def quote(value: str) -> str:
    """Return the value for an error message: quoted, shortened, without passwords."""
    text = redact_url(value)
    return repr(text if len(text) <= 100 else text[:100] + "...")


def redact_text(text: str) -> str:
    """Return the text with every URL in it redacted: for messages of other libraries that we pass on.

    Shortened before that, since names of objects are in such texts, and senders of messages choose them.
    """
    if len(text) > _LONGEST:  # a URL that is cut might end within its password: it ends at its scheme
        head = text[:_LONGEST]
        last = "" if head[-1].isspace() else head.split()[-1]
        scheme, separator, _ = last.partition("://")
        text = f"{head.removesuffix(last)}{scheme}{separator}{HIDDEN}..." if separator else f"{head}..."
    return _hide_parameters(_URL_IN_TEXT.sub(lambda match: redact_url(match.group()), text))


def visible(text: str) -> str:
    """Return the text with what a terminal would obey written as `\\x1b`: senders of messages write to no terminal."""
    return _CONTROLS.sub(
        lambda control: f"\\x{ord(control[0]):02x}" if control[0] <= "\xff" else f"\\u{ord(control[0]):04x}", text
    )


def without_password(text: str, password: str | None) -> str:
    """Redact a library's own message, and hide the password that we gave to it."""
    redacted = redact_text(text)
    return redacted.replace(password, HIDDEN) if password else redacted


def _redact_one(url: str) -> str:
    scheme, separator, address = url.partition("://") if "://" in url else ("", "", url)
    head, query = _parted(address, bool(separator))
    user_info, at, host = head.rpartition("@")
    user, colon, _ = user_info.partition(":")
    authority = f"{user}:{HIDDEN}@{host}" if at and colon else head
    return scheme + separator + _hide_parameters(authority) + _hide_parameters(query)


def _parted(address: str, has_scheme: bool) -> tuple[str, str]:
    """Split a URL into the part that may hold a password, and its query with the `?`."""
    match = _QUERY.search(address)
    if match is None:
        return address, ""
    head, query = address[: match.start()], address[match.start() :]
    unfinished = head.find(":")
    if has_scheme and "@" not in head and "@" in query and unfinished >= 0 and not _PORT.match(head, unfinished):
        # `user:pass?x=y@host`: the password itself holds what looks like a query
        end = address.rindex("@")
        later = _QUERY.search(address, end)
        return (address, "") if later is None else (address[: later.start()], address[later.start() :])
    return head, query


def _hide_parameters(text: str) -> str:
    return _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", text)
