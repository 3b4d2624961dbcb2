"""How often each edge, type, option and format was reached: a generator that never makes an edge proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hypothesis.strategies import SearchStrategy, one_of, sampled_from

Draw = Callable[[SearchStrategy[Any]], Any]

REACHED: Counter[str] = Counter()


def reached(*labels: str) -> None:
    REACHED.update(labels)


def edges(of: str, **strategies: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Draw from one of several strategies; which one is counted, as `of: its name`."""

    def counted(name: str, strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
        label = f"{of}: {name.strip('_')}"
        REACHED.setdefault(label, 0)

        def count(value: Any) -> Any:
            REACHED[label] += 1
            return value

        return strategy.map(count)

    return one_of([counted(name, strategy) for name, strategy in strategies.items()])


def report() -> str:
    """All labels and how often each was reached, the rarest first in each group."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for label, count in REACHED.items():
        group, _, name = label.partition(": ")
        groups.setdefault(group, []).append((count, name))
    lines = []
    for group, members in sorted(groups.items()):
        lines.append(f"{group}: {', '.join(f'{name} {count}' for count, name in sorted(members))}")
    return "\n".join(lines)


def one_of_these(choices: tuple[Any, ...]) -> SearchStrategy[Any]:
    return _one_of(choices, tuple(map(type, choices)))


@lru_cache(maxsize=4096)
def _one_of(choices: tuple[Any, ...], kinds: tuple[type, ...]) -> SearchStrategy[Any]:
    """`kinds`: True, 1 and 1.0 are equal."""
    return sampled_from(choices)


def pick(draw: Draw, label: str, *ways: str) -> str:
    """Draw one of several ways; which one is counted. One that is named several times is as often as likely."""
    way: str = draw(one_of_these(ways))
    REACHED[f"{label}: {way}"] += 1
    return way
