"""The generated reference pages say what the code does."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from queue_source.options.places import PLACES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["options", "commands", "metrics", "python", "versions"])
def test_the_committed_page_is_what_the_generator_writes(generator: ModuleType, page: str) -> None:
    committed = (generator.REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    generated = getattr(generator, f"{page}_page")()
    assert committed == generated, f"docs/reference/{page}.md is out of date: run `{generator.COMMAND}`"


def test_every_option_is_in_the_reference(generator: ModuleType) -> None:
    page = generator.options_page()
    missing = [option.name for place in PLACES for option in place.options if f"`{option.name}`" not in page]
    assert missing == []


def test_every_option_has_a_help_text_and_every_section_a_title(generator: ModuleType) -> None:
    page = generator.options_page()
    for place in PLACES:
        assert all(option.help.endswith(".") for option in place.options)
        assert all(f"### {title}\n" in page for title in place.sections)


def test_every_public_function_says_what_it_takes_returns_and_raises_and_where_it_runs(generator: ModuleType) -> None:
    for name, function in generator.public_functions().items():
        text = inspect.getdoc(function) or ""
        assert "\nProcess:\n" in text, f"{name}: in which process"
        assert "\nRaises:\n" in text, f"{name}: what it raises"
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), f"{name}: what {parameter} is"
        if str(inspect.signature(function).return_annotation) != "None":
            assert re.search("^(Returns|Yields):$", text, re.MULTILINE), f"{name}: what it returns"


def test_every_public_method_has_a_docstring_that_names_its_parameters(generator: ModuleType) -> None:
    for name, method in generator.public_methods().items():
        text = inspect.getdoc(method) or ""
        assert text, name
        if inspect.isfunction(method) and name != "Queue.publish":
            for parameter in set(inspect.signature(method).parameters) - {"self"}:
                assert re.search(rf"`{parameter}`|^    {parameter}: ", text, re.MULTILINE), f"{name}: {parameter}"


def test_check_names_the_page_that_is_out_of_date_and_the_command_to_run(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "REFERENCE", tmp_path)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    capsys.readouterr()
    (tmp_path / "options.md").write_text("old", encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/reference/options.md is out of date; run `python tools/generate_docs.py`\n"
