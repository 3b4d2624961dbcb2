"""Readers of one driver and one pipeline: the newer one begins when the older one has ended."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from queue_source.coordinator.session import Presence, Session, await_readers_before
from queue_source.errors import OptionError
from shard_store.model import PublishToken
from shard_store.store import open_store
from support.sessions import make_session
from support.store_backends import Pipeline

OLD, NEW = PublishToken("p", 1), PublishToken("p", 2)


class Waits:
    """Stands for the event that ends a reader: each wait lets a second pass, and `then` may happen."""

    def __init__(self, then: Callable[[float], object]) -> None:
        self.now, self._then = 0.0, then

    def wait(self, seconds: float) -> bool:
        self.now += 1
        self._then(self.now)
        return False


@pytest.fixture
def session(tmp_path: Path) -> Session:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    Pipeline.start(store, "p", "files")
    token = Pipeline.start(store, "p", "files").token
    return make_session(store, token=token)


def waiting(session: Session, then: Callable[[float], object] = lambda now: None) -> tuple[Session, Waits]:
    waits = Waits(then)
    return replace(session, stopping=waits, clock=lambda: waits.now), waits  # type: ignore[arg-type]


def entered(folder: Path, token: PublishToken, pipeline: str = "p") -> Presence:
    presence = Presence(folder, "store", pipeline)
    presence.enter(token)
    return presence


@pytest.mark.parametrize("unfinished", [True, False])
def test_the_newer_reader_begins_when_the_older_one_has_ended_and_says_what_it_waits_for(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture, unfinished: bool
) -> None:
    older, newer = entered(tmp_path / "here", OLD), entered(tmp_path / "here", NEW)
    ours, waits = waiting(session, lambda now: older.leave() if now == 3 else None)
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        await_readers_before(ours, newer, unfinished=unfinished)
    assert waits.now == 3
    assert [record.getMessage() for record in caplog.records] == [
        "pipeline p/2: another query of this driver runs the same pipeline; it was replaced, and this one begins when "
        "it has ended; stop it, or give each query its own 'pipeline'"
    ]
    newer.leave()
    session.store.close()


@pytest.mark.parametrize(
    "problem", [OSError(errno.ENOLCK, "no locks available"), OSError(errno.ENOSYS, "not implemented")]
)
def test_a_file_system_without_locks_does_not_keep_a_query_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise problem

    monkeypatch.setattr("fcntl.flock", refuse)
    older, newer = entered(tmp_path / "here", OLD), entered(tmp_path / "here", NEW)
    assert not newer.has_others(NEW)
    assert "would not notice that this one runs the same pipeline" in caplog.text
    older.leave()
    newer.leave()


def test_a_query_starts_where_the_folder_of_its_driver_takes_no_file(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("")
    entered(tmp_path / "full", NEW).leave()


def test_an_older_reader_whose_batch_does_not_end_is_not_overtaken(session: Session, tmp_path: Path) -> None:
    older, newer = entered(tmp_path / "here", OLD), entered(tmp_path / "here", NEW)
    ours, waits = waiting(session)
    with pytest.raises(OptionError, match=r"whose batch does not end: stop that query.*joins the stream with itself"):
        await_readers_before(ours, newer, unfinished=True)
    assert waits.now > session.stale_after
    older.leave()
    newer.leave()
    session.store.close()


def test_an_older_reader_without_a_batch_has_a_heartbeat_to_notice(session: Session, tmp_path: Path) -> None:
    older, newer = entered(tmp_path / "here", OLD), entered(tmp_path / "here", NEW)
    ours, waits = waiting(session)
    await_readers_before(ours, newer, unfinished=False)
    assert session.heartbeat < waits.now <= session.heartbeat + 1
    older.leave()
    newer.leave()
    session.store.close()


def test_nobody_waits_for_newer_readers_or_those_of_other_pipelines_or_the_dead(
    session: Session, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    dead = (
        "import sys, pathlib\n"
        "from queue_source.coordinator.session import Presence\n"
        "from shard_store.model import PublishToken\n"
        "Presence(pathlib.Path(sys.argv[1]), 'store', 'p').enter(PublishToken('p', 1))\n"
        "import os; os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", dead, str(folder)], check=False)
    (left,) = folder.iterdir()
    others = [entered(folder, PublishToken("p", 3)), entered(folder, PublishToken("q", 1), "q")]
    newer = entered(folder, NEW)
    ours, waits = waiting(session)
    await_readers_before(ours, newer, unfinished=True)
    assert (waits.now, left.exists()) == (0, False)
    for presence in (*others, newer):
        presence.leave()
    assert list(folder.iterdir()) == []
    session.store.close()
