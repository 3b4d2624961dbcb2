"""Make a case smaller by many candidates at once, for a check that costs as much for one case as for fifty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from queue_source.schema.columns import format_columns
from support.oracle.cases import Case, Scheme, is_taken, without
from support.oracle.rows import Broken

Way = Callable[[Sequence[Case]], list[Broken | None]]
"""What is wrong with each of some cases of one scheme; None where it is not what was wrong before."""
_MOST = 48


def shrunk(case: Case, breaks: Way) -> Broken | None:
    """The smallest case that is found; None where the first one does not break again."""
    (best,) = breaks([case])
    if best is None:
        return None
    for _ in range(40):
        smaller = _smaller(best, breaks)
        if smaller is None:
            return best
        best = smaller
    return best


def _smaller(broken: Broken, breaks: Way) -> Broken | None:
    case = broken.case
    assert isinstance(case, Case)
    data = case.content
    size = max(len(data) // 2, 1)
    while data and size:
        starts = range(0, len(data), size)
        candidates = [replace(case, content=data[:at] + data[at + size :]) for at in starts]
        for found in breaks(candidates[:_MOST]):
            if found is not None:
                return found
        if size == 1:
            break
        size //= 2
    if case.made is not None and len(case.made.rows) > 1:
        rows = case.made.rows
        smaller = [replace(case.made, rows=rows[:at] + rows[at + 1 :]) for at in range(len(rows))]
        for found in breaks([replace(case, made=made) for made in smaller]):
            if found is not None:
                return found
    for other in _simpler(case):
        if is_taken(other):
            (found,) = breaks([other])
            if found is not None:
                return found
    return None


def _simpler(case: Case) -> list[Case]:
    """The case without each of its options, and without each column that is not of its records."""
    simpler: list[Scheme] = [without(case, name) for name in case.options]
    for name in case.schema.names:
        if name not in case.data.names and name != case.options.get("rescuedDataColumn"):
            columns = [field for field in case.schema if field.name != name]
            simpler.append(replace(case, ddl=format_columns(columns)))
    if case.file_format == "json" and len(case.data) > 1:
        others = ([field for field in case.schema if field.name != name] for name in case.data.names)
        simpler += [replace(case, ddl=format_columns(columns)) for columns in others]
    if case.made is not None and case.made.settings:
        for name in case.made.settings:
            less = {key: value for key, value in case.made.settings.items() if key != name}
            simpler.append(replace(case, made=replace(case.made, settings=less)))
    return [one for one in simpler if isinstance(one, Case)]
