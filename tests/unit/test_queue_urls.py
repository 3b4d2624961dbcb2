"""Opening queues by URL: adapters on demand, names for people, and no secret in any text."""

from __future__ import annotations

import subprocess
import sys
import types
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from queue_source import queues as own
from queue_source.errors import OptionError, QueueConfigurationError
from queue_source.options import parse_reader_options
from queue_source.queues import open_queue, queue_name, redact, register_queue
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import parse_address
from shard_store.errors import StoreConfigurationError
from shard_store.store import open_store
from support.sessions import LEAST


def test_a_sql_url_opens_a_queue_and_connects_to_nothing_yet(tmp_path: Path) -> None:
    with open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue=files") as queue:
        assert isinstance(queue, SqlQueue)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqss://name", "unknown kind 'sqss'; did you mean 'sqs'? there are amqp://"),
        ("pub-sub://p/s", "did you mean 'pubsub'?"),
        ("sqlite:///jobs.db", "did you mean 'sql+sqlite://...?queue=NAME'?"),
        ("postgresql+psycopg://u:hunter2@h/db", "did you mean 'sql+postgresql+psycopg://...?queue=NAME'?"),
        ("postgres://u:hunter2@h/db", "did you mean 'sql+postgresql://...?queue=NAME'?"),
        ("nats://h/topic", "there are amqp://"),
        ("jobs.db", "not a queue URL"),
        ("", "not a queue URL"),
    ],
)
def test_an_unknown_kind_says_what_was_perhaps_meant(url: str, hint: str) -> None:
    with pytest.raises(QueueConfigurationError) as told:
        open_queue(url)
    assert hint in str(told.value)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sql+sqlite:///jobs.db?queue=q&tags=a.%23", "'tags'; for this kind of queue a filter is the option tagFilter"),
        ("sql+sqlite:///jobs.db?queue=q&listener=true", "'listener'; it is for amqp and sim queues"),
        ("sql+sqlite:///jobs.db?queue=q&timout=3", "'timout'; did you mean 'timeout'?"),
        ("sql+sqlite:///jobs.db?queue=q&mode=ro", "unknown parameter 'mode'"),
        ("sql+sqlite:///jobs.db?queue=q&queue=r", "several queue= parameters"),
        (
            "sql+postgresql://u:hunter2@h/db?queue=q&pool=p",
            "'pool'; it is for amqp and sim queues; this URL takes queue",
        ),
        ("sqs://files?group=g", "'group'; it is for kafka queues; .* the options sqs"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/files?tags=x", "tagFilter"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/files?log_id=x", "did you mean 'log_id_header'"),
        ("pubsub://p/files?token=hunter2", "'token'; this URL takes log_id_header; the options gcp"),
        ("azurequeue://account/files?source=s", "'source'; it is for amqp queues"),
        ("kafka://h/t?grup=g", "'grup'; did you mean 'group'?"),
        ("kafka://h/t?group=a&group=b", "several group="),
        ("amqp://me:hunter2@h/v?source=s&pol=p", "did you mean 'pool'?"),
        ("amqp://me:hunter2@h/v?source=s&queue=q", "'queue'; .*and what pika takes"),
        ("amqp://me:hunter2@h/v?source=s&source=t", "several source="),
        ("sim://a?dir=d&tag=x", "did you mean 'tags'"),
        ("sim://a?dir=d&dir=e", "several dir="),
    ],
)
def test_a_parameter_that_this_kind_of_queue_does_not_take_is_refused(url: str, told: str) -> None:
    with pytest.raises(QueueConfigurationError, match=told) as refused:
        open_queue(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("rest", "kept"),
    [
        ("sqlite:///jobs.db?timeout=5", {"timeout": "5"}),
        ("sqlite:///file:jobs.db?mode=ro&uri=true", {"mode": "ro", "uri": "true"}),
        ("sqlite:///file:jobs.db?mode=ro&uri=1", {"mode": "ro", "uri": "1"}),
        ("postgresql+psycopg://u@/db?host=h1:5432&host=h2:5432", {"host": ("h1:5432", "h2:5432")}),
        ("postgresql+psycopg://u@h/db?sslmode=require&options=-c%20a%3Db", {"sslmode": "require", "options": "-c a=b"}),
        ("mysql+pymysql://u@h/db?charset=utf8mb4", {"charset": "utf8mb4"}),
    ],
)
def test_the_parameters_of_a_database_s_driver_are_handed_to_it(rest: str, kept: dict[str, object]) -> None:
    address = parse_address(f"sql+{rest}&queue=q&log_id_header=X-Log")
    assert (dict(address.url.query), address.queue) == (kept, "q")


