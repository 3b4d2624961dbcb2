"""The harness of the benchmarks; what they measure is run by `make bench`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext

from benchmarks import __main__ as program
from benchmarks import ready, registry, run
from benchmarks.latency import _POINTS, _PROGRESS, Turn, _breakdowns, latency
from benchmarks.reading import FORMATS, ORDERS, floor, tables, write_files
from benchmarks.registry import Breakdown, Measurement, Part, Settings, alternate, benchmark


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, registry.Benchmark]:
    found: dict[str, registry.Benchmark] = {}
    monkeypatch.setattr(registry, "REGISTRY", found)
    monkeypatch.setattr(program, "REGISTRY", found)
    return found


def made_up(settings: Settings) -> Iterator[Measurement]:
    """half as long"""
    assert list(settings.folder.iterdir()) == []
    yield Measurement("case", [1.0, 2.0, 3.0], 10, "rows", "nothing", [2.0, 4.0, 9.0])


def test_the_ratio_is_the_median_over_pairs_of_runs() -> None:
    measured = Measurement("x", [1.0, 2.0, 10.0], 100, "rows", "y", [3.0, 2.0, 20.0])
    assert measured.ratio == 2.0
    assert measured.median == 2.0
    assert measured.rate == 50.0
    assert Measurement("x", [1.0]).ratio is None


def test_runs_take_turns_and_the_warm_up_is_not_counted() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[], float]:
        def timed() -> float:
            order.append(name)
            return float(len(order))

        return timed

    assert alternate([run("a"), run("b")], 2) == [[3.0, 5.0], [4.0, 6.0]]
    assert order == ["a", "b"] * 3


def test_a_benchmark_has_a_name_of_its_own_and_says_what_it_measures(own: dict[str, registry.Benchmark]) -> None:
    benchmark("one")(made_up)
    assert own["one"].about == "half as long"
    with pytest.raises(ValueError, match="two benchmarks named 'one'"):
        benchmark("one")(made_up)
    with pytest.raises(ValueError, match="needs a docstring"):
        benchmark("two")(lambda settings: iter(()))


def test_the_table_and_the_json_hold_every_measurement(
    own: dict[str, registry.Benchmark], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark("one")(made_up)
    assert program.main(["--only", "one", "--quick"]) == 0
    table = capsys.readouterr().out
    assert "quick run, not for quoting" in table
    assert "2.00 x" in table
    assert program.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measurements"][0]["reference_seconds"] == [2.0, 4.0, 9.0]
    assert told["machine"]["cores"]


def test_of_several_each_has_a_process_of_its_own(
    own: dict[str, registry.Benchmark], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apart: list[Callable[[], list[Measurement]]] = []

    def noted(measure: Callable[[], list[Measurement]]) -> list[Measurement]:
        apart.append(measure)
        return measure()

    monkeypatch.setattr(run, "in_a_process", noted)
    benchmark("one")(made_up)
    assert program.main(["--quick"]) == 0
    assert apart == []
    benchmark("two")(made_up)
    assert program.main(["--quick"]) == 0
    assert len(apart) == 2


def test_a_process_of_its_own_is_another_one() -> None:
    assert run.in_a_process(os.getpid) != os.getpid()


def test_one_that_fails_ends_no_other(
    own: dict[str, registry.Benchmark], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(settings: Settings) -> Iterator[Measurement]:
        """nothing"""
        yield from made_up(settings)
        raise RuntimeError("no server")

    monkeypatch.setattr(run, "in_a_process", lambda measure: measure())
    benchmark("one")(fails)
    benchmark("two")(made_up)
    assert program.main(["--quick", "--json"]) == 1
    told = capsys.readouterr()
    assert "failed: one\n" in told.err
    assert {line["benchmark"] for line in json.loads(told.out)["measurements"]} == {"two"}


def test_one_whose_process_dies_is_an_error() -> None:
    with pytest.raises(BrokenProcessPool):
        run.in_a_process(os.abort)


def test_latency_says_at_once_that_the_jvm_of_another_benchmark_would_note_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(RuntimeError, match="in a run of its own"):
        next(latency(Settings(tmp_path)))


def test_the_parts_of_a_micro_batch_are_those_of_all_turns_in_their_order() -> None:
    first, second, spark = Turn(), Turn(), Turn()
    for turn, seconds in ((first, 1.0), (second, 3.0), (spark, 5.0)):
        turn.add(_PROGRESS, "addBatch", seconds)
        turn.triggers.append(2 * seconds)
    first.add(_POINTS, "before-publish .. published", 0.25)  # its micro-batch began before the notes
    second.add(_POINTS, "plan-made .. object-read", 0.5)
    assert list(_breakdowns({"ours": [first, second], "Spark's": [spark]})) == [
        Breakdown(f"ours: {_PROGRESS}", [Part("addBatch", 2.0, 3.0, 2)], 4.0),
        Breakdown(f"Spark's: {_PROGRESS}", [Part("addBatch", 5.0, 5.0, 1)], 10.0),
        Breakdown(
            f"ours: {_POINTS}",
            [Part("plan-made .. object-read", 0.5, 0.5, 1), Part("before-publish .. published", 0.25, 0.25, 1)],
        ),
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_as_many_rows_as_said_in_every_format(format: str, tmp_path: Path) -> None:
    write_files(tmp_path / format, format, 2, 10)
    assert len(list((tmp_path / format).iterdir())) == 2
    assert floor(format, tmp_path / format) > 0


@pytest.mark.parametrize("format", FORMATS)
def test_the_rows_from_memory_are_those_of_the_files(format: str, tmp_path: Path) -> None:
    write_files(tmp_path / format, format, 3, 7)
    expected = [table.cast(ORDERS.types(format)) for table in tables(format, tmp_path / format, ORDERS)]
    ready.write(tmp_path / "ready", expected, 2)
    reader = ready.ReadyReader(str(tmp_path / "ready"))
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset())
    found = [pa.Table.from_batches(reader.read(part)) for part in parts]
    assert [table.num_rows for table in found] == [11, 10]
    assert pa.concat_tables(found).to_pylist() == pa.concat_tables(expected).to_pylist()
    assert reader.partitions(reader.latestOffset(), reader.latestOffset()) == []
