"""Sends objects to S3: whole up to 64 MiB, in parts above, and leaves no parts behind that cost their owner money."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape

from bridgehead.errors import StoreError
from vm_daemons.storage import s3_xml
from vm_daemons.storage.s3_client import NO_SUCH_UPLOAD, S3Client, S3Refused

WHOLE_MAX_BYTES = 64 << 20
PART_BYTES = 16 << 20
PARTS_MAX = 10_000
STALE_AFTER_S = 3600.0
_CHECKSUM = "x-amz-checksum-sha256"
_ALGORITHM = "x-amz-checksum-algorithm"
_SDK_ALGORITHM = "x-amz-sdk-checksum-algorithm"  # some stores keep the checksum only when it is named here too


@dataclass(frozen=True)
class Proof:
    """What was sent, and what a store that holds just that may answer."""

    size: int
    md5: str
    sha256: str
    tags: frozenset[str]
    checksums: frozenset[str]
    answered: bool = False  # the store told in its answer already that it holds just that


@dataclass
class _Part:
    number: int
    md5: bytes
    sha256: bytes
    tag: str = ""


@dataclass
class _Digests:
    """Of all bytes so far, and of the parts that they came in."""

    size: int = 0
    md5: Any = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))
    sha256: Any = field(default_factory=hashlib.sha256)
    parts: list[_Part] = field(default_factory=list)

    def add(self, data: bytes) -> _Part:
        self.size += len(data)
        self.md5.update(data)
        self.sha256.update(data)
        part_md5 = hashlib.md5(data, usedforsecurity=False).digest()
        self.parts.append(_Part(len(self.parts) + 1, part_md5, hashlib.sha256(data).digest()))
        return self.parts[-1]

    def proof(self, *, in_parts: bool) -> Proof:
        whole = _base64(self.sha256.digest())
        tag, checksums = self.md5.hexdigest(), {whole}
        if in_parts:
            count = len(self.parts)
            joined = hashlib.md5(b"".join(part.md5 for part in self.parts), usedforsecurity=False)
            over_parts = _base64(hashlib.sha256(b"".join(part.sha256 for part in self.parts)).digest())
            tag = f"{joined.hexdigest()}-{count}"
            checksums |= {over_parts, f"{over_parts}-{count}"}
        return Proof(self.size, self.md5.hexdigest(), self.sha256.hexdigest(), frozenset({tag}), frozenset(checksums))


class Uploader:
    """Sends to one bucket. What is hashed is what is sent, also when the file changes meanwhile."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._checksums = True  # until a store refuses them
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def send_bytes(self, key: str, data: bytes) -> Proof:
        digests = _Digests()
        tag = self._put(key, (), data, digests.add(data), self._checksums)
        proof = digests.proof(in_parts=False)
        return dataclasses.replace(proof, answered=tag.strip('"') in proof.tags)

    def send_file(self, key: str, handle: BinaryIO) -> Proof:
        """The file from where `handle` stands to its end. Raises StoreError; then no part of it stays."""
        size = os.fstat(handle.fileno()).st_size
        if size <= WHOLE_MAX_BYTES:
            first = handle.read(WHOLE_MAX_BYTES + 1)
            if len(first) <= WHOLE_MAX_BYTES:
                return self.send_bytes(key, first)
            handle.seek(0)
        return self._send_parts(key, handle, part_bytes(size))

    # --- inside ------------------------------------------------------------------------------------

    def _send_parts(self, key: str, handle: BinaryIO, size: int) -> Proof:
        self._sweep(key)
        digests = _Digests()
        with self._upload(key) as (upload_id, checked):
            while data := handle.read(size):
                if len(digests.parts) == PARTS_MAX:
                    raise StoreError("the file grew while it was sent")
                part = digests.add(data)
                query = [("partNumber", str(part.number)), ("uploadId", upload_id)]
                part.tag = self._put(key, query, data, part, checked)
            self._complete(key, upload_id, digests.parts, checked)
        return digests.proof(in_parts=True)

    def _put(self, key: str, query: Sequence[tuple[str, str]], data: bytes, part: _Part, checked: bool) -> str:
        """Send one body; the tag that the store gave it. The store refuses one that arrives otherwise."""
        plain = {"Content-MD5": _base64(part.md5)}
        if checked:
            try:
                headers = {**plain, _CHECKSUM: _base64(part.sha256), _SDK_ALGORITHM: "SHA256"}
                return self._client.ask("PUT", key, query=query, headers=headers, body=data).headers.get("ETag", "")
            except S3Refused as refused:
                if query or not _knows_no_checksums(refused):
                    raise
                self._checksums = False
        return self._client.ask("PUT", key, query=query, headers=plain, body=data).headers.get("ETag", "")

    @contextlib.contextmanager
    def _upload(self, key: str) -> Iterator[tuple[str, bool]]:
        """An upload in parts, and whether they carry checksums. When the block ends with an error all is dropped."""
        upload_id, checked = self._begin(key)
        with self._lock:
            self._under_way.add(upload_id)
        try:
            yield upload_id, checked
        except BaseException:
            with contextlib.suppress(StoreError):
                self._abort(key, upload_id)
            raise
        finally:
            with self._lock:
                self._under_way.discard(upload_id)

    def _begin(self, key: str) -> tuple[str, bool]:
        checked = self._checksums
        try:
            headers = {_ALGORITHM: "SHA256"} if checked else {}
            answer = self._client.ask("POST", key, query=[("uploads", "")], headers=headers)
        except S3Refused as refused:
            if not checked or not _knows_no_checksums(refused):
                raise
            self._checksums = checked = False
            answer = self._client.ask("POST", key, query=[("uploads", "")])
        upload_id = s3_xml.text(s3_xml.parse(answer.body), "UploadId")
        if not upload_id:
            raise StoreError("the object store began an upload and did not name it")
        return upload_id, checked

    def _complete(self, key: str, upload_id: str, parts: list[_Part], checked: bool) -> None:
        body = ["<CompleteMultipartUpload>"]
        for part in parts:
            body.append(f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.tag)}</ETag>")
            if checked:
                body.append(f"<ChecksumSHA256>{_base64(part.sha256)}</ChecksumSHA256>")
            body.append("</Part>")
        body.append("</CompleteMultipartUpload>")
        try:
            self._client.ask("POST", key, query=[("uploadId", upload_id)], body="".join(body).encode())
        except S3Refused as refused:
            # The answer to the first try was lost: whoever asks next what is under the key finds out.
            if refused.s3_code != NO_SUCH_UPLOAD:
                raise

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._client.ask("DELETE", key, query=[("uploadId", upload_id)])
        except S3Refused as refused:
            if refused.status != 404:
                raise

    def _sweep(self, key: str) -> None:
        """Drop what a killed uploader left: under this very key, and what is over an hour old in its folder.

        Nothing outside the folder that is being written: an upload there may be somebody else's.
        """
        folder = key.rpartition("/")[0]
        horizon = time.time() - STALE_AFTER_S
        with contextlib.suppress(S3Refused):  # some stores can't list uploads; that is no reason not to send
            query = [("uploads", ""), ("prefix", f"{folder}/" if folder else key), ("encoding-type", "url")]
            root = s3_xml.parse(self._client.ask("GET", "", query=query).body)
            encoded = s3_xml.text(root, "EncodingType") == "url"
            for element in root.iterfind("Upload"):
                name = element.findtext("Key") or ""
                name = unquote_plus(name) if encoded else name
                upload_id = s3_xml.text(element, "UploadId")
                with self._lock:
                    ours = upload_id in self._under_way
                begun = _timestamp(s3_xml.text(element, "Initiated"))
                if upload_id and not ours and (name == key or (folder and begun < horizon)):
                    self._abort(name, upload_id)


def part_bytes(size: int) -> int:
    """How large the parts of a file of `size` bytes are: equal ones, whole MiB, at most 10,000 of them."""
    least = -(-size // PARTS_MAX)
    return max(PART_BYTES, -(-least // (1 << 20)) << 20)


def _knows_no_checksums(refused: S3Refused) -> bool:
    return refused.status == 501 or refused.s3_code in ("NotImplemented", "InvalidArgument", "InvalidRequest")


def _timestamp(text: str) -> float:
    """Seconds since 1970; now for what can't be read, so that it counts as fresh."""
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
