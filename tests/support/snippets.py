"""Code blocks of the pages, for tests that run what readers paste."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)  # indented: in a list
_FILE = re.compile(r"[Ss]ave this as `([\w.]+)`:\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `file`: the name under which the sentence before tells the reader to save it."""

    language: str
    text: str
    file: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        named = _FILE.search(text[: block.start()].rstrip())
        found.append(Block(block[2], textwrap.dedent(block[3]), named[1] if named else None))
    return found
