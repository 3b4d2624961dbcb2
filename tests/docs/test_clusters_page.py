"""The pages on clusters and on installing: every platform says whether it was tried, and what they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.snippets import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "clusters.md"
CLOUDS = ROOT / "docs" / "how-to" / "platforms.md"
INSTALL = ROOT / "docs" / "how-to" / "install.md"
PLATFORMS = ["Standalone", "Spark Connect", "YARN", "Kubernetes"]
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_says_at_once_whether_it_was_tried(platform: str) -> None:
    said = SECTIONS[platform].strip()
    assert said.startswith(("**Tried**", "**Not tried.**"))


def test_the_page_of_clouds_says_at_once_that_nothing_was_tried() -> None:
    assert CLOUDS.read_text("utf-8").partition("\n\n")[2].startswith("**Not tried**")


def test_the_extras_that_commands_install_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    named = {
        name
        for page in (PAGE, CLOUDS, INSTALL)
        for found in re.findall(r"(?:cuesqueue|\*\.whl\)|'\.)\[([\w,]+)\]", page.read_text("utf-8"))
        for name in found.split(",")
    }
    assert named >= {"aws", "postgres"}
    assert not [name for name in named if not re.search(rf"^{name} = \[", project, re.MULTILINE)]


def test_the_archive_of_the_page_has_all_packages_and_the_command(tmp_path: Path) -> None:
    (tmp_path / "src").symlink_to(ROOT / "src")
    (command,) = [block.text for block in blocks(INSTALL) if "zipfile" in block.text]
    made = command.replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, check=True, capture_output=True)
    code = (
        "import sys; sys.path.insert(0, 'cuesqueue.zip'); import cuesqueue, pyspark_cuesqueue as p;"
        "print(*{m.__file__.split('.zip')[0] for m in (cuesqueue, p)}, cuesqueue.CuesqueueSource is p.DefaultSource)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split()[1:] == ["True"], done.stderr
    store = ["migrate", "--store", "sqlite:///store.db"]
    run = f"import sys, runpy; sys.path.insert(0, 'cuesqueue.zip'); sys.argv[1:] = {store}"
    run += "; runpy.run_module('queue_source.commands.main', run_name='__main__')"
    migrated = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert migrated.returncode == 0, migrated.stderr
    assert (tmp_path / "store.db").exists()


def test_scripts_name_no_version_that_a_release_would_leave_behind() -> None:
    texts = [page.read_text("utf-8") for page in (PAGE, CLOUDS, INSTALL)]
    assert [found for text in texts for found in re.findall(r"cuesqueue-\d[\d.]*", text)] == []
