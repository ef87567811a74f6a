"""Object storage that speaks S3, as a durable store: whole objects, each proven to be there before `put` returns.

`delete` removes the current version alone: in a bucket that keeps versions the bytes of older ones stay, and count,
until a lifecycle rule of the bucket ends them.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote_plus

from bridgehead import names, paths
from bridgehead.errors import BridgeheadError, NotFoundError, StoreDenied, StoreError, UsageError, VerificationError
from bridgehead.records import StoreSpec
from vm_daemons.storage import s3_download, s3_xml
from vm_daemons.storage.objects import Room, Stored
from vm_daemons.storage.s3_client import NO_SUCH_KEY, TRIES, Answer, AnswerTooLarge, S3Client, S3Refused
from vm_daemons.storage.s3_signing import Credentials
from vm_daemons.storage.s3_upload import Proof, Uploader

_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?\Z')
_WHOLE_SHA256 = re.compile(r"[A-Za-z0-9+/]{43}=\Z")
_MAX_PAGES = 1000
_PROBE_TRIES = 2
_CANARY_FOLDER = "_probe"


class S3Store:
    """The ObjectStore of one bucket, with all keys below `spec.prefix`. Usable from several threads."""

    kind: str = names.StoreKind.S3
    proves: bool = True

    def __init__(
        self, spec: StoreSpec, credentials: Mapping[str, object], *, tries: int = TRIES, first_pause_s: float = 0.3
    ) -> None:
        """`credentials`: access_key_id, secret_access_key and perhaps session_token. Contacts nobody.

        Raises StoreDenied when they can't be keys, UsageError for a mistake in [store].
        """
        self._prefix = _check_prefix(spec.prefix)
        keys = Credentials.read(credentials)
        self._client = S3Client(spec, keys, tries=tries, first_pause_s=first_pause_s)
        self._quick = S3Client(spec, keys, tries=min(tries, _PROBE_TRIES), first_pause_s=first_pause_s)
        self._uploader = Uploader(self._client)
        self._canary = f"{_CANARY_FOLDER}/{secrets.token_hex(4)}"
        self.where = f"s3://{spec.bucket}/{self._prefix}".rstrip("/") + f" at {self._client.host}"

    @property
    def on_bytes(self) -> Callable[[int], None]:
        """Hears of each piece just before it is sent, and may wait: that is how the uploader keeps to its rate."""
        return self._client.on_bytes

    @on_bytes.setter
    def on_bytes(self, hear: Callable[[int], None]) -> None:
        self._client.on_bytes = hear

    def put(self, key: str, source: Path) -> Stored:
        """Raises OSError when `source` can't be read, VerificationError when the store holds something else after."""
        full = self._full(key)
        with source.open("rb") as handle:
            proof = self._uploader.send_file(full, handle)
        self._prove(full, proof)
        return Stored(key, proof.size, proof.md5, proof.sha256)

    def put_bytes(self, key: str, data: bytes) -> None:
        full = self._full(key)
        proof = self._uploader.send_bytes(full, data)
        if not proof.answered:
            self._prove(full, proof)

    def get(self, key: str, target: Path) -> Stored:
        with _not_found(f"the store holds no {key}"):
            size, md5, sha256 = s3_download.download(self._client, self._full(key), target)
        return Stored(key, size, md5, sha256)

    def read(self, key: str, max_bytes: int) -> bytes | None:
        try:
            return self._client.ask("GET", self._full(key), max_bytes=max_bytes).body
        except AnswerTooLarge:
            raise VerificationError(f"{key} in the store has over {max_bytes} bytes") from None
        except S3Refused as refused:
            if refused.s3_code == NO_SUCH_KEY:
                return None
            raise

    def find(self, key: str) -> list[Stored]:
        """The digests are those that the store tells: SHA-256 and MD5 of one sent whole, none of one sent in parts."""
        head = self._head(self._full(key))
        if head is None:
            return []
        sha256 = _full_checksum(head)
        return [Stored(key, _size(head), _md5(head), base64.b64decode(sha256).hex() if sha256 else "")]

    def look(self, key: str) -> list[Stored]:
        return self.find(key)

    def list(self, prefix: str) -> list[str]:
        start = self._full(prefix.strip("/")) if prefix.strip("/") else self._prefix
        start = f"{start}/" if start else ""
        found: set[str] = set()
        # What a probe that was killed left is nobody's file.
        hidden = {"", _CANARY_FOLDER} if not prefix.strip("/") else {""}
        for name in _names(self._client, start):
            if name.startswith(start):
                found.add(name.removeprefix(start).rstrip("/"))
        return sorted(found - hidden)

    def delete(self, key: str) -> None:
        try:
            self._client.ask("DELETE", self._full(key))
        except S3Refused as refused:
            if refused.s3_code != NO_SUCH_KEY:
                raise

    def probe(self) -> Room:
        """S3 tells neither free bytes nor trash. A canary has a name of its own for each process."""
        data = secrets.token_bytes(16)
        key = self._full(self._canary)
        try:
            Uploader(self._quick).send_bytes(key, data)
            back = self._quick.ask("GET", key, max_bytes=len(data)).body
            self._quick.ask("DELETE", key)
        except BridgeheadError as error:
            return Room(error=error.in_one_line(), denied=isinstance(error, StoreDenied))
        return Room(error="" if back == data else f"{self.where} gives back other bytes than it was given")

    # --- inside ------------------------------------------------------------------------------------

    def _full(self, key: str) -> str:
        paths.check_relative(key)
        return f"{self._prefix}/{key}" if self._prefix else key

    def _head(self, full: str) -> Answer | None:
        try:
            return self._client.ask("HEAD", full, headers={"x-amz-checksum-mode": "ENABLED"})
        except S3Refused as refused:
            if refused.s3_code == NO_SUCH_KEY:
                return None
            raise

    def _prove(self, full: str, proof: Proof) -> None:
        """Ask what the store holds now. Raises VerificationError when that is not what was sent."""
        head = self._head(full)
        if head is None:
            raise VerificationError(f"{self.where} took an object and does not have it")
        if _size(head) == proof.size:
            told = head.headers.get("x-amz-checksum-sha256", "")
            if told and told in proof.checksums:
                return
            if not told and head.headers.get("ETag", "").strip('"') in proof.tags:
                return
            if not told and self._reads_back(full, proof):  # encrypted with the owner's key: its tag tells nothing
                return
        raise VerificationError(
            f"{self.where} holds something else than was sent",
            hint="it is sent again; if that goes on, something else writes there",
        )

    def _reads_back(self, full: str, proof: Proof) -> bool:
        return s3_download.digests(self._client, full)[2] == proof.sha256


