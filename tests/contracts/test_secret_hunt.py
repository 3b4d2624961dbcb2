"""Everything that operators see of a store, searched for secrets: the page, metrics, health, commands, files, logs.

The store is filled by a reader whose options hold secrets, from messages whose URIs do: presigned URLs and SAS tokens.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from queue_source.common.logs import FORMS
from queue_source.options import parse_reader_options
from queue_source.options.places import READER
from queue_source.queues import open_queue
from shard_store.completeness.comparing import Category, Scope, Tally
from shard_store.model import ErrorRecord
from shard_store.store import open_store
from support.coordinator_world import World
from support.hunting import Secrets, command, commands, forms, pages, with_password
from support.servers.postgres import new_database


@dataclass
class Hunted(World):
    """A world whose store and queue have passwords, and the secrets of both and of all messages."""

    database: str = ""
    secrets: Secrets = field(default_factory=Secrets)
    signed: Secrets = field(default_factory=Secrets)
    """Of messages: their senders write them into names of objects."""

    @property
    def store_url(self) -> str:
        return with_password(self.database, self.secrets.awkward("storeUrl"))

    @property
    def queue_url(self) -> str:
        return f"sql+{with_password(self.database, self.secrets.awkward('queueUrl'))}?queue=files"

    @property
    def options(self) -> dict[str, str]:
        """Every option of the reader that takes a secret, and URLs that have some."""
        keys = {
            option.name: self.secrets.new(option.name)
            for option in READER.options
            if option.type.name == "secret" and option.name != "azure.accessKey"  # beside the SAS token there is none
        }
        errors = f"sql+{with_password(self.database, self.secrets.awkward('errorQueueUrl'))}?queue=errors"
        return {**keys, "azure.clientId": "c", "azure.tenantId": "t", "errorQueueUrl": errors, "source": "files"}

    def uris(self) -> list[str]:
        """Names of objects with what signs a request for them, by each cloud's words; the last one is no object."""
        new, odd = self.signed.new, self.signed.awkward
        return [
            f"s3://landing/1.json?X-Amz-Credential={odd('credential')}&X-Amz-Signature={new('signature')}",
            f"s3://landing/2.json?X-Amz-Security-Token={odd('session')}&X-Amz-Date=20261122T000000Z",
            f"s3://landing/3.json?X-Goog-Signature={new('goog')}#part",
            f"abfss://c@account.dfs.core.windows.net/4.json?sv=2024-11-04&sp=r&sig={odd('sas')}",
            f"s3://landing/5.json?token={new('token')}",
            f"https://user:{odd('userinfo')}@landing.example/6.json?sig={odd('foreign')}",
        ]


@pytest.fixture
def hunted(tmp_path: Path, postgres_url: str) -> Hunted:
    """A store with objects that were published or bad, and bad messages."""
    world = Hunted(tmp_path, database=new_database(postgres_url))
    bad = world.uris()[1]
    with open_queue(world.queue_url) as queue:
        queue.send(world.uris())
    options: dict[str, Any] = {**world.options, "store": "", "storeUrl": world.store_url}
    with world.loop(**options) as loop:
        loop.bad = {bad: "missing-object"}
        loop.drain()
    return world


def record_careless_texts(world: Hunted) -> None:
    """Errors whose texts hold what they should not: of a request as a library shows it, of a store, of a queue."""
    bad = world.uris()[1]
    texts = [f"GET {bad} said 403", driver_text(world), f"conninfo: {world.store_url}"]
    records = [
        ErrorRecord("object", f"cause-{number}", text, bad, str(number) * 64, queue=world.queue_url)
        for number, text in enumerate(texts)
    ]
    with open_store(world.store_url) as store:
        store.record_errors("files", "files", records)


def driver_text(world: Hunted) -> str:
    """What a library says of a request that it has made with a secret."""
    urllib3 = pytest.importorskip("urllib3")
    signed = f"http://127.0.0.1:1/6.json?sig={world.signed.awkward('sas')}&se=1"
    with urllib3.PoolManager() as pool, pytest.raises(urllib3.exceptions.HTTPError) as refused:
        pool.request("GET", signed, retries=0)
    assert world.signed.found_in(str(refused.value).encode())
    return str(refused.value)


@pytest.mark.thorough
def test_no_secret_is_on_the_page_in_the_metrics_or_in_the_health(hunted: Hunted) -> None:
    token = hunted.secrets.new("a token of the page")
    certify(hunted)
    record_careless_texts(hunted)
    seen = pages(hunted.store_url, token, "files", hunted.uris())
    happened = b"".join(seen.values())
    for words in (b"s3://landing/1.json?", b"missing-object", b"What became of it", b"cuesqueue_errors_total{", b"403"):
        assert words in happened, words
    assert hidden_from(hunted, seen) == {}


