"""`python -m support.races --minutes 5 --seed 1`, with tests on the path: races pairs of verbs, and prints finds.

`--only announces,prunes`: only pairs of which both names have one of these words.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress

import sqlalchemy as sa

from support.races.race import Races, search
from support.servers.mariadb import mariadb_server
from support.servers.postgres import NoPostgres, new_database, postgres_server
from support.store_backends import StoreBackend

SERVERS = {"postgresql": postgres_server, "mariadb": mariadb_server}


def say(text: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Race for so long; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m support.races", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the order of the pairs")
    parser.add_argument("--only", default="", metavar="WORDS", help="pairs of which each verb has one of these words")
    parser.add_argument("--database", choices=SERVERS, default="postgresql")
    parser.add_argument("--all", action="store_true", help="also print what differs and does no harm")
    chosen = parser.parse_args()
    only = tuple(filter(None, chosen.only.split(",")))
    with suppress(NoPostgres), SERVERS[chosen.database]() as server:
        url = new_database(server)
        if chosen.database == "postgresql":
            hasten(url)
        races = Races(StoreBackend(chosen.database, url))
        try:
            finds = search(races, chosen.seed, say, minutes=chosen.minutes, only=only, thoroughly=chosen.all)
        finally:
            races.close()
        return 1 if finds else 0
    say("there is no PostgreSQL here: nothing was raced")
    return 0


def hasten(url: str) -> None:
    """Have PostgreSQL look for deadlocks after 50 ms."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'"))
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
