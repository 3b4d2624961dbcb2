"""Figures for the docs: how they are saved, and that page and pictures are what was saved."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import figures, registry, saved, units
from benchmarks.figures import Docs
from benchmarks.registry import Breakdown, Measurement, Part, Role, Settings, benchmark

ROOT = Path(__file__).resolve().parents[2]
NAMES = set(registry.REGISTRY)
PARTS = Breakdown("ours: <micro-batch>", [Part("read & write", 0.03, 0.05, 7), Part("log", 0.01, 0.02, 7)], 0.05)
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is installed by the locks: 'make test'"
)


def made_up(settings: Settings) -> Iterator[Measurement]:
    """seconds of nothing"""
    yield Measurement("a | b", [0.5, 0.125, 0.25], 0, "", "Spark's own", [1.0, 0.5, 0.75], breakdowns=[PARTS])
    yield Measurement("the floor", [0.05], role=Role.FLOOR)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one benchmark, and a commit."""
    _make_known(monkeypatch)


def _make_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, registry.Benchmark] = {}
    for module in (registry, program):
        monkeypatch.setattr(module, "REGISTRY", found)
    monkeypatch.setattr(saved, "checkout", lambda: saved.Checkout("0123456789", False))
    benchmark("made-up")(made_up)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Docs:
    """Docs with the figures of one benchmark, drawn where matplotlib is."""
    folder = tmp_path_factory.mktemp("docs")
    docs = Docs(folder, folder / "methods.md")
    headings = "# Benchmarks\n\n## never, made-up\n\n## A new benchmark\n"
    docs.methods.write_text(headings, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        _make_known(patch)
        assert program.main(["--save", str(docs.figures)]) == 0
    if find_spec("matplotlib"):
        figures.write(docs)
    return docs


@pytest.fixture
def docs(made: Docs, tmp_path: Path) -> Docs:
    """A copy, which a test may change."""
    folder = Path(shutil.copytree(made.folder, tmp_path / "docs"))
    return Docs(folder, folder / made.methods.name)


@pytest.mark.usefixtures("known")
def test_what_is_saved_is_what_was_measured_and_replaces_what_was_there(docs: Docs) -> None:
    (found,) = saved.load_all(docs.figures)
    assert (found.benchmark, found.about, found.commit) == ("made-up", "seconds of nothing", "0123456789")
    assert found.command == 'make bench ARGS="--only made-up"'
    first, floor = found.measurements
    assert first.ratio == 3.0
    assert (floor.role, floor.reference) == (Role.FLOOR, [])
    assert first.breakdowns == (replace(PARTS, parts=tuple(PARTS.parts)),)
    assert program.main(["--only", "made-up", "--save", str(docs.figures)]) == 0
    assert [path.name for path in docs.figures.glob("*.json")] == ["made-up.json"]


@pytest.mark.usefixtures("known")
def test_a_quick_run_is_not_saved(docs: Docs, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--quick", "--save", str(docs.figures)])
    assert "a quick run is not for quoting" in capsys.readouterr().err


def test_figures_name_the_commit_that_git_names() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    assert re.fullmatch("[0-9a-f]{10,}", saved.checkout().commit)


def test_without_git_nothing_is_measured_for_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(saved.NotACheckout, match="git names none here"):
        saved.checkout()


def test_the_table_says_whose_each_figure_is_with_what_and_where_it_is_compared(docs: Docs) -> None:
    (found,) = saved.load_all(docs.figures)
    text = figures.page([replace(found, load=(0.1, 2.0), machine={"cores": 2})], docs.sections())
    assert "| case | measured | × Spark's own (peer) | runs |" in text
    assert "| a \\| b | 250 ms | 3.00 × | 3 |" in text
    assert "| the floor (floor) | 50.0 ms |  | 1 |" in text
    assert "[Method](README.md#never-made-up)" in text
    assert "machine 1, load 0.1\n" in text
    busy = figures.page([replace(found, load=(1.5, 2.0), machine={"cores": 2})], docs.sections())
    assert "load **1.5**\n" in busy


def test_what_was_measured_in_the_same_ways_has_a_column_for_each_way(docs: Docs) -> None:
    (found,) = saved.load_all(docs.figures)
    pairs = [
        Measurement(f"{thing}, {way}", [1.0], 10, "rows", against, [2.0] if against else [], role)
        for thing in ("csv, large", "json, large")
        for way, against, role in (("batch", "Spark's own", Role.OURS), ("read by 2, alone", "", Role.FLOOR))
    ]
    text = figures.page([replace(found, measurements=tuple(pairs))], docs.sections())
    assert "| rows/s; × Spark's own (peer) | batch | read by 2, alone (floor) |" in text
    assert "| csv, large | 10.0; 2.00 × | 10.0 |" in text
    assert "| json, large | 10.0; 2.00 × | 10.0 |" in text
    fewer = figures.page([replace(found, measurements=tuple(pairs[:3]))], docs.sections())
    assert "| json, large, batch | 10.0 | 2.00 × |" in fewer


EDITS: dict[str, tuple[Callable[[Docs], None], str]] = {
    "a figure in the JSON": (lambda docs: edit(docs.figures / "made-up.json", "0.75", "0.7"), "from other figures"),
    "a figure in a picture": (lambda docs: edit(docs.figures / "made-up.svg", "250 ms", "100 ms"), "was edited"),
    "the parts in a picture": (
        lambda docs: edit(docs.figures / "made-up-parts.svg", "30.0 ms", "3.0 ms"),
        "was edited",
    ),
    "a figure on the page": (lambda docs: edit(docs.page, "250 ms", "100 ms"), "FIGURES.md is not what is saved"),
    "a picture that is gone": (lambda docs: (docs.figures / "made-up.svg").unlink(), "made-up.svg is missing"),
    "a picture too many": (lambda docs: (docs.figures / "old.svg").touch(), "old.svg is of no figures"),
    "no method": (lambda docs: edit(docs.methods, "made-up", "other"), "no section for made-up"),
}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@needs_matplotlib
def test_nothing_is_wrong_with_what_was_just_written(docs: Docs) -> None:
    assert list(figures.wrong(docs)) == []
    written = {path: path.read_bytes() for path in docs.pictures()}
    figures.write(docs)
    assert {path: path.read_bytes() for path in docs.pictures()} == written


@needs_matplotlib
@pytest.mark.parametrize("what", EDITS)
def test_an_edit_by_hand_is_found(docs: Docs, what: str) -> None:
    change, said = EDITS[what]
    change(docs)
    assert said in " ".join(figures.wrong(docs))


@needs_matplotlib
def test_a_picture_that_would_be_drawn_differently_is_found(docs: Docs, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import plots

    monkeypatch.setitem(plots.COLOURS, Role.PEER, "#ff0000")
    assert list(figures.wrong(docs)) == ["made-up.svg is drawn differently now"]
    monkeypatch.setattr(figures, "_installed", lambda: None)  # or another version: its pictures may differ
    assert list(figures.wrong(docs)) == []


@needs_matplotlib
def test_pictures_have_their_text_as_text_and_refer_to_nothing(docs: Docs) -> None:
    for path in (docs.figures / "made-up.svg", docs.figures / "made-up-parts.svg"):
        assert_refers_to_nothing(path.read_text("utf-8"))
    assert ">a | b</text>" in docs.picture("made-up.svg")
    assert ">250 ms, 3.00 × Spark's own</text>" in docs.picture("made-up.svg")
    assert ">750 ms, Spark's own</text>" in docs.picture("made-up.svg")
    assert ">read &amp; write: 30.0 ms</text>" in docs.picture("made-up-parts.svg")
    assert ">the rest: 10.0 ms</text>" in docs.picture("made-up-parts.svg")


@needs_matplotlib
def test_a_reference_that_is_a_measurement_too_is_drawn_once() -> None:
    from benchmarks.plots import bars

    few, many = [1.0, 2.0], [3.0, 4.0]
    drawn = list(
        bars([Measurement(name, runs, 10, "rows", "few", few) for name, runs in (("few", few), ("many", many))])
    )
    assert [bar.above for bar in drawn] == ["few", "many"]
    assert [bar.behind for bar in drawn] == ["6.67 rows/s", "2.86 rows/s, 0.42 × few"]


def assert_refers_to_nothing(svg: str) -> None:
    references = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)|@import|<script|<image', svg)
    assert all((link or url).startswith("#") for link, url in references), references
    assert set(re.findall(r"https?://[^\s\"')]+", svg)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


@pytest.mark.parametrize(
    ("value", "shown"), [(0.00012345, "0.123 ms"), (0.0456, "45.6 ms"), (1.234, "1.23 s"), (1234.5, "1,230 s")]
)
def test_seconds_are_shown_with_three_digits(value: float, shown: str) -> None:
    assert units.seconds(value) == shown


# what the repository holds


def test_every_benchmark_has_its_method_on_the_page_of_benchmarks() -> None:
    assert set(Docs().sections()) == NAMES


def test_saved_figures_are_of_known_benchmarks_and_in_the_form_in_which_they_are_saved() -> None:
    for path in sorted(saved.FIGURES.glob("*.json")):
        found = saved.load(path)
        assert found.benchmark == path.stem
        assert path.stem in NAMES
        assert saved.as_text(found) == path.read_text("utf-8")
        assert json.loads(path.read_text("utf-8"))["measurements"]


def test_page_and_pictures_are_what_was_saved() -> None:
    """One picture of each form is drawn again; `make docs ARGS=--check` does so with all."""
    forms = {len(figures.names_of_pictures(found)): found.benchmark for found in saved.load_all(saved.FIGURES)}
    assert list(figures.wrong(Docs(), redraw=forms.values())) == [], f"run `{figures.COMMAND}`"


def test_pictures_of_the_docs_are_small_and_load_nothing() -> None:
    for path in Docs().pictures():
        assert path.stat().st_size < 40_000, path.name
        assert_refers_to_nothing(path.read_text("utf-8"))


def test_the_page_shows_every_picture() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(\.\./docs/figures/([^)]+)\)", Docs().page.read_text("utf-8"))
    assert sorted(shown) == [path.name for path in Docs().pictures()]
