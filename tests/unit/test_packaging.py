"""The project is installed so that Spark and type checkers find what they look for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from cuesqueue.requirements import requirements
from tools import dist

ROOT = Path(__file__).resolve().parents[2]
NOT_OF_ALL = ("all", "sqs", "demo")


@pytest.fixture
def installed() -> Distribution:
    try:
        return importlib.metadata.distribution("cuesqueue")
    except PackageNotFoundError:
        pytest.skip("cuesqueue is not installed in this environment; 'make test' does it")


@pytest.mark.usefixtures("installed")
def test_spark_finds_the_module_that_registers_the_format() -> None:
    """Spark walks the path with pkgutil.iter_modules: a module served by an import hook only would not be seen."""
    code = "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')])"
    # isolated: neither PYTHONPATH nor pytest's own additions to the path count
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert "pyspark_cuesqueue" in answer.stdout


@pytest.mark.usefixtures("installed")
def test_type_checkers_see_all_packages_as_typed() -> None:
    code = "import cuesqueue as c, queue_source as q, shard_store as s, pathlib as p; "
    code += "print([p.Path(m.__file__).with_name('py.typed').is_file() for m in (c, q, s)])"
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[True, True, True]"


def test_executors_load_no_database_and_no_queue_to_read() -> None:
    """Every new worker imports this module to unpickle the reader: what it does not need would be most of its start."""
    unused = ("sqlalchemy", "alembic", "boto3", "queue_source.coordinator", "queue_source.queues.sql")
    code = f"import sys, queue_source.spark.source; print([name for name in {unused} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_copy_of_the_packages_alone_has_all_commands_but_the_demo() -> None:
    """As in an archive for `--py-files`."""
    code = "import sys; sys.path[:] = [path for path in sys.path if not path.endswith('examples')]; "
    code += (
        "from queue_source.commands.main import app; import typer; print(list(typer.main.get_command(app).commands))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    names = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "'send'" in names
    assert "'demo'" not in names


def test_the_extra_all_joins_the_others_without_the_data_of_the_demo_and_the_wheel_holds_all_packages() -> None:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert extras["all"] == [f"cuesqueue[{','.join(name for name in extras if name not in NOT_OF_ALL)}]"]
    assert extras["sqs"] == ["cuesqueue[aws]"]  # the name that it had first
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    packages = [path for folder in ("src", "examples") for path in (ROOT / folder).iterdir()]
    left_out = ("__pycache__", "airflow_operator.py")  # users copy that one
    assert sorted(included) == sorted(str(path.relative_to(ROOT)) for path in packages if path.name not in left_out)


@pytest.mark.usefixtures("installed")
def test_what_is_needed_where_the_platform_brings_pyspark_is_all_else_that_is_declared() -> None:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed, *others = project["dependencies"]
    assert needed.startswith("pyspark[sql]")  # which knows the pandas and pyarrow that its own version needs

    def same(lines: list[str]) -> set[tuple[str, ...]]:
        return {tuple(sorted(re.split(r"(?=[<>])|,", line))) for line in lines}  # the order of bounds is pip's

    assert same(requirements([])) == same(others)
    assert same(requirements(["aws", "iceberg"])) == same([*others, *extras["aws"], *extras["iceberg"]])
    assert requirements(["sqs"]) == requirements(["aws"])
    every_extra = [line for name, lines in extras.items() if name not in NOT_OF_ALL for line in lines]
    assert same(requirements(["all"])) == same([*others, *every_extra])
    assert not [line for line in [*others, *every_extra] if ";" in line], "requirements() would lose the condition"
    with pytest.raises(ValueError, match="no extra sqss; there are all, amqp"):
        requirements(["sqss"])


@pytest.mark.usefixtures("installed")
def test_the_list_of_requirements_needs_none_of_them() -> None:
    code = "import sys, cuesqueue.requirements as r; r.requirements(['all']); "
    code += "print([m for m in sys.modules if m.partition('.')[0] in ('pyspark', 'typer', 'pyarrow', 'sqlalchemy')])"
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if find_spec("build") is None:
        pytest.skip("build and twine are installed by the locks: 'make test'")
    return dist.build(tmp_path_factory.mktemp("dist"))


def test_wheel_and_sdist_are_complete_and_the_wheel_works_alone(archives: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment of its own, which borrows only what the wheel depends on."""
    wheel, sdist = archives
    dist.check(wheel, sdist)
    dist.Installed(tmp_path, wheel, dependencies_of=[sysconfig.get_path("purelib")]).try_out()


def test_the_bill_of_materials_has_what_the_wheel_needs_directly_or_not_in_the_versions_that_are_tested(
    archives: tuple[Path, Path],
) -> None:
    found = json.loads(dist.bill_of_materials(archives[0]).read_text("utf-8"))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["purl"] == f"pkg:pypi/cuesqueue@{importlib.metadata.version('cuesqueue')}"
    scopes = {component["name"]: component["scope"] for component in found["components"]}
    assert {name: scopes.get(name) for name in ("pyspark", "py4j", "numpy", "boto3", "pyiceberg-core", "pytest")} == {
        **dict.fromkeys(("pyspark", "py4j", "numpy"), "required"),
        **dict.fromkeys(("boto3", "pyiceberg-core"), "optional"),
        "pytest": None,
    }
    for component in found["components"]:
        assert component["version"] == importlib.metadata.version(component["name"])
    references = [component["bom-ref"] for component in (found["metadata"]["component"], *found["components"])]
    edges = {edge["ref"]: edge["dependsOn"] for edge in found["dependencies"]}
    assert sorted(edges) == sorted(references)
    assert {name for names in edges.values() for name in names} == set(references[1:])


def test_the_sums_beside_the_archives_are_those_that_sha256sum_checks(archives: tuple[Path, Path]) -> None:
    sums = dist.sums(archives)
    done = subprocess.run(
        ["sha256sum", "--check", sums.name], cwd=sums.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{path.name}: OK" for path in archives]


def test_an_archive_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"lacks \['cuesqueue/py\.typed'\]"):
        dist._expect(tmp_path / "x.whl", dist.IN_WHEEL, [name for name in dist.IN_WHEEL if "cuesqueue/py" not in name])


def test_the_command_is_declared(installed: Distribution) -> None:
    commands = installed.entry_points.select(group="console_scripts", name="cuesqueue")
    assert [command.value for command in commands] == ["queue_source.commands.main:run"]


@pytest.mark.parametrize("program", [["-m", "cuesqueue"], ["-c", "from queue_source.commands.main import run; run()"]])
def test_the_program_says_its_version_also_as_a_module(program: list[str]) -> None:
    command = [sys.executable, *program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"cuesqueue {importlib.metadata.version('cuesqueue')}\n"
    assert done.stderr == ""
