"""The process that reads a result with Spark, or by the user's function: `python -m cuesqueue_prove.reading`."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuesqueue_prove.folder import SETTINGS, Places, Settings


def _session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.warehouse.dir", str(Path.cwd() / "spark-warehouse")).getOrCreate()


def call(named: str, places: Places) -> Any:
    """Call the function FILE.py:FUNCTION; its parameters are `spark`, a session, and `where`, both only if it has them.

    `where` returns the path or URL at which the run has what the job wrote to a path or URL.
    """
    file, _, name = named.rpartition(":")
    spec = importlib.util.spec_from_file_location("result_of_a_run", file)
    if spec is None or spec.loader is None or not Path(file).exists():
        raise SystemExit(f"{named!r} is no FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)
    function = getattr(module, name)

    def where(text: str) -> str:
        return places.database(text) if "://" in text and text.startswith(_DATABASES) else places.path(text)

    offered: dict[str, Callable[[], Any]] = {"spark": _session, "where": lambda: where}
    return function(**{name: offered[name]() for name in inspect.signature(function).parameters if name in offered})


_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")


def rows_of(answer: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame of Spark or pandas, of an Arrow table, or of a list of mappings or tuples."""
    if hasattr(answer, "collect"):
        return [row.asDict(recursive=True) for row in answer.collect()]
    if hasattr(answer, "to_pylist"):
        return list(answer.to_pylist())
    if hasattr(answer, "to_dict"):
        return list(answer.to_dict("records"))
    return [dict(row) if hasattr(row, "keys") else _numbered(row) for row in answer]


def _numbered(row: Any) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(row)}


def main() -> None:
    """Write the rows as JSON."""
    asked, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    places = Places(Settings.read(os.environ[SETTINGS]).root)
    if asked["function"]:
        rows = rows_of(call(asked["function"], places))
    else:
        spark = _session()
        rows = []
        for kind, path in asked["places"]:
            try:
                rows += rows_of(spark.read.format(kind).load(path))
            except Exception:  # of any kind, as it is the error of a connector
                if not asked["lenient"]:
                    raise
    output.write_text(json.dumps(rows, default=str), "utf-8")


if __name__ == "__main__":
    main()
