"""The soak's verdict: what grows is seen, and what only moves about is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from integration.soak.load import Place
from integration.soak.watch import Watch
from queue_source.options import parse_reader_options, parse_sink_options


def verdict(name: str, values: Sequence[float]) -> bool:
    watch = Watch(cast("Any", None), "sqlite://")
    watch.series = {name: [(10.0 * number, value) for number, value in enumerate(values)]}
    (one,) = watch.verdicts(0.0)
    watch.close()
    return one.flat


@pytest.mark.parametrize(
    ("name", "values", "flat"),
    [
        ("MB reader", [200.0 + number % 3 for number in range(100)], True),
        ("MB reader", [200.0 + number for number in range(100)], False),
        ("files reader", [40.0] * 50 + [400.0] * 3 + [40.0] * 47, True),  # a peak
        ("files reader", [40.0 + number / 5 for number in range(100)], False),
        ("threads reader", [20.0 - number / 5 for number in range(100)], True),  # less is no leak
        ("rows cuesqueue_shards", [1000.0 * (number + 1) for number in range(100)], False),
        ("rows cuesqueue_splits", [1000.0 * (number + 1) for number in range(100)], True),  # what was published
        ("latency p50", [1.0 + number / 50 for number in range(100)], False),
    ],
)
def test_only_what_grows_is_bad(name: str, values: Sequence[float], flat: bool) -> None:
    assert verdict(name, values) is flat


def test_the_queries_are_described_as_the_reader_and_the_sink_take_it(tmp_path: Path) -> None:
    place = Place(
        tmp_path, "sqlite:///store.db", "http://127.0.0.1:4566/000000000000/q", "amqp://h/%2F?source=s&pool=p"
    )
    for query in place.queries("steady"):
        options = parse_reader_options(query["source"])
        sink = parse_sink_options(query["sink_options"])
        assert options.pipeline in sink.pipelines
        assert options.deduplication.deduplication_window > options.leases.visibility_timeout


def test_what_was_before_the_judged_time_does_not_count() -> None:
    watch = Watch(cast("Any", None), "sqlite://")
    watch.series = {"MB jvm": [(float(second), min(second, 400) * 1.0) for second in range(0, 600, 10)]}
    assert not watch.verdicts(0.0)[0].flat
    assert watch.verdicts(400.0)[0].flat
    watch.close()
