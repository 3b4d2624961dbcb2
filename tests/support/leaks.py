"""Fails the test that leaves a thread, a child process or a running Spark query behind.

The baseline of a test is what was there when the test before it ended, plus what fixtures of a wider scope (module,
session) started meanwhile: those outlive a test by intent, also when one is made lazily in the middle of a test. What
such a fixture leaves after its own end is counted to the test in whose teardown it ended.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

SECONDS_TO_END = 60.0
"""How long a thread or process may take to end that was told to; waited for by joining, so mostly not at all."""

LASTING_THREADS = {
    "py4j": "connections of the Spark session, kept for the next call; they end with the session",
    "pytest_timeout": "the timer of the test that is just running",
}
"""Modules whose threads may outlive a test, and why. The module is that of the thread's class or target."""

LASTING_PROCESSES = {
    "multiprocessing.resource_tracker": "one a Python process, started by the first use of multiprocessing",
    "multiprocessing.forkserver": "one a Python process, started by the first use of multiprocessing",
}
"""Parts of command lines whose processes may outlive a test, and why.

Only direct children are looked at: what the JVM of a Spark session starts (Python workers) is the session's to end,
and what a query starts ends with the query, which is looked at itself.
"""


class Watch:
    """Knows which threads and processes may be there; whatever else shows up was left by somebody."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._processes = _children()

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """What the body leaves running is meant to stay, also when it raises: its teardown then comes later."""
        threads, processes = set(threading.enumerate()), _children()
        try:
            yield
        finally:
            self._threads |= set(threading.enumerate()) - threads
            self._processes |= _children() - processes

    def left_over(self) -> list[str]:
        """Names what is running and should not be. Each is named once: it is known from then on."""
        left = [f"query {query}" for query in _running_queries()]
        # a thread that starts after this look is seen after the next test: joining must not lengthen the list
        for thread in set(threading.enumerate()) - self._threads:
            if not _thread_may_last(thread):
                thread.join(SECONDS_TO_END)
                if thread.is_alive():
                    daemon = "daemon thread" if thread.daemon else "thread"
                    left.append(f"{daemon} {thread.name!r} of {owner(thread)}")
        children = [p for p in _children() - self._processes if not _process_may_last(p)]
        _, alive = psutil.wait_procs(children, timeout=SECONDS_TO_END) if children else ([], [])
        left += [f"process {process.pid} {_command(process)!r}" for process in alive]
        self._threads = set(threading.enumerate())
        self._processes = _children()
        return sorted(left)


def _children() -> set[psutil.Process]:
    """The direct children, by what Linux lists for each thread: psutil looks at all processes that there are.

    That takes milliseconds, and there are three looks for each of nearly ten thousand tests.
    """
    try:
        listed = [task / "children" for task in Path("/proc/self/task").iterdir()]
        pids = {int(pid) for children in listed for pid in children.read_text("ascii").split()}
    except OSError:  # another system, or a thread that has just ended: another has its children now
        return set(psutil.Process().children())
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.add(psutil.Process(pid))
    return found


def owner(thread: threading.Thread) -> str:
    """The module that a thread runs code of: that of its target, else that of its class."""
    target: Any = getattr(thread, "_target", None)  # CPython drops it when the thread ends
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    if isinstance(target, types.MethodType):
        return type(target.__self__).__module__
    return str(getattr(target, "__module__", None) or type(thread).__module__)


def _thread_may_last(thread: threading.Thread) -> bool:
    if isinstance(thread, threading._DummyThread):  # belongs to a C library that called into Python: never ends
        return True
    module = owner(thread)
    return any(module == lasting or module.startswith(lasting + ".") for lasting in LASTING_THREADS)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error as error:  # ended meanwhile, or not ours to read: the report still names it
        return f"unknown: {error}"


def _process_may_last(process: psutil.Process) -> bool:
    command = _command(process)
    return any(lasting in command for lasting in LASTING_PROCESSES)


def _running_queries() -> Iterable[str]:
    """The streaming queries of all sessions of this process; each is stopped, so that it harms no other test."""
    module = sys.modules.get("pyspark.sql")
    session = module.SparkSession._instantiatedSession if module else None
    if session is None or session.sparkContext._jsc is None:
        return []
    # the map shared by all sessions; `session.streams.active` would show those of one session only
    queries = list(session._jsparkSession.sharedState().activeStreamingQueries().values())
    names = [f"{query.name() or query.id().toString()!r}" for query in queries]
    for query in queries:
        query.stop()
    return names


def allowing(config: pytest.Config) -> AbstractContextManager[None]:
    """What the body leaves running is meant to stay, where anybody watches (not in `integration` alone)."""
    plugin: LeakPlugin | None = config.pluginmanager.get_plugin("leaks")
    return nullcontext() if plugin is None else plugin.watch.allowing()


class LeakPlugin:
    """Asks a `Watch` after every test, and tells it what fixtures of a wider scope start."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        with self.watch.allowing():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        left = self.watch.left_over()
        if left:
            pytest.fail(f"{item.nodeid} left behind:\n  " + "\n  ".join(left), pytrace=False)
        return result
