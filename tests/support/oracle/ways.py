"""Relation (b): the quick way, by Arrow, gives what the slow way gives, record by record.

Formats with types have one way only: what they should give is made of what was written (`written.py`).
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from support.oracle import cases
from support.oracle.cases import Case
from support.oracle.counting import Draw, one_of_these
from support.oracle.rows import Broken, difference, read, read_slowly

NAME = "quick-is-slow"


@st.composite
def strategy(draw: Draw) -> Case:
    scheme = draw(cases.schemes(draw(one_of_these(("csv", "csv", "json", "json", "text")))))
    if scheme.file_format in ("csv", "json") and draw(one_of_these((False, False, False, True))):
        noticing = replace(scheme, options={**scheme.options, "schemaEvolutionMode": "failOnNewColumns"})
        scheme = noticing if cases.is_taken(noticing) else scheme
    if scheme.is_lines and scheme.file_format != "text" and draw(st.booleans()):
        return cases.case_of(scheme, cases.calm_object(draw, scheme, 2, None))
    return cases.case_of(scheme, cases.an_object(draw, scheme, 6))


def check(case: Case) -> None:
    quick, slowly = read(case), read_slowly(case)
    kind, detail = difference(case, quick, slowly)
    if kind:
        raise Broken(NAME, case, kind, f"quick or slow: {detail}")
