"""The page on installing: it has every extra, and its commands make a wheel and a list of requirements."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.test_pages import Reader
from shard_store import open_store
from support.snippets import ROOT, blocks

PATH = ROOT / "docs" / "how-to" / "install.md"
PAGE = blocks(PATH)


def line_of(part: str) -> str:
    (line,) = [line for block in PAGE for line in block.text.splitlines() if part in line]
    return line


def test_the_list_has_every_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = set(re.findall(r"^(\w+) = \[", project.partition("\n[")[0], re.MULTILINE))
    section = PATH.read_text("utf-8").partition("## Extras\n")[2].partition("\n## ")[0]
    named = {name for line in re.findall(r"^- (.+?):", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}
    assert named == extras - {"demo"}  # `make demo` installs that one


@pytest.mark.skipif(find_spec("hatchling") is None, reason="building without a network needs hatchling here")
def test_the_command_for_a_wheel_makes_one(tmp_path: Path) -> None:
    command = line_of("pip wheel").replace(
        "pip wheel", f"{sys.executable} -m pip wheel --no-build-isolation --no-index"
    )
    command = command.replace("--wheel-dir dist", f"--wheel-dir {tmp_path}")
    subprocess.run(["bash", "-ec", command], cwd=ROOT, check=True, capture_output=True)
    assert [wheel.name.partition("-")[0] for wheel in tmp_path.glob("*.whl")] == ["cuesqueue"]


def test_the_requirements_leave_pyspark_out(tmp_path: Path) -> None:
    Reader(tmp_path).run(line_of("cuesqueue.requirements"))
    named = (tmp_path / "requirements.txt").read_text("utf-8").lower()
    assert "boto3" in named
    assert "psycopg" in named
    assert "pyspark" not in named


def test_a_store_is_migrated_by_the_command_of_the_page(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/cuesqueue.db").close()
    Reader(tmp_path).run(line_of("cuesqueue migrate"))


def test_how_tos_leave_installing_to_this_page() -> None:
    """cuesqueue is on no index: what else installs it names a file, or an environment that has it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
    wrong = re.compile(r"pip install '?cuesqueue\b(?!\[[\w,]+\] @)")
    assert {page.name for page in pages if wrong.search(page.read_text("utf-8"))} <= {PATH.name}
