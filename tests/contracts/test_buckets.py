"""What is done with many objects of a bucket at once, over every kind of store: listed, deleted, moved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import count

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import PAGE, Bucket, Known, Outcome, open_bucket
from support.bucket_backends import BACKENDS, BucketBackend, GcsBackend

_MANY = 2500
_ODD = (
    "a b",
    "a+b",
    "a%41",
    "a%20b",
    "ä/ö",
    "☃😀",
    "q&<>'\"",
    "k=v,w;x",
    "~",
    "e\u0301",
    "(1)!*",
    "#1?x",
)


@pytest.fixture(scope="module", params=BACKENDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    with BACKENDS[request.param](request, tmp_path_factory) as backend:
        yield backend


@pytest.fixture(scope="module")
def many(made: BucketBackend) -> str:
    """A prefix with objects for more than two pages."""
    if not made.knows_pages:
        pytest.skip("this emulator knows no pages")
    prefix = f"{made.root}many/in/"
    made.put_many({f"{prefix}part {place:05d}+%41": b"x" for place in range(_MANY)})
    return prefix


_prefixes = count(1)


@pytest.fixture
def prefix(made: BucketBackend) -> str:
    """One that nothing begins with."""
    return f"{made.root}t{next(_prefixes):04d}/"


@pytest.fixture
def bucket(made: BucketBackend) -> Iterator[Bucket]:
    opened = made.open()
    yield opened
    opened.close()


def test_a_listing_has_every_object_once_in_pages_in_order(bucket: Bucket, many: str) -> None:
    pages = []
    cursor = None
    while True:
        page = bucket.page(many, cursor)
        pages.append(page)
        if (cursor := page.cursor) is None:
            break
    assert [uri for page in pages for uri in _uris(page.objects)] == [
        f"{many}part {place:05d}+%41" for place in range(_MANY)
    ]
    assert all(len(page.objects) <= PAGE for page in pages)
    assert len(pages) <= _MANY // PAGE + 2  # the last may be found empty


def test_a_listing_goes_on_after_every_cursor_in_another_process(made: BucketBackend, many: str) -> None:
    cursors: list[str | None] = [None]
    found = []
    with _closing(made.open) as first:
        while True:
            page = first.page(many, cursors[-1])
            found.append(_uris(page.objects))
            if page.cursor is None:
                break
            cursors.append(page.cursor)
    for place, cursor in enumerate(cursors):
        with _closing(made.open) as other:  # it knows nothing of the pages before
            assert _all_uris(other, many, cursor) == [uri for uris in found[place:] for uri in uris]


def test_a_listed_object_has_its_size_its_etag_and_its_time(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    before = datetime.now(timezone.utc)  # all servers of tests have this clock
    made.put(f"{prefix}one", b"12345")
    page = bucket.page(prefix)
    (one,) = page.objects
    assert (one.uri, one.size, one.version) == (f"{prefix}one", 5, None)
    assert (one.etag is not None) == made.has_etags
    assert one.etag is None or '"' not in one.etag
    second = timedelta(seconds=2)  # some clocks tick in seconds
    assert before - second <= one.modified <= page.now + second


def test_odd_names_are_listed_as_they_are(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    names = [*_ODD, *made.odd_names]
    made.put_many({prefix + name: b"x" for name in names})
    assert sorted(_all_uris(bucket, prefix)) == sorted(prefix + name for name in names)


def test_odd_names_are_deleted_and_moved(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    names = [*_ODD, *made.odd_names]
    made.put_many({f"{prefix}in/{name}": name.encode() for name in names})
    moved = bucket.move([(known, known.uri.replace("/in/", "/out/")) for known in _known(bucket, f"{prefix}in/")])
    assert moved == [None] * len(names)
    assert _all_uris(bucket, f"{prefix}i") == []
    assert {uri: made.get(uri) for uri in _all_uris(bucket, prefix)} == {
        f"{prefix}out/{name}": name.encode() for name in names
    }
    assert bucket.delete(_known(bucket, f"{prefix}out/")) == [None] * len(names)
    assert _all_uris(bucket, f"{prefix}o") == []


def test_a_prefix_may_end_within_a_name(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    names = ["in-2", "in.d/3", "in/1", *(["in"] if made.names_may_be_folders else [])]
    made.put_many({prefix + name: b"x" for name in (*names, "i", "jn/4", "In/5")})
    found = _all_uris(bucket, f"{prefix}in")
    assert (found if made.keeps_order else sorted(found)) == sorted(prefix + name for name in names)


def test_a_prefix_of_nothing_is_an_empty_page(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    made.put(f"{prefix}one", b"x")
    page = bucket.page(f"{prefix}two")
    assert (page.objects, page.cursor) == ([], None)
    assert page.now.tzinfo is not None


def test_a_bucket_that_is_not_there_is_said(made: BucketBackend) -> None:
    with (
        _closing(lambda: made.open(made.missing)) as bucket,
        pytest.raises(BadObject, match="missing-object") as raised,
    ):
        bucket.page(made.missing)
    assert made.missing.rstrip("/") in str(raised.value)


def test_objects_that_vanish_and_come_between_pages_harm_no_other(
    made: BucketBackend, bucket: Bucket, prefix: str
) -> None:
    if not made.knows_pages:
        pytest.skip("this emulator knows no pages")
    made.put_many({f"{prefix}{place:05d}": b"x" for place in range(PAGE + 20)})
    first = bucket.page(prefix)
    assert first.cursor is not None
    last = int(first.objects[-1].uri[-5:])
    made.remove(first.objects[-1].uri)  # where the cursor stands
    made.remove(f"{prefix}{last + 1:05d}")
    made.put(f"{prefix}{last + 2:05d}-new", b"x")
    rest = _all_uris(bucket, prefix, first.cursor)
    stayed = [f"{prefix}{place:05d}" for place in range(last + 2, PAGE + 20)]
    assert [uri for uri in rest if not uri.endswith("-new")] == stayed


def test_what_is_deleted_is_gone_and_may_be_deleted_again(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    made.put_many({f"{prefix}{place}": b"x" for place in range(30)})
    known = _known(bucket, prefix)
    assert bucket.delete(known[:20]) == [None] * 20
    assert bucket.delete(known[:20]) == [None] * 20
    assert _all_uris(bucket, prefix) == [one.uri for one in known[20:]]
    assert bucket.delete([]) == []
    assert bucket.move([]) == []


@pytest.mark.parametrize("act", ["delete", "move"])
def test_what_is_another_object_by_now_stays(made: BucketBackend, bucket: Bucket, prefix: str, act: str) -> None:
    made.put_many({f"{prefix}{name}": b"old" for name in ("grown", "same", "vanished")})
    known = _known(bucket, prefix)
    made.put(f"{prefix}grown", b"other")
    made.remove(f"{prefix}vanished")
    outcomes = dict(zip(("grown", "same", "vanished"), _act(bucket, act, known), strict=True))
    assert _cause(outcomes["grown"]) == "object-changed"
    assert (outcomes["same"], outcomes["vanished"]) == (None, None)
    assert made.get(f"{prefix}grown") == b"other"


@pytest.mark.parametrize("act", ["delete", "move"])
def test_without_etags_size_and_time_decide(made: BucketBackend, bucket: Bucket, prefix: str, act: str) -> None:
    made.put_many({f"{prefix}{name}": b"old" for name in "abcd"})
    known = {one.uri[-1]: one._replace(etag=None) for one in _known(bucket, prefix)}
    known["a"] = known["a"]._replace(size=4)
    known["b"] = known["b"]._replace(known_at=known["b"].known_at - timedelta(hours=2))
    known["c"] = known["c"]._replace(size=None)
    outcomes = _act(bucket, act, list(known.values()))
    assert [_cause(outcome) for outcome in outcomes] == ["object-changed", "object-changed", None, None]


def test_an_etag_decides_whatever_the_time(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    if not made.has_etags:
        pytest.skip("files have no ETags")
    made.put_many({f"{prefix}{name}": b"old" for name in "ab"})
    a, b = (one._replace(known_at=one.known_at - timedelta(hours=2)) for one in _known(bucket, prefix))
    outcomes = bucket.delete([a, b._replace(etag="another")])
    assert [_cause(outcome) for outcome in outcomes] == [None, "object-changed"]


@pytest.mark.parametrize("act", ["delete", "move"])
def test_an_etag_that_changes_with_the_metadata_makes_no_other_object(
    made: BucketBackend, bucket: Bucket, prefix: str, act: str
) -> None:
    if not isinstance(made, GcsBackend):
        pytest.skip("Cloud Storage alone tells which ETags are those of new objects")
    made.put(f"{prefix}one", b"old")
    (known,) = _known(bucket, prefix)
    made.describe(known.uri)
    (listed,) = bucket.page(prefix).objects
    assert listed.etag is None, "it would be compared with that of the notification"
    assert _act(bucket, act, [known]) == [None]


def test_a_move_never_overwrites(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    made.put(f"{prefix}in/a", b"new")
    made.put(f"{prefix}out/a", b"from before")
    (known,) = _known(bucket, f"{prefix}in/")
    (outcome,) = bucket.move([(known, f"{prefix}out/a")])
    assert _cause(outcome) == "target-exists"
    assert (made.get(f"{prefix}in/a"), made.get(f"{prefix}out/a")) == (b"new", b"from before")


def test_a_move_to_its_own_name_leaves_the_object(made: BucketBackend, bucket: Bucket, prefix: str) -> None:
    made.put(f"{prefix}a", b"content")
    (known,) = _known(bucket, prefix)
    (outcome,) = bucket.move([(known, known.uri)])
    assert _cause(outcome) == "target-exists"
    assert made.get(f"{prefix}a") == b"content"


def test_a_move_that_died_between_copy_and_delete_is_ended_by_the_next(
    made: BucketBackend, bucket: Bucket, prefix: str
) -> None:
    made.put(f"{prefix}in/a", b"content")
    (known,) = _known(bucket, f"{prefix}in/")
    made.copy_only(bucket, known, f"{prefix}out/a")
    assert (made.get(f"{prefix}in/a"), made.get(f"{prefix}out/a")) == (b"content", b"content")
    for _ in range(2):  # and once more, when all is done
        assert bucket.move([(known, f"{prefix}out/a")]) == [None]
        assert _all_uris(bucket, prefix) == [f"{prefix}out/a"]
    assert made.get(f"{prefix}out/a") == b"content"


def test_what_is_forbidden_is_refused(made: BucketBackend, prefix: str) -> None:
    if not made.can_forbid:
        pytest.skip("this emulator forbids nothing")
    made.put(f"{prefix}a", b"x")
    with _closing(made.open) as bucket:
        known = _known(bucket, prefix)
    with made.forbidden(prefix) as storage, _closing(lambda: open_bucket(prefix, storage)) as bucket:
        with pytest.raises(ObjectRefused, match=r"refused|cannot be listed"):
            bucket.page(prefix)
        (outcome,) = bucket.delete(known)
        assert isinstance(outcome, ObjectRefused)
        (outcome,) = bucket.move([(known[0], f"{prefix}b")])
        assert isinstance(outcome, ObjectRefused)
    assert made.get(f"{prefix}a") == b"x"


@pytest.mark.parametrize("uri", ["s3://b/a/../c/", "file:///a/../b/", "file:///a/./b"])
def test_a_prefix_that_climbs_is_refused(uri: str) -> None:
    with pytest.raises(BadObject, match="segment"):
        open_bucket(uri, StorageOptions())


@pytest.mark.parametrize("uri", ["hdfs://b/", "ftp://b/x", "s3:///x", "x"])
def test_a_prefix_of_no_known_store_is_refused(uri: str) -> None:
    with pytest.raises(BadObject, match="missing-object"):
        open_bucket(uri, StorageOptions())


@pytest.mark.parametrize(
    ("uri", "module", "extra"),
    [
        ("gs://b/", "google.cloud.storage", "gcs"),
        ("abfss://c@lake.dfs.core.windows.net/", "azure.storage.blob", "azure"),
    ],
)
def test_a_library_that_is_not_installed_is_named_by_its_extra(
    monkeypatch: pytest.MonkeyPatch, uri: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if parent := sys.modules.get(module.rpartition(".")[0]):
        monkeypatch.delattr(parent, module.rpartition(".")[2], raising=False)
    with pytest.raises(ObjectStoreError, match=rf"cuesqueue\[{extra}\]"):
        open_bucket(uri, StorageOptions())


def _uris(objects: Sequence[ListedObject]) -> list[str]:
    return [one.uri for one in objects]


def _all(bucket: Bucket, prefix: str, cursor: str | None = None) -> list[ListedObject]:
    objects: list[ListedObject] = []
    while True:
        page = bucket.page(prefix, cursor)
        objects += page.objects
        if (cursor := page.cursor) is None:
            return objects


def _all_uris(bucket: Bucket, prefix: str, cursor: str | None = None) -> list[str]:
    return [one.uri for one in _all(bucket, prefix, cursor)]


def _known(bucket: Bucket, prefix: str) -> list[Known]:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    return [Known(one.uri, one.size, one.etag, later) for one in _all(bucket, prefix)]


def _act(bucket: Bucket, act: str, known: list[Known]) -> list[Outcome]:
    if act == "delete":
        return bucket.delete(known)
    return bucket.move([(one, one.uri + ".moved") for one in known])


def _cause(outcome: Outcome) -> str | None:
    assert outcome is None or isinstance(outcome, BadObject), repr(outcome)
    return None if outcome is None else outcome.cause


class _closing:
    def __init__(self, make: Callable[[], Bucket]) -> None:
        self._bucket = make()

    def __enter__(self) -> Bucket:
        return self._bucket

    def __exit__(self, *_: object) -> None:
        self._bucket.close()
