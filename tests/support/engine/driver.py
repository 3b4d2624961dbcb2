"""A user's script in a process of its own, for tests that kill it: `python driver.py FOLDER`.

FOLDER/queries.json describes the queries; commands come by standard input: `stop` stops the queries. What happens is
told in files: `progress` when each query has done a batch, `ended.json` with the error of each (or null). With
`restarts` a query that fails is started again, as those who run queries do.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from support.engine.queries import build_session, start, start_all, starved


def tell(folder: Path, name: str, what: object) -> None:
    draft = folder / f"{name}.new"
    draft.write_text(json.dumps(what), "utf-8")
    draft.replace(folder / name)


def main(folder: Path) -> None:
    described = json.loads((folder / "queries.json").read_text("utf-8"))
    spark = build_session(described["master"], described["settings"])
    queries = start_all(spark, described["queries"])

    def obey() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                for query in queries:
                    query.stop()
                return

    threading.Thread(target=obey, daemon=True).start()
    told = False
    while described["restarts"] or any(query.isActive for query in queries):
        for place, query in enumerate(described["queries"]):
            failed = described["restarts"] and queries[place].exception() is not None
            if failed:
                sys.stderr.write(f"started again after: {str(queries[place].exception())[:2000]}\n")
            if failed or starved(queries[place]):
                queries[place] = start(spark, query)
        if not told and all(query.lastProgress for query in queries):
            tell(folder, "progress", {})
            told = True
        time.sleep(0.05)
    errors = []
    for query in queries:
        error = query.exception()
        errors.append(None if error is None else str(error))
    tell(folder, "ended.json", errors)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
