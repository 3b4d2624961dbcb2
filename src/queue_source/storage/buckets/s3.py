"""Buckets of S3, and of what speaks its protocol, through the client of `s3_client`."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client
from queue_source.storage.buckets import PAGE, OneByOne, Outcome, Page, Present, exchanged, in_bytes
from queue_source.uris import is_text
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
_PLACES = (("ContinuationToken",), ("KeyMarker", "VersionIdMarker"))
"""What a request for objects, and one for versions, goes on with when there is no key to go on after."""


class S3Bucket(OneByOne):
    """One bucket.

    Its requests are those of the reader, with `s3:ListBucket`, and to clean `s3:DeleteObject` and `s3:PutObject` in
    addition to `s3:GetObject`.
    """

    def __init__(self, root: str, storage: StorageOptions) -> None:
        """Open the bucket; `root` is its URI up to its slash."""
        if not s3_client.is_installed():
            raise ObjectStoreError(f"{root!r} is listed by boto3: pip install 'cuesqueue[aws]' on the driver")
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
        if answer["More"] and not answer["InOrder"]:
            raise ObjectStoreError(
                f"{prefix!r} cannot be listed: S3 lists its names in another order than that of their bytes, as for a "
                "directory bucket, and a page that begins behind a name would leave some out"
            )
        objects = [ListedObject(self._root + key, *facts) for key, *facts in answer["Listed"]]
        said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:  # by our clock where it is missing, which HTTP allows without a clock
            now = datetime.now(timezone.utc) if said is None else _aware(parsedate_to_datetime(said))
        except ValueError:
            raise ObjectStoreError(f"{prefix!r} cannot be listed: the date of the answer is {said!r}") from None
        return Page(objects, answer["LastKey"] if answer["More"] else None, now)

    def close(self) -> None:
        """Close nothing of the client, which is that of the process."""
        self._threads.shutdown()

    def _client(self) -> Any:
        """Return the client, requested at each use: the keys of a profile may be new ones."""
        client = s3_client.client(self._storage)
        for operation in ("ListObjectsV2", "ListObjectVersions"):
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

    def _remove(self, uri: str, present: Present) -> Outcome:
        client = self._client()
        condition = {"IfMatch": present.facts["ETag"]} if _knows(client, "DeleteObjectRequest", "IfMatch") else {}
        with s3_client.answers(uri, "deleted"):
            try:
                client.delete_object(Bucket=self._bucket, Key=self._key(uri), **condition)
            except client.exceptions.ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != _PRECONDITION_FAILED:
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


def _knows(client: Any, shape: str, member: str) -> bool:
    """Tell whether this botocore supports the condition."""
    return member in client.meta.service_model.shape_for(shape).members


def _parse_listing(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse a page ourselves: botocore takes twenty times as long for it, and a listing has a thousand of them.

    Sets `Listed`, `More` and where to continue: `LastKey`, the last that is text, else the service's `Next...`. An
    empty answer is left for botocore. An answer that is no listing (`Odd`) is never an empty bucket: a proxy, or
    another port of a service, answers with a page for people.
    """
    if response_dict["status_code"] != 200:
        return
    listed: list[tuple[str, int, str | None, datetime, str | None]] = []
    last, before, in_order = None, "", True
    try:
        root = ElementTree.fromstring(response_dict["body"])
        space = root.tag.rpartition("}")[0] + "}" if root.tag.startswith("{") else ""
        if root.tag[len(space) :] not in ("ListBucketResult", "ListVersionsResult"):
            raise ValueError(f"it begins with <{root.tag[len(space) :][:100]}>")
        # names come encoded (botocore asks for that), since XML cannot hold all
        encoded = root.findtext(f"{space}EncodingType") == "url"
        for entry in root:
            kind = entry.tag[len(space) :]
            if kind not in ("Contents", "Version", "DeleteMarker"):
                continue
            of = {part.tag[len(space) :]: part.text or "" for part in entry}
            key = unquote_plus(of["Key"], errors="surrogateescape") if encoded else of["Key"]
            if is_text(key):  # others cannot be requested
                last = key if last is None else max(last, key, key=in_bytes)
                if kind != "DeleteMarker":  # some services have these behind all others
                    in_order &= in_bytes(before) <= in_bytes(key)
                    before = key
            if kind == "DeleteMarker" or of.get("IsLatest") == "false":
                continue
            etag, version = of.get("ETag", "").strip('"') or None, of.get("VersionId")
            modified = _time(of["LastModified"])
            listed.append((key, int(of["Size"]), etag, modified, None if version == "null" else version))
        more = (root.findtext(f"{space}IsTruncated") or "").strip().lower() == "true"
        for name in (f"Next{place}" for places in _PLACES for place in places):
            text = root.findtext(f"{space}{name}") or ""
            customized_response_dict[name] = unquote_plus(text) if encoded and name == "NextKeyMarker" else text
        customized_response_dict |= {"Listed": listed, "LastKey": last, "More": more, "InOrder": in_order}
    except KeyError as error:
        customized_response_dict["Odd"] = f"an object without {error}"
    except (ElementTree.ParseError, ValueError) as error:
        customized_response_dict["Odd"] = redact_text(str(error))
    response_dict["body"] = b"<ListBucketResult/>"


def _time(text: str) -> datetime:
    try:
        return _aware(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except ValueError:  # fractions of other lengths, before Python 3.11
        whole, _, _ = text.partition(".")
        return datetime.fromisoformat(f"{whole.rstrip('Z')}+00:00")


def _aware(time: datetime) -> datetime:
    """Return an aware time; times of services without a zone are UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
