"""Hooks of MkDocs: one set of pages, whose links work in the repository and on the site.

Pages outside of docs/ (CHANGELOG, CONTRIBUTING ...) become pages of the site. A link that leaves docs/ leads to such a
page, or else to the file in the repository. The icon is that of `cuesqueue serve`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Of the repository -> of the site."""

ICON = ROOT / "src" / "queue_source" / "serve" / "static" / "icon.svg"
_BREAKPOINTS = {"76.25em": "68.75em", "76.234375em": "68.734375em"}
"""From which width on the theme shows its menu: 1,100 pixels instead of 1,220, so that a screen of 1,200 has it."""

_LINK = re.compile(r"(?<!!)(\[[^\]]+\]\()([^)\s]+)(\))")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are not in docs/, and the icon."""
    files.append(File.generated(config, "icon.svg", content=ICON.read_text("utf-8")))
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Let the page's links lead to pages of the site."""
    place = page.file.src_uri
    source = next((name for name, target in PAGES.items() if target == place), f"docs/{place}")
    return _LINK.sub(
        lambda link: link[1] + site_link(link[2], source, place, config["extra"]["repository"]) + link[3], markdown
    )


def site_link(link: str, source: str, place: str, repository: str) -> str:
    """A link of the file `source` of the repository, as it is on the page `place` of the site."""
    path, mark, anchor = link.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if target in PAGES:
        there = PAGES[target]
    elif target.startswith("docs/"):
        there = target.removeprefix("docs/")
    else:
        return f"{repository}/blob/main/{target}{mark}{anchor}"
    return posixpath.relpath(there, posixpath.dirname(place) or ".") + mark + anchor


def on_post_build(*, config: Any) -> None:
    """Let the theme show its menu on a screen of 1,200 pixels."""
    for asset in Path(config["site_dir"], "assets").rglob("*.min.*s"):
        text = asset.read_text("utf-8")
        for theirs, ours in _BREAKPOINTS.items():
            text = text.replace(theirs, ours)
        asset.write_text(text, "utf-8")
