"""Buckets of S3, and of what speaks its protocol, through the client of `s3_client`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client
from queue_source.storage.buckets.base import (
    PAGE,
    Known,
    OneByOne,
    Outcome,
    Page,
    Present,
    exchanged,
    if_changed,
    in_bytes,
    is_text,
    one_by_one,
)
from queue_source.storage.open_files import s3_refusal
from shard_store.redaction import redact_text

_LARGEST_COPY = 5 << 30
"""Bytes that one request copies; more goes in parts."""
_ORIGIN = "cuesqueue-moved-from"
"""Metadata of a moved object: the ETag that it had. That of a copy may be another one."""
_KEPT = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Expires",
    "StorageClass",
    "WebsiteRedirectLocation",
)
"""What a HEAD says of an object and a copy with new metadata has to be told again."""
_PRECONDITION_FAILED = 412
_REFUSED = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidObjectState", "MethodNotAllowed", "ObjectLocked"})
_UNKNOWN_REQUEST = frozenset({400, 405, 411, 501})
"""Not all services have the request that deletes many, or know the checksum that botocore sends with it."""
_PLACES = (("ContinuationToken",), ("KeyMarker", "VersionIdMarker"))
"""What a request for objects, and one for versions, goes on with when there is no key to go on after."""
_LISTINGS = ("ListObjectsV2", "ListObjectVersions")


class S3Bucket(OneByOne):
    """One bucket.

    Its requests are those of the reader, with `s3:ListBucket`, and to clean `s3:DeleteObject` and `s3:PutObject` in
    addition to `s3:GetObject`.
    """

    def __init__(self, root: str, storage: StorageOptions) -> None:
        """Open the bucket; `root` is its URI up to its slash."""
        if not s3_client.is_installed():
            raise ObjectStoreError(f"{root!r} is listed by boto3: pip install 'cuesqueue[sqs]' on the driver")
        super().__init__(root, "s3")
        self._storage = storage
        self._bucket = s3_client.place(root)[0]

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """Request a page; the cursor is the last key.

        It continues in the order of S3 (of bytes) whatever has vanished. Of versions only the latest counts, and it
        comes first of its key: so the next page begins behind the key.
        """
        after = {} if cursor is None else {"KeyMarker" if versions else "StartAfter": cursor}
        answer = self._listing(prefix, versions, after)
        tried = [after]
        while answer["More"] and answer["LastKey"] is None:  # no key to continue after, only the service's own marker
            after = {name: answer[f"Next{name}"] for name in _PLACES[versions] if answer.get(f"Next{name}")}
            if not after or after in tried:
                raise ObjectStoreError(f"{prefix!r} cannot be listed: S3 says that more follows, but does not go on")
            tried.append(after)
            answer = self._listing(prefix, versions, after)
        objects = [ListedObject(self._root + key, *facts) for key, *facts in answer["Listed"]]
        return Page(objects, answer["LastKey"] if answer["More"] else None, _now(prefix, answer))

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Send a HEAD for each, in parallel, and one request that deletes, on the condition that the ETags stay.

        Services that ignore the condition delete the object that exists a moment after the HEAD.
        """
        unchanged: list[Present | None] = [None] * len(objects)

        def look(place: int) -> Outcome:
            present = self._present(objects[place].uri)
            changed = if_changed(objects[place], *present[:4])
            unchanged[place] = present if changed is None else None
            return changed

        outcomes = one_by_one(self._threads, look, range(len(objects)))
        going = [
            (place, self._key(objects[place].uri), present.facts["ETag"])
            for place, present in enumerate(unchanged)
            if present
        ]
        plain = [target for target in going if target[1].isprintable()]  # XML has no control characters
        for first in range(0, len(plain), PAGE):
            for place, outcome in self._delete_many(objects, plain[first : first + PAGE]).items():
                outcomes[place] = outcome
        odd = [target for target in going if not target[1].isprintable()]
        for (place, _, _), outcome in zip(odd, self._delete_singly(objects, odd), strict=True):
            outcomes[place] = outcome
        return outcomes

    def close(self) -> None:
        """Close nothing of the client, which is that of the process."""
        self._threads.shutdown()

    def _client(self) -> Any:
        """Return the client, requested at each use: the keys of a profile may be new ones."""
        client = s3_client.client(self._storage)
        for operation in _LISTINGS:
            client.meta.events.register(f"before-parse.s3.{operation}", _parse_listing, f"cuesqueue-{operation}")
        return client

    def _listing(self, prefix: str, versions: bool, after: dict[str, str]) -> dict[str, Any]:
        """Request one answer, as `_parse_listing` leaves it."""
        client = self._client()
        ask = client.list_object_versions if versions else client.list_objects_v2
        try:
            with s3_client.answers(prefix, "listed"):
                answer: dict[str, Any] = ask(
                    Bucket=self._bucket, Prefix=prefix[len(self._root) :], MaxKeys=PAGE, **after
                )
        except FileNotFoundError as error:
            raise BadObject("missing-object", f"{prefix!r} cannot be listed: {error}") from None
        if "Odd" in answer:
            raise ObjectStoreError(f"{prefix!r} cannot be listed: the answer is no listing: {answer['Odd']}")
        return answer

    def _present(self, uri: str) -> Present:
        with s3_client.answers(uri, "looked at"):
            head: dict[str, Any] = self._client().head_object(Bucket=self._bucket, Key=self._key(uri))
        version = None if head.get("VersionId") == "null" else head.get("VersionId")
        return Present(head["ContentLength"], head["ETag"], head["LastModified"], version, head)

    def _delete_many(self, objects: Sequence[Known], going: Sequence[tuple[int, str, str]]) -> dict[int, Outcome]:
        client = self._client()
        conditional = _knows(client, "ObjectIdentifier", "ETag")
        named = [{"Key": key, **({"ETag": etag} if conditional else {})} for _, key, etag in going]

        def ask() -> dict[int, Outcome]:
            with s3_client.answers(self._root, "cleaned"):
                try:
                    answer = client.delete_objects(Bucket=self._bucket, Delete={"Objects": named, "Quiet": True})
                except client.exceptions.ClientError as error:
                    if _status(error) not in _UNKNOWN_REQUEST:
                        raise
                    return dict(zip((place for place, *_ in going), self._delete_singly(objects, going), strict=True))
            failed = {error["Key"]: error for error in answer.get("Errors", ())}
            return {place: _failure(objects[place].uri, failed.get(key)) for place, key, _ in going}

        try:
            return ask()
        except FileNotFoundError:  # the bucket itself
            return {place: None for place, *_ in going}
        except ObjectStoreError as error:
            return {place: error for place, *_ in going}

    def _delete_singly(self, objects: Sequence[Known], going: Iterable[tuple[int, str, str]]) -> list[Outcome]:
        return one_by_one(self._threads, lambda target: self._delete_one(objects[target[0]].uri, target[2]), going)

    def _remove(self, uri: str, present: Present) -> Outcome:
        return self._delete_one(uri, present.facts["ETag"])

    def _delete_one(self, uri: str, etag: str) -> Outcome:
        client = self._client()
        condition = {"IfMatch": etag} if _knows(client, "DeleteObjectRequest", "IfMatch") else {}
        with s3_client.answers(uri, "deleted"):
            try:
                client.delete_object(Bucket=self._bucket, Key=self._key(uri), **condition)
            except client.exceptions.ClientError as error:
                if _status(error) != _PRECONDITION_FAILED:
                    raise
                return exchanged(uri)
        return None

    def _is_copy(self, copy: Present, source: Present) -> bool:
        ours, theirs = source.facts["ETag"].strip('"'), copy.facts["ETag"].strip('"')
        return copy.size == source.size and ours in (theirs, copy.facts.get("Metadata", {}).get(_ORIGIN))

    def _copy(self, uri: str, source: Present, target: str) -> None:
        client, facts = self._client(), source.facts
        arguments: dict[str, Any] = {name: facts[name] for name in _KEPT if name in facts}
        arguments["Metadata"] = {**facts.get("Metadata", {}), _ORIGIN: facts["ETag"].strip('"')}
        arguments |= {"CopySourceIfMatch": facts["ETag"], "MetadataDirective": "REPLACE"}
        origin = {"Bucket": self._bucket, "Key": self._key(uri)}
        with s3_client.answers(uri, f"copied to {target!r}"):
            if source.size > _LARGEST_COPY:
                client.copy(origin, self._bucket, self._key(target), ExtraArgs=arguments)
                return
            if _knows(client, "CopyObjectRequest", "IfNoneMatch"):
                arguments["IfNoneMatch"] = "*"
            client.copy_object(Bucket=self._bucket, Key=self._key(target), CopySource=origin, **arguments)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _failure(uri: str, error: dict[str, str] | None) -> Outcome:
    """Return the outcome of one object of a request that deletes many: its answer has a code, and no status."""
    code = "" if error is None else error.get("Code", "")
    if error is None or code in ("NoSuchKey", "NotFound", "404"):
        return None
    if code in ("PreconditionFailed", "412"):
        return exchanged(uri)
    message = redact_text(error.get("Message", ""))
    own = s3_refusal(403 if code in _REFUSED else 500, code, message)
    text = f"{uri!r} cannot be deleted: S3 answers {code}: {message}"
    return ObjectStoreError(text) if own is None else ObjectRefused(text, own=own)


