"""Relation (b): the quick way, by Arrow, gives what the slow way gives, record by record."""

from __future__ import annotations

from hypothesis import strategies as st

from support.oracle import cases
from support.oracle.cases import Case
from support.oracle.rows import Broken, difference, read, read_slowly
from support.oracle.values import Strategy

NAME = "quick-is-slow"


def strategy() -> Strategy:
    formats = st.sampled_from(["csv", "csv", "json", "json", "text"])
    return formats.flatmap(cases.schemes).flatmap(
        lambda scheme: cases.objects(scheme, 6).map(lambda content: cases.case_of(scheme, content))
    )


def check(case: Case) -> None:
    quick, slowly = read(case), read_slowly(case)
    kind, detail = difference(case, quick, slowly)
    if kind:
        raise Broken(NAME, case, kind, f"quick or slow: {detail}")