@contextmanager
def _not_found(message: str) -> Iterator[None]:
    try:
        yield
    except S3Refused as refused:
        if refused.s3_code == NO_SUCH_KEY:
            raise NotFoundError(message) from None
        raise


def _names(client: S3Client, start: str) -> Iterator[str]:
    """Full names of the objects and folders directly below `start`, page by page."""
    token = ""
    for _ in range(_MAX_PAGES):
        query = [("list-type", "2"), ("delimiter", "/"), ("prefix", start), ("encoding-type", "url")]
        root = s3_xml.parse(
            client.ask("GET", "", query=[*query, ("continuation-token", token)] if token else query).body
        )
        encoded = s3_xml.text(root, "EncodingType") == "url"
        for tag, inner in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
            for element in root.iterfind(tag):
                name = element.findtext(inner) or ""
                yield unquote_plus(name) if encoded else name
        following = s3_xml.text(root, "NextContinuationToken")
        if s3_xml.text(root, "IsTruncated") != "true":
            return
        if not following or following == token:
            break
        token = following
    raise StoreError("the object store's list of names does not end")


def _check_prefix(prefix: str) -> str:
    stripped = prefix.strip("/")
    try:
        return paths.check_relative(stripped) if stripped else ""
    except UsageError as error:
        raise UsageError(f"[store] prefix: {error.message}", hint=error.hint) from None


def _size(head: Answer) -> int:
    length = head.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else -1


def _md5(head: Answer) -> str:
    """The tag, where it is the MD5 of the content: not for parts, nor where the store encrypts with a named key."""
    if head.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms"):
        return ""
    match = _MD5_TAG.match(head.headers.get("ETag", ""))
    return match.group(1) if match else ""


def _full_checksum(head: Answer) -> str:
    """Base64 SHA-256 of the whole content. Of an object sent in parts the store tells one over the parts' instead."""
    told = head.headers.get("x-amz-checksum-sha256", "")
    in_parts = "-" in told or "-" in head.headers.get("ETag", "")
    kind = head.headers.get("x-amz-checksum-type", "" if in_parts else "FULL_OBJECT")
    return told if kind == "FULL_OBJECT" and _WHOLE_SHA256.match(told) else ""
