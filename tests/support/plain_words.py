"""Words and phrases that read like a translation, which neither the pages nor the source use."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ON_PAGES = (
    r"parted by|passed over|untold|is told|are told|hangs? on|stands? in the|on which nothing|given up upon|"
    r"what is (bad|there) of|as it came|the pen"
)
IN_SOURCE = (
    rf"{ON_PAGES}|was told|were told|what is told|told apart|nobody|somebody|anybody|whoever|whomever|is said|"
    r"knows nothing|without a word|gives? way|kills? (its|their) readers?|what is bad|what was (bad|there)|"
    r"by which nothing|how many it were|gone on|goes on with|beside (it|them|that)|what it was made of"
)
NAMES = {"found", "given", "known", "wanted", "there", "left", "rest", "one", "apart", "turn", "shown"}
"""They say that something is there, and not what it is: messages, receipts, object_uris, remaining_rows ..."""


def phrases(text: str, words: str) -> list[str]:
    """Find the phrases in a text, over the ends of its lines."""
    return [match.group() for match in re.finditer(rf"\b({words})\b", " ".join(text.split()), re.IGNORECASE)]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and the comments of a module, each with its line; a comment of several lines is one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text
    comment, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if token.start[0] != last + 1:
                if comment:
                    yield last, comment
                comment = ""
            comment, last = f"{comment} {text}", token.start[0]
    if comment:
        yield last, comment


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the variables, parameters and functions that a module names, each with its line.

    Names of fields are not among them: some are columns of the store, or keys of what a command prints.
    """
    tree = ast.parse(source)
    fields = {
        node.target
        for parent in ast.walk(tree)
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name


def modules(folder: Path) -> list[Path]:
    """List the modules below a folder."""
    return sorted(folder.rglob("*.py"))
