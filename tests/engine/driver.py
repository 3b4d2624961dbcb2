"""A user's script in a process of its own, for tests that kill it: `python driver.py FOLDER`.

FOLDER/queries.json describes the queries; commands come by standard input: `stop` stops the queries. What happens is
told in files: `started`, `progress.json`, `ended.json` with the error of each query (or null).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from engine.queries import build_session, start


def tell(folder: Path, name: str, what: object) -> None:
    draft = folder / f"{name}.new"
    draft.write_text(json.dumps(what), "utf-8")
    draft.replace(folder / name)


def main(folder: Path) -> None:
    described = json.loads((folder / "queries.json").read_text("utf-8"))
    spark = build_session(described["master"])
    queries = [start(spark, query) for query in described["queries"]]
    tell(folder, "started", {})

    def obey() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                for query in queries:
                    query.stop()
                return

    threading.Thread(target=obey, daemon=True).start()
    batches: list[int] = []
    while any(query.isActive for query in queries):
        done = [p["batchId"] if (p := query.lastProgress) else -1 for query in queries]
        if done != batches:
            batches = done
            tell(folder, "progress.json", batches)
        time.sleep(0.05)
    errors = []
    for query in queries:
        error = query.exception()
        errors.append(None if error is None else str(error))
    tell(folder, "ended.json", errors)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
