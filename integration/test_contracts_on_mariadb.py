"""The contracts of store and SQL queue on a real MariaDB: the system's, or one that is installed for it.

CUESQUEUE_TEST_MYSQL_URL names a MySQL or MariaDB server instead, whose user may create databases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.mariadb import NoMariaDb, mariadb_server

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "CUESQUEUE_TEST_MYSQL_URL"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
        return
    try:
        with mariadb_server(install=True) as url:
            yield url
    except NoMariaDb as error:
        pytest.skip(str(error))


@pytest.mark.timeout(1200)
def test_every_contract_of_the_store_and_the_sql_queue_holds_on_mariadb(server: str) -> None:
    """In a process of its own, because the list of databases is made when the contracts are imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "mysql", "tests/contracts"],
        cwd=ROOT,
        env={**os.environ, VARIABLE: server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