@pytest.mark.thorough
def test_no_secret_is_printed_by_a_command(hunted: Hunted) -> None:
    store = ("--store", hunted.store_url)
    certify(hunted)
    record_careless_texts(hunted)
    seen = commands(hunted.store_url, hunted.uris())
    for uri in hunted.uris():
        seen[f"quarantine {uri}"] = command("shards", "quarantine", uri, "--reason", uri, *store)
        seen[f"show {uri} again"] = command("shards", "show", uri, *store)
    given = {"fileFormat": "json", "allowedPrefixes": "s3://landing/", "queueUrl": hunted.queue_url, **hunted.options}
    file = hunted.folder / "reader.json"
    file.write_text(json.dumps(given))
    away = with_password(
        "postgresql+psycopg://postgres@127.0.0.1:1/d?connect_timeout=1", hunted.secrets.awkward("away")
    )
    for words in (("doctor",), ("doctor", "--json")):
        seen[" ".join(words)] = command(*words, "--options", str(file), *store)
    seen["doctor, nobody there"] = command("doctor", "-o", f"queueUrl=sql+{away}&queue=q", "--store", away)
    seen["status, nobody there"] = command("status", "--store", f"{away}x")
    seen["status, no such kind"] = command("status", "--store", away.replace("postgresql", "postgrsql"))
    happened = b"".join(seen.values())
    for text in (b"s3://landing/1.json?", b"missing-object", b"403", b"queueUrl", b"quarantine"):
        assert text in happened, text
    assert hidden_from(hunted, seen) == {}


def test_messages_and_bad_records_are_shown_as_they_came(hunted: Hunted) -> None:
    """Only what is asked for by its own command: whoever mends a message has to see it."""
    told = json.loads(command("errors", "list", "--json", "--store", hunted.store_url))
    [bad] = [error for error in told["errors"] if error.get("input") == hunted.uris()[-1]]
    assert hunted.signed.found_in(json.dumps({**bad, "input": ""}).encode()) == []
    shown = command("errors", "show", bad["error_id"], "--store", hunted.store_url)
    assert hunted.signed.found_in(shown)


@pytest.mark.parametrize("form", FORMS)
def test_no_secret_is_in_a_line_of_the_log(hunted: Hunted, form: str) -> None:
    """Of names of objects, of options as they are logged, and of a driver's exception with its trace."""
    seen: dict[str, bytes] = {}
    formatter = FORMS[form]()

    def line(text: str, *values: object, trace: bool = False) -> None:
        info = None
        if trace:
            try:
                raise RuntimeError(driver_text(hunted))
            except RuntimeError as error:
                info = (type(error), error, error.__traceback__)
        record = logging.LogRecord("cuesqueue", logging.WARNING, __file__, 1, text, values, info)
        seen[text] = formatter.format(record).encode()

    line("the objects %s", hunted.uris())
    line("cannot reach %s", hunted.store_url)
    line("queues %s and %s", hunted.queue_url, hunted.options["errorQueueUrl"])
    read = {
        "queueUrl": hunted.queue_url,
        "storeUrl": hunted.store_url,
        "fileFormat": "json",
        "allowedPrefixes": "s3://",
    }
    line("options %r", parse_reader_options({**hunted.options, **read}))
    line("failed", trace=True)
    assert hidden_from(hunted, seen) == {}


def test_a_secret_is_found_in_each_form() -> None:
    """A hunt that finds nothing because it cannot find is none."""
    secrets = Secrets()
    plain, odd = secrets.new("plain"), secrets.awkward("odd")
    for shift in range(4):
        for text in (plain, odd):
            packed = base64.b64encode(b"x" * shift + text.encode() + b"yz")
            assert secrets.found_in(b"..." + packed), (shift, text)
    assert secrets.found_in(quote(odd, safe="").encode()) == ["odd"]
    assert secrets.found_in(b"hush") == []
    assert len(forms(odd)) > len(forms(plain))


def hidden_from(hunted: Hunted, seen: dict[str, bytes]) -> dict[str, list[str]]:
    """Where a secret was found that should be nowhere, and its name."""
    found = {name: hunted.secrets.found_in(text) + hunted.signed.found_in(text) for name, text in seen.items()}
    return {re.sub(r"=[^&]*", "=...", name): names for name, names in found.items() if names}


def certify(hunted: Hunted) -> None:
    """A certificate that names objects which are not published, under a prefix as nobody should write it."""
    tally = Tally()
    for uri in hunted.uris():
        tally.add(uri, 1, None, Category.MISSING)
    scope = Scope("files", f"s3://landing/?token={hunted.signed.new('prefix')}&x=", None, 1, "{}")
    with open_store(hunted.store_url) as store:
        store.certify(scope, "listing", tally, "somebody")
