"""The project is installed so that Spark and type checkers find what they look for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pkgutil
from pathlib import Path


def test_spark_finds_the_module_that_registers_the_format() -> None:
    """Spark walks the path with pkgutil.iter_modules: a module served by an import hook only would not be seen."""
    assert "pyspark_cuesqueue" in {module.name for module in pkgutil.iter_modules()}


def test_both_packages_say_that_they_are_typed() -> None:
    for package in ("queue_source", "shard_store"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).with_name("py.typed").is_file()


def test_the_command_is_declared() -> None:
    commands = importlib.metadata.entry_points(group="console_scripts", name="cuesqueue")
    assert [command.value for command in commands] == ["queue_source.commands.main:run"]
