"""The oracle of reading with a fixed seed: no relation breaks. What needs Spark is in `tests/engine`.

`python -m support.oracle --minutes N --seed S`, with `tests` on the path, searches for longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.oracle import stores
from support.oracle.cases import Case
from support.oracle.days import Days
from support.oracle.loading import Loaded
from support.oracle.packing import Packed
from support.oracle.run import RELATIONS, check, run
from support.oracle.typed import Made

EXAMPLES = {
    "quick-is-slow": 150,
    "nothing-changes-neighbours": 80,
    "inference-is-of-the-data": 80,
    "any-packing-is-the-same": 80,
    "typed-is-as-written": 100,
    "a-folder-is-a-field": 100,
    "parts-are-the-whole": 50,
    "rescued-or-read": 100,
    "a-bad-object-harms-only-itself": 50,
    "each-store-is-the-local-file": 50,
    "no-option-without-effect": 24,
    "loaded-is-read": 10,
    "nothing-is-dropped-over-days": 6,
    "stored-is-found": 10,
}
"""Half a minute of a core in all: of each relation what it can do in three seconds."""
SEED = 53


@pytest.fixture(autouse=True)
def _ended(iceberg_threads: None) -> Iterator[None]:
    """The server of the stores ends with its test; the threads that PyIceberg keeps are those of all tests."""
    yield
    stores.end()


@pytest.mark.parametrize("relation", EXAMPLES)
def test_a_relation_holds_for_what_is_drawn(relation: str) -> None:
    _search(SEED, relation, EXAMPLES[relation])


@pytest.mark.thorough
@pytest.mark.parametrize("relation", EXAMPLES)
def test_a_relation_holds_for_more_that_is_drawn(relation: str) -> None:
    """A minute in all."""
    _search(SEED + 1, relation, 2 * EXAMPLES[relation])


def test_each_relation_is_tried() -> None:
    assert {*EXAMPLES} | {"as-spark", "inferred-as-spark", "avro-headers-as-spark"} == {*RELATIONS}


def _search(seed: int, relation: str, examples: int) -> None:
    result = run(seed, examples=examples, relations=[relation])
    assert not result.broken, str(result)
    assert result.tried[relation] > examples // 2


FOUND = [
    # more digits behind the point than the type has: as a whole they leave the 128 bits
    *(
        (
            "quick-is-slow",
            Case("csv", f"a DECIMAL(38, 10){column}", content=b"5555555555555555555555555555.12345678912"),
        )
        for column in ("", ", _corrupt_record STRING")
    ),
    # a part begins within the first bytes, which are fewer than a line's end has
    ("parts-are-the-whole", Case("csv", "a TINYINT", {"lineSep": "\r\n", "sep": ";"}, b"-128")),
    # the only value of the beginning is a bad record's text, or what is rescued, behind the first part
    ("parts-are-the-whole", Case("json", "a ARRAY<TINYINT>, _corrupt_record STRING", content=b"{}\nnull")),
    ("parts-are-the-whole", Case("json", "a INT, _rest STRING", {"rescuedDataColumn": "_rest"}, b'{}\n{"z":1}')),
    *(  # fields that hold nothing, rescued the slow way alone
        (
            "quick-is-slow",
            Case("json", f"a INT, {column}_rest STRING", {"rescuedDataColumn": "_rest"}, b'{"a":1}\n' + line % value),
        )
        for value in (b"[]", b"{}", b"null", b"[null]", b'{"x":null}', b"[{}]")
        for column, line in (("", b'{"z":%s}'), ("b ARRAY<STRUCT<k: INT>>, ", b'{"b":[{"k":1,"z":%s}]}'))
    ),
    # text in UTF-16 has bytes that are zero
    *(
        (
            "any-packing-is-the-same",
            Packed(Case("csv", "a TINYINT", {"encoding": "UTF-16"}, b"\xff\xfe-\x001\x00"), way),
        )
        for way in ("plain under a packed name", "plain under another packed name")
    ),
    # white space before an element is no part of the record
    (
        "any-packing-is-the-same",
        Packed(Case("json", "a INT, _corrupt_record STRING", content=b'{"a":1}\n{"a":"x"}'), "Records"),
    ),
    # Python has no form for these times, which are bounds of a file
    *(
        ("loaded-is-read", Loaded(Case("parquet", ddl, made=Made("pyarrow", ddl, ((most,), (None,)), {})), "iceberg"))
        for ddl, most in (("a TIMESTAMP", 2**63 - 1), ("a TIMESTAMP_NTZ", -(2**62)), ("a DATE", 2**31 - 1))
    ),
    *(  # nor for these, which are partitions
        ("loaded-is-read", Loaded(Case("csv", "a TIMESTAMP, b INT", {}, b"0001-01-01 00:00:00,1\n"), target, 0, how))
        for target, how in (("delta", "{}"), ("iceberg", "{}"), ("iceberg", "day({})"))
    ),
    # no column can be added for a name that differs in case alone, and nothing was said of it
    ("nothing-is-dropped-over-days", Days("parquet", "path", (({"a": "INT"},), ({"a": "INT", "A": "BIGINT"},)))),
]


@pytest.mark.parametrize(("relation", "case"), FOUND, ids=str)
def test_what_once_broke_a_relation_does_not(relation: str, case: Case | Packed | Loaded | Days) -> None:
    check(relation, case)