def _knows(client: Any, shape: str, member: str) -> bool:
    """Tell whether this botocore supports the condition."""
    return member in client.meta.service_model.shape_for(shape).members


def _now(prefix: str, answer: dict[str, Any]) -> datetime:
    """Return the time by the clock of the service; by ours where it is missing, which HTTP allows without a clock."""
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    try:
        return datetime.now(timezone.utc) if said is None else _aware(parsedate_to_datetime(said))
    except ValueError:
        raise ObjectStoreError(f"{prefix!r} cannot be listed: the date of the answer is {said!r}") from None


def _parse_listing(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse a page ourselves: botocore takes twenty times as long for it, and a listing has a thousand of them.

    An empty answer is left for botocore. An answer that is no listing is never an empty bucket: a proxy, or another
    port of a service, answers with a page for people.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict |= _parsed(response_dict["body"])
    except KeyError as error:
        customized_response_dict["Odd"] = f"an object without {error}"
    except (ElementTree.ParseError, ValueError) as error:
        customized_response_dict["Odd"] = redact_text(str(error))
    response_dict["body"] = b"<ListBucketResult/>"


def _parsed(body: bytes) -> dict[str, Any]:
    """Return `Listed`, `More` and where to continue: `LastKey`, the last that is text, else the service's `Next...`.

    Names come encoded (botocore asks for that), since XML cannot hold all. Raises ParseError, KeyError, ValueError.
    """
    root = ElementTree.fromstring(body)
    space = root.tag.rpartition("}")[0] + "}" if root.tag.startswith("{") else ""
    if root.tag[len(space) :] not in ("ListBucketResult", "ListVersionsResult"):
        raise ValueError(f"it begins with <{root.tag[len(space) :][:100]}>")
    encoded = root.findtext(f"{space}EncodingType") == "url"
    listed: list[tuple[str, int, str | None, datetime, str | None]] = []
    last = None
    for entry in root:
        kind = entry.tag[len(space) :]
        if kind not in ("Contents", "Version", "DeleteMarker"):
            continue
        of = {part.tag[len(space) :]: part.text or "" for part in entry}
        key = unquote_plus(of["Key"], errors="surrogateescape") if encoded else of["Key"]
        if is_text(key):  # others cannot be requested
            last = key if last is None else max(last, key, key=in_bytes)
        if kind == "DeleteMarker" or of.get("IsLatest") == "false":
            continue
        etag = of.get("ETag", "").strip('"') or None
        version = of.get("VersionId")
        listed.append((key, int(of["Size"]), etag, _time(of["LastModified"]), None if version == "null" else version))
    listing: dict[str, Any] = {"Listed": listed, "LastKey": last}
    listing["More"] = (root.findtext(f"{space}IsTruncated") or "").strip().lower() == "true"
    for name in (f"Next{place}" for places in _PLACES for place in places):
        text = root.findtext(f"{space}{name}") or ""
        listing[name] = unquote_plus(text) if encoded and name == "NextKeyMarker" else text
    return listing


def _time(text: str) -> datetime:
    try:
        return _aware(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except ValueError:  # fractions of other lengths, before Python 3.11
        whole, _, _ = text.partition(".")
        return datetime.fromisoformat(f"{whole.rstrip('Z')}+00:00")


def _aware(time: datetime) -> datetime:
    """Return an aware time; times of services without a zone are UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
