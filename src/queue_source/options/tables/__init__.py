"""The one table of all options: names, groups, kinds, defaults and help texts. The reference pages are made from it.

A new option is one entry here and one field of its group in `groups.py`.
"""

from __future__ import annotations

from queue_source.options.tables.entry import GROUP_TITLES, Option
from queue_source.options.tables.reader import READER_OPTIONS
from queue_source.options.tables.sink import SINK_OPTIONS
from queue_source.options.tables.views import VIEW_OPTIONS

__all__ = ["GROUP_TITLES", "READER_OPTIONS", "SINK_OPTIONS", "VIEW_OPTIONS", "Option"]
