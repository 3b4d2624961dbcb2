"""The oracle of reading with a fixed seed: no relation breaks. What needs Spark is in `tests/engine`.

`python -m support.oracle --minutes N --seed S`, with `tests` on the path, searches for longer.
"""

from __future__ import annotations

import pytest

from support.oracle.cases import Case
from support.oracle.run import RELATIONS, check, run

EXAMPLES = 250
SEED = 53


@pytest.mark.parametrize("relation", [name for name in RELATIONS if name != "as-spark"])
def test_a_relation_holds_for_what_is_drawn(relation: str) -> None:
    result = run(SEED, examples=EXAMPLES, relations=[relation])
    assert not result.broken, str(result)
    assert result.tried[relation] > EXAMPLES // 2


FOUND = [
    # a part begins within the first bytes, which are fewer than a line's end has
    ("parts-are-the-whole", Case("csv", "a TINYINT", {"lineSep": "\r\n", "sep": ";"}, b"-128")),
]


@pytest.mark.parametrize(("relation", "case"), FOUND, ids=str)
def test_what_once_broke_a_relation_does_not(relation: str, case: Case) -> None:
    check(relation, case)
