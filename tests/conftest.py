"""What holds for every test: nothing is left behind, nothing beyond loopback is called, chance is repeatable in CI."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import leaks
import loopback

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
    loopback.guard()
    config.pluginmanager.register(leaks.LeakPlugin(leaks.Watch()), "leaks")
    config.pluginmanager.register(loopback.LoopbackPlugin(), "loopback")


pytest_plugins = ["pytester"]  # runs small test suites inside a test: tests/unit/test_house.py
