"""Numbers as they are shown: three digits, and a unit that fits."""

from __future__ import annotations


def digits(value: float) -> str:
    """Three digits that count, with commas: 12,300 and 0.0123."""
    rounded = float(f"{value:.3g}")
    if rounded >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:.1f}" if rounded >= 10 else f"{rounded:.2f}" if rounded >= 1 else f"{rounded:g}"


def seconds(value: float) -> str:
    """In s, or in ms where that is easier to read."""
    return f"{digits(value)} s" if value >= 1 else f"{digits(value * 1000)} ms"


def rate(value: float, unit: str) -> str:
    return f"{digits(value)} {unit}/s"


def ratio(value: float) -> str:
    return f"{value:.2f} ×" if value < 10 else f"{digits(value)} ×"
