"""Fetches an object from S3 into a file: goes on where a cut connection left off, never glues two objects together."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any, BinaryIO

import requests

from bridgehead import files
from bridgehead.errors import StoreError, VerificationError
from vm_daemons.storage.pace import Backoff
from vm_daemons.storage.s3_client import S3Client, S3Refused

_TRIES = 6  # without a byte of progress between them
_READ_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)\Z")


def download(client: S3Client, key: str, target: Path) -> tuple[int, str, str]:
    """Write the object to `target`, fsynced and whole; size, MD5 and SHA-256 of what came.

    Raises S3Refused (404: there is none), StoreError, and OSError of the local disk.
    """
    with files.atomic_writer(target) as handle:
        return _fetch(client, key, _Fetched(handle))


def digests(client: S3Client, key: str) -> tuple[int, str, str]:
    """The same without keeping the object."""
    return _fetch(client, key, _Fetched(None))


def _fetch(client: S3Client, key: str, fetched: _Fetched) -> tuple[int, str, str]:
    backoff = Backoff(0.2, 8.0)
    tries, most = _TRIES, 0
    while True:
        trouble = _fetch_on(client, key, fetched)
        if fetched.size == fetched.total:
            return fetched.size, fetched.md5.hexdigest(), fetched.sha256.hexdigest()
        tries = _TRIES if fetched.size > most else tries - 1
        most = max(most, fetched.size)
        if tries <= 0:
            raise StoreError(f"the {client.place} cuts off a download again and again ({trouble})")
        time.sleep(backoff.next_s())


class _Fetched:
    """What has come so far, and of which version of the object."""

    def __init__(self, handle: BinaryIO | None) -> None:
        self._handle = handle
        self.start_again()

    def start_again(self) -> None:
        if self._handle is not None:
            self._handle.seek(0)
            self._handle.truncate()
        self.size = 0
        self.total = -1
        self.tag = ""
        self.md5: Any = hashlib.md5(usedforsecurity=False)
        self.sha256: Any = hashlib.sha256()

    def add(self, data: bytes) -> None:
        if self._handle is not None:
            self._handle.write(data)
        self.md5.update(data)
        self.sha256.update(data)
        self.size += len(data)


def _fetch_on(client: S3Client, key: str, fetched: _Fetched) -> str:
    """One request for what is missing; what ended it early, in a word."""
    headers = {}
    if fetched.size:
        # With If-Match an object that was replaced meanwhile answers 412 and is fetched from its start.
        headers = {"Range": f"bytes={fetched.size}-", "If-Match": fetched.tag}
    try:
        with client.stream(key, headers) as response:
            _take_position(response, fetched)
            for piece in response.iter_content(_READ_BYTES):
                fetched.add(piece)
    except S3Refused as refused:
        if refused.status not in (412, 416):
            raise
        fetched.start_again()
        return "it was replaced meanwhile"
    except requests.RequestException as error:
        return type(error).__name__
    if fetched.size > fetched.total:
        raise VerificationError(f"the {client.place} sends more bytes than the object has")
    return "it ended early"


def _take_position(response: requests.Response, fetched: _Fetched) -> None:
    """See that the body goes on where ours ends; a whole one, or one of another version, is taken from its start."""
    tag = response.headers.get("ETag", "")
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    goes_on = response.status_code == 206 and match is not None and int(match.group(1)) == fetched.size
    if goes_on and match is not None and tag == fetched.tag and int(match.group(2)) == fetched.total:
        return
    if response.status_code != 200:
        fetched.start_again()
        raise requests.ConnectionError("another part than was asked for")
    fetched.start_again()
    length = response.headers.get("Content-Length", "")
    if not length.isdigit():
        raise StoreError("the object store does not tell how long an object is")
    fetched.total, fetched.tag = int(length), tag
