"""The walkthrough: what a reader pastes runs from an empty bucket to a certificate, with servers of the tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.servers.ministack import REGION, client, ministack_server
from support.servers.postgres import new_database
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "walkthrough.md")


@pytest.mark.engine
def test_the_walkthrough_loads_what_was_there_and_what_comes_and_proves_it(tmp_path: Path, postgres_url: str) -> None:
    password, setup, load, prove = [block.text for block in PAGE if block.language == "bash"]
    (count,) = [block.text for block in PAGE if block.language == "python"]
    reader = Reader(tmp_path)
    with ministack_server() as url, closing(client(url, "s3")) as s3:
        reader.environment |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",  # deltalake asks for it, where the endpoint has no TLS
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "CUESQUEUE_STORE": new_database(postgres_url),
            "HOME": str(tmp_path),
        }
        reader.run(password)
        assert (tmp_path / ".pgpass").stat().st_mode & 0o777 == 0o600
        for bucket in ("landing", "lake"):
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket="landing", Key="orders/before.json", Body=b'{"id": 0, "total": 9.5}')
        reader.run(setup)
        s3.put_object(Bucket="landing", Key="orders/after.json", Body=b'{"id": 1, "total": 19.0}')
        assert "published" in reader.run(load)
        (tmp_path / "count.py").write_text(count, "utf-8")
        assert reader.run("python count.py") == "2\n"
        assert "complete" in reader.run(prove)
