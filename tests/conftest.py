"""What holds for every test: nothing is left behind, nothing beyond loopback is called, chance is repeatable in CI."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from hypothesis import HealthCheck, settings

# before gRPC is loaded: after it has been used, a program that is started may die of gRPC's own handling of forks
# (https://github.com/grpc/grpc/issues/43055), and a Spark is such a program
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# else botocore looks for a region and keys at the address of AWS's metadata service, where nothing is here
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

from queue_source.common.logs import work_on
from queue_source.spark import own_java, process
from support import compiled_statements, leaks, loopback, temporary, tiers
from support.engine import class_archive, few_at_once

# pytester runs small test suites inside a test: tests/unit/test_house.py
pytest_plugins = ["pytester", "support.servers.fixtures"]

settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,  # a busy machine is not a failure; pytest-timeout ends what hangs
    derandomize=True,  # the same examples at every run: a red build is about the change, and can be repeated
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    folder = temporary.TemporaryFolder()
    folder.use()
    config.pluginmanager.register(folder, "temporary_folder")
    loopback.guard()
    compiled_statements.share()
    config.pluginmanager.register(class_archive, "class_archive")
    config.pluginmanager.register(few_at_once, "few_at_once")
    config.pluginmanager.register(leaks.LeakPlugin(leaks.Watch()), "leaks")
    config.pluginmanager.register(loopback.LoopbackPlugin(), "loopback")


@pytest.fixture(autouse=True)
def nothing_is_worked_on() -> Iterator[None]:
    """What reads or writes in the process of a test notes what its lines of the log are of, as in one of Spark's."""
    yield
    work_on(None)


@pytest.fixture(autouse=True)
def no_driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without Spark is in no driver, also where one with Spark has left its session to the next of its process.

    Otherwise what starts again after a crash takes the one before it for a query of the same driver, and waits for it.
    """
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setattr(process, "_folders_by_the_jvm", lambda: "")


@pytest.fixture(autouse=True)
def no_java_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in the process of a test starts no Java while it looks at what it was given."""
    monkeypatch.setattr(own_java, "_started", lambda master: None)


def pytest_collection_finish() -> None:
    """Leave the collected tests, a million objects that stay, out of garbage collection: it takes half of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)
    engine = [item for item in items if item.get_closest_marker("engine")]
    if engine and version("pyspark").startswith(("4.0.", "4.1.")):
        # PySpark up to 4.1 leaves the socket of each collect() to the garbage collector; newer ones close it
        for item in engine:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
