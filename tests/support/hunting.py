"""Secrets that are made, and looked for in outputs in each form that they may have there."""

from __future__ import annotations

import base64
from urllib.parse import quote, quote_plus, unquote


class Secrets:
    """Makes secrets, and knows all that it has made."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def new(self, name: str) -> str:
        """Plain letters and digits: the same in a URL, a plan and a log."""
        return self.made.setdefault(name, f"hush{len(self.made)}x{name.replace('.', 'x').lower()}")

    def awkward(self, name: str) -> str:
        """As it stands in a URL, percent-encoded: each character has to be, or changes where a password ends."""
        return self.made.setdefault(name, quote(f"hush/{len(self.made)}@{name}:#+%?&=x", safe=""))

    def found_in(self, content: bytes) -> list[str]:
        return [name for name, secret in self.made.items() if any(form in content for form in forms(secret))]


def forms(secret: str) -> set[bytes]:
    """The secret raw, percent-encoded once and twice, and in base64, also as the middle of a longer text."""
    raw = unquote(secret)
    texts = {secret, raw, quote(raw, safe=""), quote_plus(raw), quote(secret, safe="")}
    encoded = {text.encode() for text in texts}
    return encoded | {part for text in encoded for shift in range(3) for part in _in_base64(text, shift)}


def _in_base64(text: bytes, shift: int) -> tuple[bytes, bytes]:
    """What base64 makes of the text behind `shift` other bytes, without the characters that its neighbours change."""
    whole = (len(text) + shift) * 8 // 6
    first = (shift * 8 + 5) // 6
    padded = b"\0" * shift + text
    return base64.b64encode(padded)[first:whole], base64.urlsafe_b64encode(padded)[first:whole]
