"""The page on logs, and the list of lines that say all themselves, have every message of the code, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from queue_source.common.logs import LEFT_OUT, LINES
from support.snippets import ROOT

PAGE = (ROOT / "docs" / "reference" / "logs.md").read_text("utf-8")
LIST = Path(__file__).with_name("log_lines.md").read_text("utf-8")
_ROW = re.compile(r"^\| `(.+)` \| (debug|info|warning|error|that of the message) \| (.+) \|$", re.MULTILINE)
_ENTRY = re.compile(r"^- (`+)(.+?)\1(?: \((debug|info|error|that of the message)\))?: (.+)$", re.MULTILINE)
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def entries() -> list[tuple[str, str, str]]:
    """Message, level and what to do, of each entry of the page; a message without a level is a warning."""
    listed = PAGE.partition("\n## All messages\n")[2]
    found = [(template, level or "warning", meaning) for _, template, level, meaning in _ENTRY.findall(listed)]
    assert len(found) == len(re.findall(r"^- ", listed, re.MULTILINE))
    return found


def calls_of(path: Path) -> Iterator[ast.Call]:
    """Calls of a method of a logger; whatever it is called, or the test would miss one."""
    tree = ast.parse(path.read_text("utf-8"))
    if "logging" not in {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}:
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and node.args  # not `future.exception()`
        ):
            yield node


def messages() -> dict[str, str]:
    found = {LEFT_OUT: "that of the message"}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for call in calls_of(path):
            assert isinstance(call.func, ast.Attribute)
            (template, *_) = call.args
            assert isinstance(call.func.value, ast.Name), f"{path.name}:{call.lineno}"
            assert call.func.value.id == "logger", f"{path.name}:{call.lineno}: name it logger"
            assert isinstance(template, ast.Constant), f"{path.name}:{call.lineno}: write the message as one text"
            found[str(template.value)] = call.func.attr
    return found


def test_every_message_is_on_the_page_or_in_the_list_with_its_level_and_no_other_is() -> None:
    rows = [*entries(), *_ROW.findall(LIST)]
    assert {template: level for template, level, _ in rows} == messages()
    assert len({template for template, *_ in rows}) == len(rows)


def test_no_error_is_in_the_list_of_lines_that_say_all_themselves() -> None:
    assert not [template for template, level, _ in _ROW.findall(LIST) if level == "error"]


def test_each_message_says_what_to_do() -> None:
    rows = entries()
    assert len(rows) > 30
    assert not [meaning for *_, meaning in rows if meaning == "Nothing to do."]
    assert all(meaning.endswith((".", ").")) for _, _, meaning in rows)


def test_all_lines_are_of_one_logger() -> None:
    """Or the option for their level, and a handler of a user's own, would not get them."""
    named = [
        (path.name, name)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name in re.findall(r"^\w+ = logging\.getLogger\((.*)\)$", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(named) > 10
    assert {name for _, name in named} == {'"cuesqueue"'}


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    from queue_source.coordinator import errors

    assert f"at most {LINES} times a minute" in PAGE
    assert f"a limit of their own, {errors.LINES} a minute" in PAGE