@pytest.mark.parametrize(
    "url",
    [
        "sqs://files?",
        "pubsub://p/files?",
        "azurequeue://account/files?",
        "kafka://h/t?group=g&",
        "amqp://h/v?source=s&",
        "sim://a?dir=d&",
        "sql+sqlite:///jobs.db?queue=q&",
    ],
)
def test_every_kind_takes_the_header_of_the_log_id(url: str) -> None:
    with open_queue(f"{url}log_id_header=X-Ascent-Log-Id") as queue:
        assert getattr(queue, "log_id_header", None) == "X-Ascent-Log-Id"


def test_an_adapter_that_is_not_there_says_which_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "queue_source.queues.amqp", None)  # as if the file were missing
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name.endswith(".sql") or None)
    with pytest.raises(QueueConfigurationError, match=r"no adapter for amqp://.*it has sql\+SQLALCHEMY-URL"):
        open_queue("amqp://user:hunter2@host/vhost?source=s&pool=p")


def test_a_missing_sdk_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> types.ModuleType:
        raise ModuleNotFoundError("No module named 'boto3'", name="boto3")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(QueueConfigurationError, match=r"pip install 'cuesqueue\[aws\]'"):
        open_queue("https://sqs.eu-central-1.amazonaws.com/123456789012/files")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, own.Factory]:
    factories: dict[str, own.Factory] = {}
    monkeypatch.setattr(own, "_registered", factories)
    return factories


@pytest.mark.usefixtures("registered")
def test_a_factory_of_ones_own_is_called_with_the_url_and_the_options(tmp_path: Path) -> None:
    seen: list[object] = []

    def make(url: str, **options: Any) -> SqlQueue:
        seen.append((url, options))
        return SqlQueue(f"sql+sqlite:///{tmp_path}/own.db?queue=q")

    register_queue("shop", make)
    assert open_queue("Shop://orders?depth=3", region="x").name.endswith("queue=q")
    assert seen == [("Shop://orders?depth=3", {"region": "x"})]
    with pytest.raises(QueueConfigurationError, match=r"there are .*shop://"):
        open_queue("nats://h/topic")
    with pytest.raises(ValueError, match="small letters"):
        register_queue("shop://", make)


@pytest.mark.usefixtures("registered")
def test_a_queue_of_ones_own_that_lacks_a_verb_is_refused_by_the_name_of_the_verb() -> None:
    verbs = ("name", "receive", "extend", "acknowledge", "nack", "reject", "republish", "depth", "close")
    register_queue("old", lambda url: types.SimpleNamespace(**dict.fromkeys((*verbs, "publish"))))
    with pytest.raises(QueueConfigurationError, match=r"not a Queue: it has no send$"):
        open_queue("old://x")


@pytest.mark.parametrize(
    "url",
    [
        "os:system?;touch /tmp/x",
        "numpy.distutils.cpuinfo:getstatusoutput?id",
        "queue_source.queues.sql:SqlQueue",
    ],
)
def test_a_text_names_no_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imports {name}"))
    with pytest.raises(QueueConfigurationError, match=r"names a Python function.*entry point.*register_queue"):
        open_queue(url)
    with pytest.raises(OptionError, match="names a Python function"):
        parse_reader_options({**LEAST, "queueUrl": url})


