"""The oracle of reading with a fixed seed: no relation breaks. What needs Spark is in `tests/engine`.

`python -m support.oracle --minutes N --seed S`, with `tests` on the path, searches for longer.
"""

from __future__ import annotations

import pytest

from support.oracle.run import RELATIONS, run

EXAMPLES = 250
SEED = 53


@pytest.mark.parametrize("relation", [name for name in RELATIONS if name != "as-spark"])
def test_a_relation_holds_for_what_is_drawn(relation: str) -> None:
    result = run(SEED, examples=EXAMPLES, relations=[relation])
    assert not result.broken, str(result)
    assert result.tried[relation] > EXAMPLES // 2
