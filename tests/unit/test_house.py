"""The checks of `tests/conftest.py` catch what they are for, and `integration/conftest.py` counts all of a file."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import leaks, loopback

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> leaks.Watch:
    monkeypatch.setattr(leaks, "SECONDS_TO_END", 0.01)
    return leaks.Watch()


@pytest.fixture
def blocked_thread() -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left", daemon=True)
    yield thread
    stop.set()
    thread.join()


def test_a_thread_left_running_is_named_once(watch: leaks.Watch, blocked_thread: threading.Thread) -> None:
    blocked_thread.start()
    assert watch.left_over() == ["daemon thread 'left' of threading"]
    assert watch.left_over() == []


def test_a_thread_that_ends_in_time_is_no_leak(watch: leaks.Watch) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    assert watch.left_over() == []


def test_a_child_process_left_running_is_named(watch: leaks.Watch) -> None:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as child:
        (left,) = watch.left_over()
    assert left.startswith(f"process {child.pid} ")


def test_what_a_wider_fixture_starts_may_stay(watch: leaks.Watch, blocked_thread: threading.Thread) -> None:
    with watch.allowing():
        blocked_thread.start()
    assert watch.left_over() == []


def test_the_owner_of_a_thread_is_the_module_it_runs_code_of() -> None:
    server_thread = threading.Thread(target=loopback.guard)
    assert leaks.owner(server_thread) == "support.loopback"


def test_a_leak_fails_the_test_that_left_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = []")
    pytester.makepyfile("""
        import threading, pytest
        stop = threading.Event()

        @pytest.fixture(scope="module")
        def server():
            thread = threading.Thread(target=stop.wait)
            thread.start()
            yield
            stop.set()
            thread.join()

        def test_asks_for_it_late(request):
            request.getfixturevalue("server")

        def test_leaves_one():
            threading.Thread(target=stop.wait, name="mine").start()

        def test_is_clean(server):
            pass
    """)
    plugin = leaks.LeakPlugin(leaks.Watch())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "SECONDS_TO_END", 0.01)
        result = pytester.inline_run(plugins=[plugin])
    assert [(r.nodeid.split("::")[1], r.when) for r in result.getreports("pytest_runtest_logreport") if r.failed] == [
        ("test_leaves_one", "teardown")
    ]


def test_integration_ends_with_what_was_skipped_and_how_long_each_file_took(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((Path(__file__).parents[2] / "integration" / "conftest.py").read_text())
    pytester.makepyfile(
        test_long="def test_passes(): pass\ndef test_fails(): assert False",
        test_short="import pytest\ndef test_needs_a_server(): pytest.skip('no server is here')",
    )
    result = pytester.runpytest("-ra")
    result.stdout.fnmatch_lines(
        ["* seconds of each file *", "*0 test_*.py", "*0 test_*.py", "SKIPPED * no server is here"]
    )


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("localhost", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("sqs.eu-west-1.amazonaws.com", False),
    ],
)
def test_only_loopback_addresses_are_local(address: str, local: bool) -> None:
    assert loopback.is_local(socket.AF_INET, (address, 80)) is local


def test_a_connection_beyond_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_attempts", [])
    with socket.socket() as own, pytest.raises(ConnectionRefusedError, match=r"may not connect to '192\.0\.2\.1'"):
        own.connect(("192.0.2.1", 80))
    assert loopback._attempts == ["192.0.2.1:80"]
