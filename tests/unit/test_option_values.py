"""Durations, sizes, secrets and lists of URLs as users write them."""

from __future__ import annotations

import json
import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_source.common.times import format_duration, parse_duration
from queue_source.options.types import Secret, SecretUrl, check_name, parse_size, split_queue_urls
from shard_store.redaction import redact_text, redact_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("15 days", timedelta(days=15)),
        ("1 day", timedelta(days=1)),
        ("2 Weeks", timedelta(weeks=2)),
        (" 10 minutes ", timedelta(minutes=10)),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_duration_reads_as_the_same_duration(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(min_value=0, max_value=10**9).map(str))
def test_a_bare_number_is_no_duration_and_the_message_names_units(number: str) -> None:
    with pytest.raises(ValueError, match=f"{number}s for seconds, {number}m for minutes"):
        parse_duration(number)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_clear_value_error(text: str) -> None:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        assert "write" in str(error)  # noqa: PT017 - most texts fail, some do not
    else:
        assert duration >= timedelta(0)


@pytest.mark.parametrize("text", ["", "m", "-5m", "1.5h", "5 parsecs", "1h30m", "٣s", "9" * 30 + "s", "9" * 5000 + "s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128m", 128 << 20),
        ("1g", 1 << 30),
        ("10kb", 10 << 10),
        ("1 MiB", 1 << 20),
        ("77", 77),
        ("5b", 5),
        ("1T", 1 << 40),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-1m", "1.5g", "1 mile", "1bb", "9" * 40])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="128m or 1g"):
        parse_size(text)


PASSWORD = "S3cr:t/w@rd?x"
URLS = [
    f"postgresql://user:{PASSWORD}@host/db",
    f"sql+postgresql+psycopg://user:{PASSWORD}@host:5432/db?queue=files",
    f"amqp://:{PASSWORD}@host/vhost?source=a",
    "postgresql://host/db?user=me&password=S3cr:t",
    "shop://orders?api_token=S3cr:t",
    f"user:{PASSWORD}@host/db",
]


@pytest.mark.parametrize("url", URLS)
def test_no_part_of_a_password_is_left_in_a_redacted_url(url: str) -> None:
    for text in (redact_url(url), str(SecretUrl(url)), repr(SecretUrl(url))):
        assert not any(part in text for part in ("S3cr", "t/w", "rd?x")), text
        assert "***" in text


@pytest.mark.parametrize(
    "name",
    [
        "pass", "auth", "key", "AccountKey", "account_key", "accountkey", "shared-key", "SharedAccessKey",
        "private_key",
        "passphrase", "Authorization", "my.auth", "x_key", "X-Amz-Signature", "X-Goog-Credential", "sig", "api-key",
    ],
)  # fmt: skip
def test_parameters_that_mean_a_secret_are_hidden(name: str) -> None:
    for text in (f"amqp://h/v?{name}=S3cr&pool=p", f"shop://h/q?pool=p&{name}=S3cr", f"a;{name}=S3cr;b"):
        assert "S3cr" not in redact_url(text), text
    assert "S3cr" not in redact_text(f"DefaultEndpointsProtocol=https;AccountName=a;{name}=S3cr==;EndpointSuffix=x")


@pytest.mark.parametrize("name", ["monkey", "author", "passive", "ssl_key", "sslkey", "keyPath", "queue", "compass"])
def test_parameters_that_only_look_alike_are_shown(name: str) -> None:
    assert redact_url(f"sql+mysql://h/db?{name}=shown") == f"sql+mysql://h/db?{name}=shown"


def test_long_texts_are_shortened_and_no_half_of_a_password_is_left() -> None:
    """Names of objects are in such texts. If every way to read a URL in them was tried, this would take hours."""
    for text in (
        "a" * 5_000_000,
        "a+" * 2_000_000,
        "x:" * 2_000_000,
        "://" * 2_000_000,
        "pass" * 1_000_000,
        " " * 9_000,
    ):
        assert len(redact_text(f"{text} postgresql://u:S3cr@h/d")) < 9_000
    for length in range(8_150, 8_200):
        text = redact_text(
            f"{'y ' * (length // 2)}{'y' * (length % 2)} postgresql://u:S3cretS3cretS3cret@h/d {'z' * 90}"
        )
        assert "S3c" not in text
    assert redact_text("u" * 8_000) == "u" * 8_000


def test_urls_within_other_text_are_redacted() -> None:
    text = f"could not connect to postgresql://user:{PASSWORD}@host/db: no route; see https://example.org/help"
    assert redact_text(text) == (
        "could not connect to postgresql://user:***@host/db: no route; see https://example.org/help"
    )


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///jobs.db",
        "sql+sqlite:///jobs.db?queue=a@b:c",
        "sqs://orders",
        "sim://x?dir=/tmp/a",
        "amqp://me@host/v",
    ],
)
def test_a_url_without_a_secret_is_shown_whole(url: str) -> None:
    assert redact_url(url) == url


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=30).map(lambda t: f"~{t}~"))
def test_a_secret_shows_itself_to_reveal_only(value: str) -> None:
    secret = Secret(value)
    copy = pickle.loads(pickle.dumps(secret))
    assert copy == secret
    assert copy.reveal() == value
    for text in (repr(copy), str(copy), f"{copy}", repr([copy])):
        assert value not in text
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_two_secrets_are_equal_when_their_texts_and_kinds_are() -> None:
    assert len({Secret("a"), Secret("a"), Secret("b"), SecretUrl("a")}) == 3
    assert Secret("a") != "a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sim://a", ["sim://a"]),
        ("sim://a,sim://b", ["sim://a", "sim://b"]),
        ("sim://a , sqs://b", ["sim://a", "sqs://b"]),
        ("amqp://h/v?tags=a,b,c#d,sim://b", ["amqp://h/v?tags=a,b,c#d", "sim://b"]),
        ("sql+postgresql://u:p,w@h1:1,h2.example.com:5432/db?queue=q", None),
        ("sim://a,shop://q?x=1", ["sim://a", "shop://q?x=1"]),
    ],
)
def test_only_a_comma_before_the_next_url_parts_queue_urls(text: str, expected: list[str] | None) -> None:
    assert [url.reveal() for url in split_queue_urls(text)] == (expected or [text])


