"""The parts of `cuesqueue prove` that need no Spark: made data, places, comparing, and reasons from a journal."""

from __future__ import annotations

import io
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shard_store
from cuesqueue import OptionError
from cuesqueue_prove.effects import Effects
from cuesqueue_prove.folder import SETTINGS, Journal, Places, Settings, Walls, without_credentials
from cuesqueue_prove.inside import _PATH_WRITERS, lead_catalogs
from cuesqueue_prove.proof import _FAST, _TELLING, Proof, Prover, prover
from cuesqueue_prove.results import (
    Difference,
    Made,
    Rule,
    compare,
    read_result,
    reasons,
    repeated_batches,
    shared_checkpoints,
    taken_elsewhere,
    weaker_semantics,
)
from cuesqueue_prove.runs import COMMIT_LOG, EFFECT, RANDOM, STEPS, Ended, Kill, Run, _is_alive, write_python
from cuesqueue_prove.samples import Form, Maker, choose_key, read_records
from shard_store.failpoints import POINTS

JSON = b'{"id": 7, "country": "DE"}\n{"id": 8, "country": "DE"}\n'
DOUBLED = Difference(Counter(["row"]), Counter())
LOST = Difference(Counter(), Counter(["row"]))


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [7, 8], "country": ["DE", "DE"]}), file)
    return file.getvalue()


# made data


@pytest.mark.parametrize(
    ("form", "sample"),
    [
        (Form("json"), JSON),
        (Form("csv", ";", True), b"id;country\na-1;DE\na-2;DE\n"),
        (Form("csv"), b"7,DE\n8,DE\n"),
        (Form("parquet"), parquet()),
    ],
)
def test_every_row_of_every_object_has_a_key_of_its_own_and_the_rest_of_the_sample(form: Form, sample: bytes) -> None:
    maker = Maker(form, sample, ".x")
    objects = [maker.make(number) for number in range(3)]
    keys = [key for made in objects for key in made.keys]
    assert len(set(keys)) == len(keys) == 6
    for made in objects:
        records = read_records(form, made.body)
        assert records is not None
        assert [str(record[maker.key or ""]) for record in records] == list(made.keys)
        others = [value for record in records for name, value in record.items() if name != maker.key]
        assert others == ["DE", "DE"]


def test_keys_are_of_the_kind_that_the_sample_has() -> None:
    uuid = "0b8ac5c2-7c1f-4a55-9d2e-3f6f0a1b2c3d"
    for value, pattern in ((uuid, uuid), ("00017", "00001"), ("order-9", "order-9-1"), (2**40, 1)):
        record = json.dumps({"order_id": value, "note": "x"}).encode()
        (key,) = Maker(Form("json"), record, ".json").make(0).keys
        assert len(key) == len(str(pattern))


def test_a_column_named_as_an_id_is_chosen_before_others_and_one_with_repetition_never() -> None:
    records = [{"amount": 1, "country": "DE", "order_id": "a"}, {"amount": 2, "country": "DE", "order_id": "b"}]
    assert choose_key(records) == "order_id"
    assert choose_key([{"country": "DE", "price": 1.5}, {"country": "DE", "price": 2.5}]) is None


def test_what_cannot_be_changed_is_copied_as_it_is() -> None:
    compressed = b"\x1f\x8b\x08 not json \xff"
    assert Maker(Form("json"), compressed, ".json.gz").make(3).body == compressed
    assert Maker(Form("avro"), b"Obj\x01", ".avro").make(0).keys == ()


# places


