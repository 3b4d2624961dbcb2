"""What users read of fifteen usual mistakes: the sentence that helps is the last line, and there are few others.

Times are not compared: `python -m integration.mistakes` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.mistakes import Laboratory, laboratory

pytestmark = pytest.mark.engine

REFUSED_EARLY = 62
"""Lines where no batch has begun: some 45 of them are Spark's, of its start and of one trace in Java."""

IN_A_BATCH = 110
"""Lines where Spark's trace is that of a batch, which has 60 frames."""

MISTAKES = {
    "queue": REFUSED_EARLY,
    "region": REFUSED_EARLY,
    "credentials": REFUSED_EARLY,
    "option": REFUSED_EARLY,
    "unit": REFUSED_EARLY,
    "schema": REFUSED_EARLY,
    "database missing": REFUSED_EARLY,
    "extra aws": REFUSED_EARLY,
    "extra postgres": REFUSED_EARLY,
    "python": REFUSED_EARLY + 8,  # and the trace of a worker that cannot start
    "path": IN_A_BATCH,
    "extra iceberg": IN_A_BATCH,
    "two queries": 2 * IN_A_BATCH,  # the other one may be stopped within a batch
}
WAITING = ("store unreachable", "prefix")
"""Their query goes on: what comes after the sentence is Spark's progress, and its stop."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(tmp_path_factory.mktemp("mistakes")) as made:
        yield made


def test_these_are_all_mistakes(room: Laboratory) -> None:
    assert set(room.mistakes()) == {*MISTAKES, *WAITING}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_sentence_that_helps_is_the_last_line(room: Laboratory, mistake: str) -> None:
    output = room.make(mistake)
    assert output.from_the_end == 1, "\n".join(line for _, line in output.lines)
    assert output.lines[-1][1].startswith("ERROR cuesqueue: ")
    assert "docs/" in output.lines[-1][1]
    assert output.times <= 4  # Spark's log, its exception, our line; and one warning beforehand
    assert len(output.lines) <= MISTAKES[mistake]


@pytest.mark.parametrize("mistake", WAITING)
def test_a_query_that_goes_on_says_what_it_waits_for(room: Laboratory, mistake: str) -> None:
    output = room.make(mistake)
    assert output.seconds is not None
    assert sum(when < output.seconds for when, _ in output.lines) <= 15
