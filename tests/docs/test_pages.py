"""The pages: links lead somewhere, scripts run, and what is printed is what the page shows."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from queue_source.options.places import PLACES
from shard_store import open_store
from support.plain_words import ON_PAGES, phrases
from support.snippets import PAGES, ROOT, Block, blocks

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
_ID = re.compile(r'<a id="([^"]+)">')
REPOSITORY = "https://github.com/cuesqueue/cuesqueue/blob/main/"
README, TUTORIAL, STORE = ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "how-to" / "store.md"
WRITTEN = [page for page in PAGES if page.parent.name != "reference" and page.name != "prior-designs.md"]
INSTALL = "python3 -m venv .venv\n. .venv/bin/activate\npip install .\n"


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text("utf-8")):
        path, _, fragment = target.partition("#")
        if path.startswith(REPOSITORY):
            found = ROOT / path.removeprefix(REPOSITORY)
        elif path.startswith(("https://", "http://")):
            continue
        else:
            found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if fragment:
            text = found.read_text("utf-8")
            assert fragment in {*map(anchor, _HEADING.findall(text)), *_ID.findall(text)}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_files_of_the_repository(page: Path) -> None:
    assert [
        target for target in _PICTURE.findall(page.read_text("utf-8")) if not (page.parent / target).is_file()
    ] == []


def test_the_index_of_what_one_wants_names_every_page_of_its_folder() -> None:
    index = ROOT / "docs" / "how-to" / "index.md"
    linked = {target.partition("#")[0] for target in _LINK.findall(index.read_text("utf-8"))}
    assert {page.name for page in index.parent.glob("*.md")} - {index.name} - linked == set()


def test_the_readme_has_only_links_that_work_on_the_page_of_a_package_index() -> None:
    assert [target for target in _LINK.findall(README.read_text("utf-8")) if not target.startswith("https://")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_no_machine(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not re.search(r"/(?:home/\w|Users/\w|root/)", text)


def test_the_readme_and_the_design_are_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 100
    assert len((ROOT / "docs" / "design.md").read_text("utf-8").splitlines()) < 120


def test_files_that_the_design_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "design.md").read_text("utf-8"))
    there = [str(path) for path in (ROOT / "src").rglob("*.py")]
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_the_pages_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_import_from_the_face_alone(page: Path) -> None:
    trees = [ast.parse(block.text) for block in blocks(page) if block.language == "python"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in modules if name.startswith(("queue_source", "shard_store"))} == set()


_SPARKS_OWN = {"checkpointLocation"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_examples_are_options(page: Path) -> None:
    known = {option.name for place in PLACES for option in place.options} | _SPARKS_OWN
    trees = [ast.parse(block.text) for block in blocks(page) if block.language == "python"]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "option"
        and isinstance(call.args[0], ast.Constant)
    }
    assert {name for name in named if not str(name).startswith(("catalog.", "kafka."))} - known == set()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_avoid_phrases_that_read_like_a_translation(page: Path) -> None:
    assert phrases(page.read_text("utf-8"), ON_PAGES) == []


class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "NO_COLOR": "1",
        }
        command = programs / "cuesqueue"  # as the installed one, whether or not this environment has it
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m queue_source.commands.main "$@"\n')
        command.chmod(0o755)

    def run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def follow(self, page: list[Block]) -> None:
        """Save what is to be saved, run what is to be run, and compare what was printed with a block of text."""
        printed = ""
        for block in page:
            if block.file is not None:
                (self.folder / block.file).write_text(block.text, "utf-8")
            elif block.language == "bash":
                printed = self.run(block.text)
            elif block.language == "python":
                (self.folder / "snippet.py").write_text(block.text, "utf-8")
                printed = self.run("python snippet.py")
            else:
                assert _plain(block.text) in _plain(printed)


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.engine
def test_what_the_readme_shows_runs_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    first, *rest = blocks(README)
    assert first.text.startswith("make demo")  # the targets have tests of their own
    reader.follow(rest)
    for folder, row in (("published", {"id": 1, "name": "Ada"}), ("people", {"id": 2, "name": "Grace"})):
        script = (
            f"import pyarrow.parquet as q; t = q.read_table('{folder}'); print(t.select(['id', 'name']).to_pylist())"
        )
        assert reader.run(f'python -c "{script}"').strip() == str([row])


@pytest.mark.engine
def test_the_tutorial_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    first, *rest = blocks(TUTORIAL)
    assert first.text == INSTALL  # the next test installs; here the environment of the tests is the reader's
    Reader(tmp_path).follow(rest)


@pytest.mark.skipif(find_spec("hatchling") is None, reason="installing without a network needs hatchling here")
def test_what_pip_installs_is_the_command_and_the_packages(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    assert (tmp_path / "bin" / "cuesqueue").exists()
    assert {"queue_source", "shard_store", "pyspark_cuesqueue.py"} <= {path.name for path in tmp_path.iterdir()}


def test_the_commands_that_prune_work_on_a_store(tmp_path: Path) -> None:
    pruning, of_data = [block.text for block in blocks(STORE) if block.language == "bash"]
    open_store(f"sqlite:///{tmp_path / 'cuesqueue.db'}").close()
    (tmp_path / "published").mkdir()
    reader = Reader(tmp_path)
    reader.run(pruning)
    reader.run(of_data)


def test_a_program_reads_the_shared_store(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'cuesqueue.db'}").close()
    script = """
from cuesqueue import open_store

with open_store("sqlite:///cuesqueue.db") as store:
    print(sum(map(len, store.pages("attempts", source="files"))), "published batches")
"""
    Reader(tmp_path).follow([Block("python", script, None), Block("text", "0 published batches", None)])


def test_messages_that_troubleshooting_quotes_are_messages_of_the_code() -> None:
    """The fixed parts of quoted messages occur in the sources, so that searching for one finds it."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    source = re.sub(r'"\s*f?"', "", "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")))
    headings = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(headings) >= 14
    for heading in headings:
        for part in re.split(r"'?(?:file:///)?\.\.\.'?", heading):
            assert part.strip() in source, heading
