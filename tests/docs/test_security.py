"""SECURITY.md: each sentence that promises something names the test that shows it."""

from __future__ import annotations

import re

import pytest

from support.snippets import ROOT

PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
PROMISES = [" ".join(text.split()) for text in re.findall(r"^- (.+?)(?=^- |^\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)]
ADVICE = ("Rows are data", "Other secrets in SQL texts")
"""Beginnings of sentences that say what is not promised."""


@pytest.fixture(scope="module")
def tests() -> set[str]:
    files = [path for folder in ("tests", "integration") for path in (ROOT / folder).rglob("test_*.py")]
    return {name for path in files for name in re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise[:40])
def test_each_promise_names_its_test(promise: str, tests: set[str]) -> None:
    if promise.startswith(ADVICE):
        assert "`test_" not in promise
        return
    found = re.search(r"\. `(test_\w+)`$", promise)
    assert found is not None, promise
    assert found[1] in tests


def test_all_who_are_trusted_with_something_have_a_section() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [
        "Whoever sends a message",
        "Whoever uploads an object",
        "Whoever writes to the store",
        "Whoever writes SQL",
        "Whoever reads output",
        "Whoever reaches the web page",
        "The operator's terminal",
    ]
    assert len(PROMISES) > 20
