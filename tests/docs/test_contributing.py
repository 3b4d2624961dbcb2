"""What CONTRIBUTING.md says of the layout and of a new queue is so."""

from __future__ import annotations

import re

from queue_source.queues.adapter import BaseQueue
from support.snippets import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
SOURCE = ROOT / "src" / "queue_source"


def test_the_layout_has_every_package_of_the_source() -> None:
    layout = re.findall(r"^ {6}(\w+)/", TEXT, re.MULTILINE)
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(layout)


def test_a_new_queue_is_told_the_module_of_its_base_class_and_every_method_that_it_lacks() -> None:
    text = TEXT.partition("## Add a queue")[2].partition("\n2. ")[0]
    assert f"`BaseQueue` of `{BaseQueue.__module__.rpartition('.')[2]}.py`" in text
    methods = set(re.findall(r"\w+", text.partition("implements")[2].partition("(")[0]))
    assert BaseQueue.__abstractmethods__ | {"capabilities"} <= methods
