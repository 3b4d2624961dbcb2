"""Signatures of S3's requests: those of botocore."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_source.storage.s3_signature import signed

NOW = datetime(2026, 11, 27, 5, 4, 3, tzinfo=timezone.utc)
ORIGINS = (
    "https://bucket.s3.eu-west-1.amazonaws.com",
    "https://s3.amazonaws.com/bucket",
    "http://127.0.0.1:9000/bucket",
    "http://[::1]:9000/bucket",
    "https://Minio.Example:443/bucket",
    "http://minio.example:80/bucket",
    "https://minio.example:8443/under/bucket",
)
KEYS = st.text(st.sampled_from("ab/%20+~.-_ÄZ!'()*&=:@,;$"), min_size=1, max_size=30)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", NOW.timetuple)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: NOW)


@pytest.mark.usefixtures("now")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(ORIGINS), KEYS, st.none() | st.just("to/ken=="), st.none() | st.just('"abc-1"'))
def test_a_signature_is_that_of_botocore(origin: str, key: str, token: str | None, etag: str | None) -> None:
    url = f"{origin}/{quote(key, safe='/~')}"
    headers = {"range": "bytes=0-99"} | ({} if etag is None else {"if-match": etag})
    expected = AWSRequest("GET", url, headers)
    auth = S3SigV4Auth(Credentials("AKID", "secret", token), "s3", "eu-west-1")
    auth._should_sha256_sign_payload = lambda request: True
    auth.add_auth(expected)
    ours = signed(headers, url, "eu-west-1", "AKID", "secret", token)
    assert ours == {name.lower(): value for name, value in expected.headers.items()}