@pytest.mark.parametrize("text", ["", "orders", "/tmp/jobs.db", "sim://", ",sim://a"])
def test_what_is_no_queue_url_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"sql\+sqlite:///jobs\.db\?queue=files"):
        split_queue_urls(text)


@pytest.mark.parametrize("name", ["", "  ", " a", "a/b", "a,b", "a\nb", "a\x00b", "x" * 201])
def test_a_name_that_would_break_tokens_or_lists_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"write|leave"):
        check_name(name)


@pytest.mark.parametrize("name", ["orders", "Bestellungen für 東京", "a.b-c_d:e", "x" * 200])
def test_any_other_name_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) == name


def test_a_secret_may_be_a_reference_which_travels_and_is_looked_up_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEY", "k3y")
    (tmp_path / "key").write_text("s3cret\n")
    for written, value in (("env:KEY", "k3y"), (f"file:{tmp_path}/key", "s3cret")):
        secret = Secret(written)
        assert value.encode() not in pickle.dumps(secret)
        assert pickle.loads(pickle.dumps(secret)).reveal() == value
        assert value not in repr(secret)
    monkeypatch.setenv("KEY", "another")
    assert Secret("env:KEY").reveal() == "another"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("env:NO_SUCH_NAME", "'NO_SUCH_NAME' is not set"),
        ("file:/no/such/file", "cannot be read: No such file"),
        ("file:{}", "cannot be read: Is a directory"),
        ("file:{}/large", "is too large"),
        ("file:{}/binary", "is not text"),
        ("file:{}/empty", "is empty"),
    ],
)
def test_a_reference_that_leads_to_no_secret_is_told_without_what_is_there(
    written: str, problem: str, tmp_path: Path
) -> None:
    for name, content in (("large", b"x" * 65_537), ("binary", b"\xff\xfe"), ("empty", b"\n")):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(problem)) as told:
        Secret(written.format(tmp_path)).reveal()
    assert "write" in str(told.value)
    assert "xxx" not in str(told.value)


def test_a_url_from_a_file_that_holds_something_else_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("hush:x:0:0")
    with pytest.raises(ValueError, match="no URL") as told:
        SecretUrl(f"file:{tmp_path}/passwd").reveal()
    assert "hush" not in str(told.value)