def test_only_options_refer_to_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row of the store names a queue, which a command opens: it is a URL and is never looked up."""
    monkeypatch.setenv("QUEUE", "sim://hush?dir=/tmp")
    (tmp_path / "hush").write_text("sim://hush?dir=/tmp")
    for text in ("env:QUEUE", f"file:{tmp_path}/hush"):
        with pytest.raises(QueueConfigurationError):
            open_queue(text)
        with pytest.raises(StoreConfigurationError):
            open_store(text)


def test_entry_points_of_a_package_in_a_zip_are_found(tmp_path: Path) -> None:
    """As with `--py-files`: the archive has the package beside the folder of its metadata."""
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as archive:
        archive.writestr("shop_queue.py", "def make(url, **options): raise SystemExit(f'made {url}')\n")
        archive.writestr("shop_queue-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: shop-queue\nVersion: 1.0\n")
        archive.writestr("shop_queue-1.0.dist-info/entry_points.txt", "[cuesqueue.queues]\nshop = shop_queue:make\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'shop.zip')!r})\nimport cuesqueue\n"
    program += "cuesqueue.open_queue('shop://orders')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "made shop://orders"


def test_an_entry_point_that_cannot_be_loaded_or_is_there_twice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("shop", "no_such_module:make", own.GROUP)]
    monkeypatch.setattr(own, "_declared", lambda: points)
    with pytest.raises(QueueConfigurationError, match=r"'no_such_module:make'.*cannot be loaded"):
        open_queue("shop://orders")
    points.append(EntryPoint("shop", "other:make", own.GROUP))
    with pytest.raises(QueueConfigurationError, match=r"two packages declare 'shop'.*no_such_module:make, other:make"):
        open_queue("shop://orders")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sql+sqlite:///jobs.db?queue=files", "files"),
        ("sql+postgresql://u:p%2F@h/db?sslmode=require&queue=a%20b", "a b"),
        ("sqs://orders", "orders"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo", "orders.fifo"),
        ("pubsub://project/subscription", "subscription"),
        ("amqp://u:p/x@h:5672/vhost?source=s&pool=p", "p"),
        ("amqp://h/vhost?source=s&listener=true", "s"),
        ("sim://tests?dir=/tmp/x", "tests"),
        ("shop://host/orders", "orders"),
    ],
)
def test_the_short_name_of_a_queue(url: str, name: str) -> None:
    assert queue_name(url) == name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sql+postgresql://u:hunter2@h:5432/db?queue=q", "sql+postgresql://u:***@h:5432/db?queue=q"),
        ("sql+postgresql://u:hunter2/hun?ter2@h/db?queue=q", "sql+postgresql://u:***@h/db?queue=q"),
        ("amqp://u:hunter2@hunter2@h/v", "amqp://u:***@h/v"),
        ("amqp://u:hunter2@hun/ter2@h/v", "amqp://u:***@h/v"),
        ("amqp://:hunter2@h/v", "amqp://:***@h/v"),
        ("sql+mysql://h/db?queue=q&password=hunter2&x=1", "sql+mysql://h/db?queue=q&password=***&x=1"),
        ("sqs://n?aws.secretAccessKey=hunter2", "sqs://n?aws.secretAccessKey=***"),
        ("amqp://a:hunter2@h/v,amqp://b:hunter2@h/w", "amqp://a:***@h/v,amqp://b:***@h/w"),
        ("http://127.0.0.1:4566/0/a,amqp://b:hunter2@h/w", "http://127.0.0.1:4566/0/a,amqp://b:***@h/w"),
        ("sql+sqlite:////data/a@b.db?queue=a@b", "sql+sqlite:////data/a@b.db?queue=a@b"),
        ("https://sqs.eu-central-1.amazonaws.com/1/q", "https://sqs.eu-central-1.amazonaws.com/1/q"),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert "hunter2" not in redact(url)
