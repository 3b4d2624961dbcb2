"""Secrets in every option that takes one, the usual mistakes, and all output searched: none of them may be found.

Searched are standard output and error (Spark's own log included), Spark's event log, checkpoints, progress, the tables
of the store, and what the commands and `cuesqueue serve` show of it: there also for what signs requests in names of
objects.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from queue_source.options.places import PLACES
from queue_source.queues import open_queue
from support.engine import secret_hunt
from support.engine.harness import environment
from support.hunting import Secrets, commands, pages, with_password
from support.servers.fixtures import postgres_url
from support.servers.postgres import new_database

__all__ = ["postgres_url"]  # the fixture

NOWHERE = "127.0.0.1:1"
CATALOG = {"catalog.type": "rest", "catalog.uri": f"http://{NOWHERE}", "catalog.credential": "env:HUNTED_SECRET"}


def test_no_secret_of_an_option_is_found_in_any_output(tmp_path: Path, postgres_url: str) -> None:
    secrets, folder = Secrets(), tmp_path
    url = new_database(postgres_url)
    keys = {
        option.name.replace("kafka.*", "kafka.sasl.password"): secrets.new(option.name)
        for place in PLACES
        for option in place.options
        # beside the SAS token there is no key
        if option.type.name == "secret" and option.name not in ("catalog.*", "azure.accessKey")
    }
    (folder / "a secret").write_text(secrets.new("file") + "\n")
    keys |= {"s3.secretAccessKey": f"file:{folder}/a secret", "azure.clientSecret": "env:HUNTED_SECRET"}
    keys |= {"azure.clientId": "c", "azure.tenantId": "t", "aws.region": "eu-central-1"}
    queue_url = f"sql+{with_password(url, secrets.new('queueUrl'))}?queue=files"
    store = with_password(url, secrets.new("storeUrl"))
    reader = {
        **keys,
        "queueUrl": queue_url,
        "storeUrl": "env:HUNTED_STORE",
        "errorQueueUrl": f"sql+{with_password(url, secrets.new('errorQueueUrl'))}?queue=errors",
        "fileFormat": "json",
        "allowedPrefixes": f"file://{folder}/in/,s3://landing/",
        "source": "files",
        "waitTime": "1s",
        "commitTimeout": "2s",
        "visibilityTimeout": "10s",
    }
    sink = {**keys, "storeUrl": store, "pipeline": "files", "path": str(folder / "out")}
    elsewhere = {"storeUrl": store, "pipeline": "files", "table": "db.t", "warehouse": str(folder / "out"), **CATALOG}
    elsewhere["catalog.token"] = secrets.new("catalog.token")
    azure = secrets.new("azure.accessKey")
    broken = {
        "a store that is not there": {"storeUrl": f"{with_password(url, secrets.new('no store'))}x"},
        "a store of an unknown kind": {"storeUrl": f"postgresq://u:{secrets.new('wrong kind')}@h/d"},
        "a store that is no URL": {"storeUrl": f"u:{secrets.new('no url')}@h/d"},
        "a store by its earlier name": {"storeUrl": "", "store": f"postgresql://u:{secrets.new('store')}@h/d"},
        "a queue that is not there": {"queueUrl": f"sql+{with_password(url, secrets.new('no queue'))}x?queue=q"},
        "a queue of an unknown kind": {"queueUrl": f"kafak://u:{secrets.new('kafak')}@h/q?auth={secrets.new('auth')}"},
        "a misspelt option": {"aws.secretAcessKey": secrets.new("misspelt")},
        "the account's key by its earlier name": {"azure.sasToken": "", "azure.accountKey": azure},
        "a reference that leads nowhere": {"azure.sasToken": "env:NOT_SET_ANYWHERE"},
        "a secret twice": {"cloudFiles.awsSecretKey": secrets.new("twice")},
    }
    first, *more = objects(folder)
    signed = Secrets()
    names = [
        f"file://{folder}/in/{name}?sig={signed.new(name)}.{suffix}"
        for name, suffix in (("gone", "json"), ("bad", "json.gz"), ("here", "json"))
    ]
    Path(names[1].removeprefix("file://")).write_bytes(b"\x1f\x8b, and no gzip behind its magic bytes")
    Path(names[2].removeprefix("file://")).write_text('{"id": 2, "name": "Bob"}\n')
    with open_queue(queue_url) as queue:
        queue.send([first, f"file://{folder}/in/gone.json", "nothing", *names])
    view = {"storeUrl": "env:HUNTED_STORE", "azure.sasToken": "env:HUNTED_SECRET"}
    plan = {"folder": str(folder / "hunt"), "reader": reader, "sink": sink, "view": view, "broken": broken}
    plan |= {"elsewhere": elsewhere, "objects": more}
    (folder / "hunt").mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    hidden = {"HUNTED_STORE": store, "HUNTED_SECRET": secrets.new("env")}
    output, log = folder / "output", folder / "log"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        done = subprocess.run(
            [sys.executable, secret_hunt.__file__, folder / "plan.json"],
            env={**os.environ, **environment(), **hidden},
            stdout=stdout,
            stderr=stderr,
            timeout=280,
            check=False,
        )
    said = output.read_bytes() + log.read_bytes()
    assert done.returncode == 0, said[-6000:].decode(errors="replace")
    check_that_it_happened(output.read_text("utf-8"))
    assert secrets.found_in(said) == [], shown_with(secrets, said)
    for file in files_in(folder / "hunt"):
        assert secrets.found_in(file.read_bytes()) == [], file
    assert secrets.found_in(tables_of(url)) == []
    token = secrets.new("token of the page")
    shown = {**commands(store, names), **pages(store, token, "files", names)}
    for words in (b"missing-object", b"corrupt-object", b"in/here?sig=", b"cuesqueue_errors_total{"):
        assert any(words in text for text in shown.values()), words
    assert {name: secrets.found_in(text) for name, text in shown.items() if secrets.found_in(text)} == {}
    assert [number for number, text in enumerate(shown.values()) if signed.found_in(text)] == []


def objects(folder: Path) -> list[str]:
    """Each has a good record and a bad one."""
    (folder / "in").mkdir()
    files = [folder / "in" / f"{number}.json" for number in range(3)]
    for file in files:
        file.write_text('{"id": 1, "name": "Ada"}\n{"id": "none"\n')
    return [f"file://{file}" for file in files]


def check_that_it_happened(output: str) -> None:
    """A hunt whose steps fail for another reason than they should would find nothing."""
    steps = {step.partition("\n")[0]: step for step in output.split("######## ")[1:]}
    assert "done" in steps["a run"]
    assert "missing-object" in steps["a view, its plan and its rows"]
    expected = {
        "a typo in a column": "nmae",
        "a typo in a column of a view": "causse",
        "a function that fails": "the user's own function fails",
        "SQL": "causse",
        "a catalog at a wrong host": "127.0.0.1",
        "a store that is not there": "does not exist",
        "a store of an unknown kind": "postgresq",
        "a store that is no URL": "storeUrl",
        "a store by its earlier name": "'storeUrl'",
        "a queue that is not there": "does not exist",
        "a queue of an unknown kind": "kafak",
        "a misspelt option": "did you mean 'aws.secretAccessKey'",
        "the account's key by its earlier name": "azure.accessKey",
        "a reference that leads nowhere": "NOT_SET_ANYWHERE",
        "a secret twice": "is given twice",
    }
    for name, words in expected.items():
        assert "failed" in steps[name], steps[name]
        assert words in steps[name], steps[name]


def shown_with(secrets: Secrets, content: bytes) -> str:
    lines = [line for line in content.decode(errors="replace").splitlines() if secrets.found_in(line.encode())]
    return "\n".join(line[:1000] for line in lines[:20])


def files_in(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert {"events", "checkpoints"} <= {path.relative_to(folder).parts[0] for path in found}
    return found


def tables_of(url: str) -> bytes:
    """All tables of the store and its queues, as text."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            names = sa.inspect(connection).get_table_names()
            assert "cuesqueue_errors" in names
            rows = [repr(row) for name in names for row in connection.execute(sa.text(f'SELECT * FROM "{name}"'))]
        return "\n".join(rows).encode()
    finally:
        engine.dispose()
