"""Saved figures as SVG, by matplotlib: the same bytes for the same figures and the same matplotlib.

Text stays text, in the reader's font: every label begins where its line begins, so that no width of a text matters. Ink
and paper are variables that follow the reader's scheme of colours, light or dark; and no picture refers to anything
outside of itself.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

from benchmarks import units
from benchmarks.registry import Breakdown, Measurement, Role
from benchmarks.saved import Saved

COLOURS = {Role.OURS: "#3b7dd8", Role.PEER: "#e08214", Role.FLOOR: "#8c8c8c", Role.BASELINE: "#8fb8ea"}
_PARTS = ("#3b7dd8", "#e08214", "#2a9d6f", "#c7a500", "#8a63c9", "#d1495b", "#4fb3bf", "#a0682a")
_REST = "#8c8c8c"
_INK, _PALE = "#010203", "#040506"
"""Stand for the variables `--ink` and `--pale`."""
_STYLE = """<style>
:root { --ink: #2b2f36; --pale: #c9ccd1; --paper: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ink: #d5d8de; --pale: #4a4f5a; --paper: #1e2129 } }
svg { background: var(--paper) }
text { font: 9px system-ui, sans-serif; fill: var(--ink) }
* { stroke-linejoin: round; stroke-linecap: butt }
</style>"""
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cuesqueue",
    "font.family": "DejaVu Sans",  # matplotlib's own, on every machine
    "font.size": 9.0,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _PALE,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "grid.color": _PALE,
    "grid.linewidth": 0.6,
    "xtick.color": _PALE,
    "xtick.labelcolor": _INK,
    "xtick.major.size": 0.0,
    "lines.solid_capstyle": "butt",
}
_POINTS = 72.0  # an inch
_WIDTH, _LEFT, _RIGHT = 600.0, 10.0, 235.0
"""In points; on the right is room for what is written behind the longest bar."""
_TOP, _BOTTOM = 4.0, 32.0
_LINE, _BAR, _SPACE = 13.0, 12.0, 8.0
_COLUMNS = 2
"""Of the parts' names."""
_WIDE = 100
"""From this ratio of the largest to the smallest on, the axis is logarithmic, and bars become points."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The runs of one thing: what is written above it (or nothing) and behind it."""

    above: str
    behind: str
    role: Role
    middle: float
    runs: Sequence[float]


def pictures(saved: Saved) -> dict[str, str]:
    """Name of the file -> SVG: the cases of a benchmark, and the parts where they are known."""
    with mpl.rc_context(_SETTINGS):
        found = {f"{saved.benchmark}.svg": _cases(saved.measurements)}
        breakdowns = [breakdown for measurement in saved.measurements for breakdown in measurement.breakdowns]
        if breakdowns:
            found[f"{saved.benchmark}-parts.svg"] = _parts(breakdowns)
    return found


def bars(measurements: Sequence[Measurement]) -> Iterator[Bar]:
    """A bar for each measurement, and one for what it is compared with, unless that is there already."""
    rates = unit_of_rates(measurements) is not None
    there = [tuple(measurement.seconds) for measurement in measurements]
    for m in measurements:
        compared = f", {units.ratio(m.ratio)} {m.against}" if m.compared and m.ratio else ""
        yield _bar(m, rates, m.case, compared, m.role, m.seconds)
        if m.reference and tuple(m.reference) not in there:
            there.append(tuple(m.reference))
            yield _bar(m, rates, "", f", {m.against}", m.reference_role, m.reference)


def unit_of_rates(measurements: Sequence[Measurement]) -> str | None:
    """What all measurements count; without one, seconds are drawn."""
    counted = {measurement.unit if measurement.amount else None for measurement in measurements}
    return counted.pop() if len(counted) == 1 else None


def _bar(m: Measurement, rates: bool, above: str, behind: str, role: Role, seconds: Sequence[float]) -> Bar:
    middle = statistics.median(seconds)
    if not rates:
        return Bar(above, units.seconds(middle) + behind, role, middle, seconds)
    rate = m.amount / middle
    return Bar(above, units.rate(rate, m.unit) + behind, role, rate, [m.amount / run for run in seconds])


def _cases(measurements: Sequence[Measurement]) -> str:
    drawn = list(bars(measurements))
    unit = unit_of_rates(measurements)
    height = sum(_BAR + (_SPACE + _LINE if bar.above else 0) for bar in drawn)
    figure, axes = _canvas(height, _RIGHT, f"{unit}/s: more is better" if unit else "seconds: less is better")
    least, most = (end(value for bar in drawn for value in bar.runs) for end in (min, max))
    wide = most > _WIDE * least
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.set_xlim(least / 2 if wide else 0, most)
    y = 0.0
    for bar in drawn:
        if bar.above:
            y += _SPACE + _LINE
            _text(axes, 0, y - 3, bar.above)
        y += _BAR
        middle = y - _BAR / 2
        if wide:
            axes.plot([bar.middle], [middle], "o", color=COLOURS[bar.role], markersize=7)
        else:
            axes.barh(middle, bar.middle, _BAR - 2, color=COLOURS[bar.role])
        axes.plot([min(bar.runs), max(bar.runs)], [middle, middle], color=_INK, linewidth=1.2)
        end_of_bar = max(*bar.runs, bar.middle), middle
        axes.annotate(bar.behind, end_of_bar, (6, -3), textcoords="offset points", annotation_clip=False)
    return _svg(figure)


def _parts(breakdowns: Sequence[Breakdown]) -> str:
    """A bar for each breakdown, and under it the names and medians of its parts."""
    named = [list(_named(breakdown)) for breakdown in breakdowns]
    lines = [-(-len(parts) // _COLUMNS) for parts in named]
    height = sum(2 * _SPACE + _LINE + _BAR + count * _LINE for count in lines)
    figure, axes = _canvas(height, _LEFT, "milliseconds, medians")
    axes.set_xlim(0, 1000 * max(sum(seconds for _, seconds, _ in parts) for parts in named))
    y = 0.0
    for breakdown, parts, count in zip(breakdowns, named, lines, strict=True):
        y += _SPACE + _LINE
        _text(axes, 0, y - 3, breakdown.of)
        begin = 0.0
        for number, (name, seconds, colour) in enumerate(parts):
            axes.barh(y + _BAR / 2, 1000 * seconds, _BAR, left=begin, color=colour)
            begin += 1000 * seconds
            column, line = number % _COLUMNS / _COLUMNS, number // _COLUMNS
            _text(axes, column, y + _BAR + (line + 1) * _LINE, "\N{BLACK SQUARE}", colour)
            _text(axes, column + 0.02, y + _BAR + (line + 1) * _LINE, f"{name}: {units.seconds(seconds)}")
        y += _BAR + count * _LINE + _SPACE
    return _svg(figure)


def _named(breakdown: Breakdown) -> Iterator[tuple[str, float, str]]:
    """Name, seconds and colour of each part, and of what is left of the whole."""
    for part, colour in zip(breakdown.parts, itertools.cycle(_PARTS), strict=False):
        yield part.name, part.seconds, colour
    rest = breakdown.whole - sum(part.seconds for part in breakdown.parts)
    if rest > 0:
        yield "the rest", rest, _REST


def _canvas(height: float, right: float, below: str) -> tuple[Figure, Axes]:
    """Axes whose y is points from above, so that everything has its place without any layout."""
    whole = _TOP + height + _BOTTOM
    figure = Figure((_WIDTH / _POINTS, whole / _POINTS), facecolor="none")
    axes = figure.add_axes(
        (_LEFT / _WIDTH, _BOTTOM / whole, (_WIDTH - _LEFT - right) / _WIDTH, height / whole), facecolor="none"
    )
    axes.set_ylim(height, 0)
    axes.yaxis.set_visible(False)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.set_xlabel(below, loc="left")
    return figure, axes


def _text(axes: Axes, x: float, y: float, text: str, colour: str = _INK) -> None:
    """`x` is a share of the axes, `y` their own points."""
    axes.text(x, y, text, color=colour, transform=axes.get_yaxis_transform())


def _svg(figure: Figure) -> str:
    """What matplotlib writes, without what differs from run to run, with our style sheet."""
    written = StringIO()
    figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", _STYLE, text, count=1, flags=re.DOTALL)
    text = text.replace(_INK, "var(--ink)").replace(_PALE, "var(--pale)")
    text = re.sub(
        r"font-size: 9px; font-family: 'DejaVu Sans'; (?:text-anchor: start; )?", "", text
    )  # in the style sheet
    text = re.sub(r' transform="rotate\(-0 .*?"', "", text).replace('<text style="fill: var(--ink)"', "<text")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
