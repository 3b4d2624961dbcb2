"""How often each step, command, disaster, spelling and failpoint was reached: what was not is a hole in it."""

from __future__ import annotations

from collections.abc import Mapping

from support.explorer.explorer import TAKEN
from support.explorer.operators import COMMANDS
from support.explorer.points import OF_CODE, OURS, REACHED
from support.explorer.restores import PUT_BACK

NOT_HERE = {
    "rows-staged": "sinks that are queues",
    "rows-sent": "sinks that are queues",
    "rows-shown": "sinks that are queues",
    "object-copied": "cleaning by moving",
}
"""Failpoints that the explorer does not reach, and what it lacks for that."""


def table() -> str:
    """Return all counters, as lines."""
    points = {name: REACHED[name] for name in (*OF_CODE, *OURS)}
    others = {name: number for name, number in REACHED.items() if name not in points}
    lines = [
        *_lines("steps", TAKEN),
        *_lines("commands", COMMANDS),
        *_lines("put back", PUT_BACK),
        *_lines("points", points),
        *_lines("at points", others),
    ]
    if holes := [name for name in OF_CODE if not REACHED[name] and name not in NOT_HERE]:
        lines.append(f"not reached: {', '.join(holes)}")
    return "\n".join(lines)


def _lines(title: str, counts: Mapping[str, int]) -> list[str]:
    return [f"{title}:", *(f"  {number:8,}  {name}" for name, number in sorted(counts.items()))] if counts else []