def test_relative_places_stay_and_all_others_are_led_into_the_folder(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert places.path("checkpoint") == "checkpoint"
    assert places.path(f"file://{tmp_path}/out") == f"file://{tmp_path}/out"
    led = places.path("s3://lake/orders"), places.path("/lake/orders"), places.path("/var/../../../orders")
    assert all(Path(path).resolve().is_relative_to(tmp_path) for path in led)
    assert len(set(led)) == 3
    assert places.path("s3://lake/orders/day") == f"{led[0]}/day"


def test_a_database_is_always_a_file_in_the_folder(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert places.database("sqlite:///shop.db") == "sqlite:///shop.db"
    led = [places.database(url) for url in ("sqlite:////var/shop.db", "postgresql+psycopg://u:p@db/shop")]
    assert all(url.startswith(f"sqlite:///{tmp_path}/elsewhere/") for url in led)
    assert places.database(led[0]) == led[0], "what is led already is not led again"


def test_what_takes_the_url_of_a_store_takes_another_one(tmp_path: Path) -> None:
    effects = Effects(Settings(str(tmp_path), __file__, ()), Journal(tmp_path), Places(tmp_path))

    def published(store: object, *, pipeline: str) -> object:
        return store

    led = effects._led(published)
    assert led("postgresql://db/shop", pipeline="p") == f"sqlite:///{tmp_path}/elsewhere/postgresql/db/shop.db"
    assert led(pipeline="p", store=effects) is effects, "an open one is what it is"


def test_a_job_may_not_connect_to_another_machine_nor_open_a_file_elsewhere(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path), __file__, (), allowed=("db.test",))
    effects = Effects(settings, Journal(tmp_path), Places(tmp_path))
    effects._audit("socket.connect", (None, ("127.0.0.1", 80)))
    effects._audit("socket.connect", (None, ("db.test", 5432)))
    with pytest.raises(PermissionError, match=r"--allow 203\.0\.113\.7"):
        effects._audit("socket.connect", (None, ("203.0.113.7", 443)))
    effects._audit("sqlite3.connect", (f"{tmp_path}/a.db",))
    with pytest.raises(PermissionError, match="no database outside"):
        effects._audit("sqlite3.connect", ("/var/lib/real.db",))


def test_a_relative_place_that_leaves_the_folder_is_led_back_into_it(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert Path(places.path("../orders")).is_relative_to(tmp_path)
    assert places.database("sqlite:///../shop.db").startswith(f"sqlite:///{tmp_path}/elsewhere/")


def test_a_host_is_allowed_by_its_name_also_where_python_connects_to_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: found if name == "api.test" else [])
    walls = Walls(Settings(str(tmp_path), __file__, (), allowed=("api.test",)))
    walls.check("socket.connect", (None, ("203.0.113.7", 443)))
    with pytest.raises(PermissionError, match=r"--allow 203\.0\.113\.8"):
        walls.check("socket.sendto", (None, ("203.0.113.8", 8125)))


def test_a_job_writes_and_removes_no_file_elsewhere_and_imports_no_library_whose_connections_are_not_seen(
    tmp_path: Path,
) -> None:
    walls = Walls(Settings(str(tmp_path / "run"), __file__, ()))
    walls.check("open", (f"{tmp_path}/run/rows.csv", "a", 0))
    walls.check("open", ("/etc/hostname", "r", 0))
    walls.check("open", (str(tmp_path), "w+b", 0))  # as tempfile does
    for event, arguments in (("open", ("/srv/rows.csv", "a", 0)), ("os.remove", ("/srv/rows.csv", -1))):
        with pytest.raises(PermissionError, match=r"no file outside of its folder, and /srv/rows\.csv"):
            walls.check(event, arguments)
    with pytest.raises(PermissionError, match="psycopg2, a library in C"):
        walls.check("import", ("psycopg2", None))


def test_the_job_has_no_credentials_of_a_cloud(tmp_path: Path) -> None:
    real = {
        "AWS_PROFILE": "prod",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "eu",
        "AZURE_CLIENT_SECRET": "s",
        "A": "b",
    }
    kept = without_credentials(real, tmp_path)
    assert (kept["AWS_REGION"], kept["A"], kept["AWS_SECRET_ACCESS_KEY"]) == ("eu", "b", "prove")
    assert not {"AWS_PROFILE", "AZURE_CLIENT_SECRET"} & set(kept)


@pytest.mark.parametrize(
    ("statement", "is_led"),
    [
        ("INSERT INTO parquet.`/lake/orders` SELECT * FROM parquet.`/lake/ref`", True),
        ("CREATE TABLE t (id INT) USING parquet LOCATION '/lake/orders'", True),
        ("INSERT OVERWRITE DIRECTORY '/lake/orders' USING parquet SELECT 1", True),
        ("MERGE INTO delta.`/lake/orders` t USING batch s ON t.id = s.id WHEN MATCHED THEN DELETE", True),
        ("SELECT * FROM parquet.`/lake/orders`", False),
    ],
)
def test_a_statement_of_sql_writes_elsewhere_and_reads_where_it_says(
    tmp_path: Path, statement: str, is_led: bool
) -> None:
    led = Places(tmp_path).statement(statement)
    assert (f"{tmp_path}/elsewhere/file/lake/orders" in led) is is_led
    assert ("/lake/ref`" in led) is ("/lake/ref`" in statement)
    assert f"{tmp_path}/elsewhere/file/lake/ref" not in led
    assert Places(tmp_path).table("delta.`/lake/x`") == f"delta.`{tmp_path}/elsewhere/file/lake/x`"
    assert Places(tmp_path).table("shop.orders") == "shop.orders"


def test_every_method_of_a_writer_that_has_a_path_is_led() -> None:
    assert {*_PATH_WRITERS} == {"save", "json", "parquet", "text", "csv", "xml", "orc"}


class Conf(dict[str, str]):
    """The settings of a session."""

    @property
    def getAll(self) -> dict[str, str]:
        return dict(self)

    def set(self, key: str, value: str) -> None:
        self[key] = value


def test_a_catalog_of_files_is_led_elsewhere_and_one_of_another_machine_is_refused(tmp_path: Path) -> None:
    name = "spark.sql.catalog.lake"
    conf = Conf(
        {name: "org.apache.iceberg.spark.SparkCatalog", f"{name}.type": "hadoop", f"{name}.warehouse": "s3://l"}
    )
    lead_catalogs(conf, Places(tmp_path), ())
    assert conf[f"{name}.warehouse"] == f"{tmp_path}/elsewhere/s3/l"
    rest = Conf({f"{name}.type": "rest", f"{name}.uri": "https://catalog.test/v1"})
    with pytest.raises(PermissionError, match=r"--allow catalog\.test"):
        lead_catalogs(rest, Places(tmp_path), ())
    lead_catalogs(rest, Places(tmp_path), ("catalog.test",))


# comparing


def test_rows_are_compared_by_how_often_they_are_there() -> None:
    difference = compare(Counter(a=2, b=1), Counter(a=3, c=1))
    assert difference == Difference(Counter(a=1, c=1), Counter(b=1))
    assert not compare(Counter(a=2), Counter(a=2))


def test_a_row_tells_its_object_by_its_key() -> None:
    made = Made(("file:///x/0000.json",), "id", {"4": "orders/0000.json"})
    assert made.object_of('{"id": 4, "country": "DE"}') == "orders/0000.json"
    assert made.object_of('{"country": "DE"}') == ""


def test_a_result_that_is_neither_a_statement_nor_a_function_is_refused_before_anything_runs(tmp_path: Path) -> None:
    assert Rule.of("select 1").is_statement
    with pytest.raises(OptionError, match=r"FILE\.py:FUNCTION"):
        Rule.of(f"{tmp_path}/absent.py:rows")
    with pytest.raises(OptionError, match="is no file"):
        prover(tmp_path / "absent.py", __file__)
    with pytest.raises(OptionError, match="is required"):
        prover(__file__, [])


# steps


def test_every_step_is_a_point_of_the_code_or_one_of_ours() -> None:
    assert set(STEPS) - {EFFECT, COMMIT_LOG, RANDOM} <= set(POINTS)
    assert {*_FAST, *_TELLING} <= set(STEPS)


# reasons


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def called(journal: Journal, *starts: int, batch: int = 3) -> None:
    for start in starts:
        journal.start = start
        journal.note("batch-called", query="q", batch=batch, function="add")


def effect(journal: Journal, inside: str = "") -> None:
    journal.note("effect", by="df.write.save", where="job.py:7", batch=3, query="q", inside=inside)


def test_an_append_without_delivery_is_named_with_its_line(journal: Journal) -> None:
    called(journal, 1, 2)
    effect(journal)
    (reason,) = repeated_batches(journal, DOUBLED)
    assert "batch 3 of the function 'add' 2 times" in reason
    assert "df.write.save at job.py:7) is not in `delivery`" in reason


def test_an_effect_outside_of_the_transaction_is_another_reason_than_no_delivery(journal: Journal) -> None:
    called(journal, 1, 2)
    journal.note("delivery", batch=3, query="q", already=False)
    effect(journal)
    (reason,) = repeated_batches(journal, DOUBLED)
    assert "it uses `delivery`, but df.write.save at job.py:7 is outside of its transaction" in reason


def test_what_a_named_output_writes_is_not_accused(journal: Journal) -> None:
    called(journal, 1, 2)
    journal.note("delivery", batch=3, query="q", already=False)
    effect(journal, inside="audit")
    (reason,) = repeated_batches(journal, DOUBLED)
    assert "job.py:7" not in reason


def test_rows_that_are_written_after_the_delivery_are_lost(journal: Journal) -> None:
    called(journal, 1, 2)
    journal.note("delivery", batch=3, query="q", already=True)
    (reason,) = repeated_batches(journal, LOST)
    assert "comes after the block of `delivery`" in reason


def test_a_batch_that_is_taken_for_done_before_it_is_written_is_named(journal: Journal) -> None:
    called(journal, 1, 2)
    (reason,) = repeated_batches(journal, LOST)
    assert "batch 3 of the function 'add' 2 times, and did not write again what it had lost" in reason


def test_a_sink_that_keeps_a_batch_twice_is_named(journal: Journal) -> None:
    journal.note("started", query="q", checkpoint="/c", format="adding", signature="a", where="job.py:9")
    journal.note("killed", step=COMMIT_LOG, nth=1, batches={"/c": 4})
    (reason,) = repeated_batches(journal, DOUBLED)
    assert "the sink 'adding' took batch 4 twice" in reason


@pytest.mark.parametrize(("signatures", "shared"), [(("a", "b"), True), (("a", "a"), False)])
def test_a_checkpoint_is_shared_by_different_queries_alone_and_not_by_one_that_starts_again(
    journal: Journal, signatures: tuple[str, str], shared: bool
) -> None:
    for place, signature in enumerate(signatures):
        journal.note("started", query="q", checkpoint="/x/orders", signature=signature, where=f"job.py:{place}")
    found = list(shared_checkpoints(journal))
    assert bool(found) is shared
    if shared:
        assert "'orders' is shared by 2 queries, started at job.py:0 and job.py:1" in found[0]


def test_an_object_whose_message_is_gone_and_that_nobody_has_opened_was_acknowledged_elsewhere(
    journal: Journal,
) -> None:
    made = Made(("file:///o/0.json", "file:///o/1.json", "file:///o/2.json"), "", {})
    states, waiting = {"file:///o/0.json": "done"}, {"file:///o/1.json"}
    assert list(taken_elsewhere(made, {**states, "file:///o/2.json": "open"}, waiting, journal)) == []
    journal.note("acknowledged", queue="orders", messages=1, where="job.py:4")
    (reason,) = taken_elsewhere(made, states, waiting, journal)
    assert "1 objects (2.json) are gone from the queue" in reason
    assert "job.py:4" in reason


def test_a_weaker_promise_is_a_reason(journal: Journal) -> None:
    journal.note("reader", pipeline="orders", semantics="at-least-once")
    (reason,) = weaker_semantics(journal)
    assert "deliverySemantics=at-least-once" in reason


def test_what_is_not_found_is_said(journal: Journal) -> None:
    class Quiet:
        def __init__(self) -> None:
            self.journal = journal

        def states(self) -> dict[str, str]:
            return {}

        def messages_in_queue(self) -> set[str]:
            return set()

    quiet: Any = Quiet()
    (reason,) = reasons(quiet, DOUBLED, Made((), "", {}))
    assert "was not found" in reason


def test_files_that_the_function_opens_to_write_are_effects_and_those_of_libraries_are_not(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    effects = Effects(Settings(str(tmp_path), __file__, ()), journal, Places(tmp_path))

    def function(batch: object, batch_id: int) -> None:
        effects._audit("open", ("rows.txt", "w", 0))
        effects._audit("open", ("schema.txt", "r", 0))
        library = compile("audit('open', ('cache.txt', 'w', 0))", "library.py", "exec")
        exec(library, {"audit": effects._audit})

    effects.watched_function(function, {"query": "q", "function": "function"})(None, 3)
    effects._audit("open", ("after.txt", "w", 0))
    assert [(entry["by"], entry["batch"]) for entry in journal.entries("effect")] == [("open('rows.txt')", 3)]
    assert [entry["what"] for entry in journal.entries("batch-called", "batch-returned")] == [
        "batch-called",
        "batch-returned",
    ]


# the verdict


class Scripted(Run):
    """A run whose starts end as it is told: an exit code, None for a kill, `late` for one that never ends."""

    def __init__(self, folder: Path, *codes: int | str | None) -> None:
        super().__init__(Settings(str(folder), __file__, ()), (), 1.0)
        self.codes = list(codes)

    def _once(self, kill: Kill | None) -> int | None:
        code = self.codes.pop(0)
        self._is_late = code == "late"
        return code if isinstance(code, int) else None

    def unfinished(self) -> str:
        return ""


def test_a_start_that_never_ends_is_a_problem_and_no_kill(tmp_path: Path) -> None:
    ended = Scripted(tmp_path, None, "late").drive([Kill("published"), Kill("confirmed")])
    assert ended.kills == (Kill("published"),)
    assert ended.unreached == (Kill("confirmed"),)
    assert "did not end" in ended.problem


def test_a_job_that_fails_by_itself_says_so_even_where_it_ends_well_later(tmp_path: Path) -> None:
    assert Scripted(tmp_path, 1, 0).drive().failed == "nothing"
    assert Scripted(tmp_path, 0).drive().failed == ""


class Stub(Prover):
    """A prover whose runs end as they are told."""

    endings: list[Ended]

    def _driven(self, folder: Path, kills: Sequence[Kill], text: str) -> tuple[Run, Ended]:
        run = Scripted(folder)
        run.journal.note("reader", pipeline="p", store="sqlite:///store.db", queues=[], semantics="at-least-once")
        with closing(sqlite3.connect(folder / "rows.db")) as connection, connection:
            connection.execute("CREATE TABLE rows AS SELECT 1 AS id")
        shard_store.open_store(f"sqlite:///{folder}/store.db").close()
        return run, self.endings.pop(0)


def proved(tmp_path: Path, *endings: Ended, steps: Sequence[str]) -> Proof:
    rule = Rule.of("SELECT id FROM rows", "sqlite:///rows.db")
    stub = Stub(Settings(str(tmp_path / "prove"), __file__, ()), rule=rule, steps=steps)
    stub.endings = list(endings)
    return stub.run()


def test_a_job_that_was_never_killed_is_not_called_exactly_once(tmp_path: Path) -> None:
    proof = proved(tmp_path, Ended((), ()), Ended((), (Kill("table-committed"),)), steps=["table-committed"])
    assert not proof
    assert str(proof).startswith("not proved: the job was never killed, as it never came to table-committed")


def test_a_job_that_fails_without_a_kill_in_two_runs_is_no_measure(tmp_path: Path) -> None:
    failed = Ended((), (), failed="ValueError: flaky")
    proof = proved(tmp_path, failed, failed, steps=["published"])
    assert "failed by itself, without any kill, and in each of two runs: ValueError: flaky" in str(proof)
    killed = Ended((Kill("published"),), ())
    assert proved(tmp_path, failed, Ended((), ()), killed, steps=["published"])


def test_every_sink_of_a_job_is_compared_or_named(tmp_path: Path) -> None:
    run = Scripted(tmp_path)
    run.journal.note("started", query="files", format="parquet", target="/x")
    run.journal.note("started", query="function", format="foreachBatch", target="")
    with pytest.raises(OptionError, match="'foreachBatch'"):
        read_result(run, Rule())


def test_every_process_of_python_that_spark_starts_has_the_walls(tmp_path: Path) -> None:
    job = tmp_path / "job" / "job.py"
    job.parent.mkdir()
    job.write_text(f"import sys\nprint(sys.argv[1])\nopen({str(tmp_path / 'real.txt')!r}, 'a')\n", "utf-8")
    settings = Settings(str(tmp_path / "run"), str(job), ())
    python = write_python(settings.root, sys.executable)
    environment = {
        **os.environ,
        SETTINGS: str(settings.write()),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(job.parent)]),
    }
    done = subprocess.run([python, "-m", "job", "x"], env=environment, capture_output=True, text=True)
    assert done.stdout == "x\n"
    assert "PermissionError: cuesqueue prove lets the job write no file outside of its folder" in done.stderr
    assert not (tmp_path / "real.txt").exists()


def test_nothing_of_a_job_is_left_where_its_prover_is_killed() -> None:
    job = "from cuesqueue_prove.runs import end_with_parent; end_with_parent(); print(flush=True); input()"
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {job!r}], start_new_session=True)"
    prover_code = f"{start}; print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", prover_code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        lines = [killed.stdout.readline(), killed.stdout.readline()]
        pid = int("".join(lines))
        killed.kill()
        assert killed.stdout.read() == "", "the job's end of it is closed"
    deadline = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(pid)
