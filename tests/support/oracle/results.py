"""What a run of the oracle found, and how it is printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from support.oracle.rows import Broken


@dataclass
class Result:
    """What a run found: the smallest case of each kind of failure; and how much it tried."""

    broken: dict[tuple[str, str], Broken] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{relation}: {count} cases" for relation, count in sorted(self.tried.items())]
        lines.append(f"{sum(self.tried.values()) * 60 / max(self.seconds, 0.001):.0f} cases a minute")
        lines += [pasted(broken) for broken in self.broken.values()]
        return "\n".join(lines)


def pasted(broken: Broken) -> str:
    """A failure as a test."""
    name = "".join(c if c.isalnum() else "_" for c in f"{broken.relation} {broken.kind}")
    comment = "\n".join(f"    # {line}" for line in broken.detail.splitlines()[:12])
    return f"\ndef test_{name}() -> None:\n{comment}\n    check({broken.relation!r}, {broken.case!r})\n"
