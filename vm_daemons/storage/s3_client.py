"""Signed requests to one bucket: where it is, what to try again and for how long, and what each refusal means.

Nothing that a server says is passed on but its error code: a message may quote the request, and with it a key id.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

import requests

from bridgehead.errors import StoreDenied, StoreError, StoreFull, StoreGone, UsageError
from bridgehead.records import StoreSpec
from vm_daemons.storage import s3_signing, s3_xml
from vm_daemons.storage.pace import Backoff
from vm_daemons.storage.s3_signing import Credentials

CONNECT_TIMEOUT_S = 10.0  # also for each 16 KiB that is sent
ANSWER_TIMEOUT_S = 60.0  # without a byte
TRIES = 6  # about 10 s of pauses in all
RETRY_AFTER_MAX_S = 30.0
_DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,40}\Z")
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}\Z")
_sleep = time.sleep
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

TIME_SKEWED = "RequestTimeTooSkewed"
NO_SUCH_KEY = "NoSuchKey"
NO_SUCH_UPLOAD = "NoSuchUpload"
_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_PASSING = frozenset({
    "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "TooManyRequests",
    "Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded", "IncompleteBody",
    "BadDigest", "XAmzContentSHA256Mismatch", "XMinioServerNotInitialized",
})  # fmt: skip
_FULL = frozenset({
    "QuotaExceeded", "InsufficientStorage", "StorageFull", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded",
    "ServiceQuotaExceededException", "QuotaExceededException",
})  # fmt: skip
_KEYS_AGAIN = "copy both keys again into the notebook's secrets and run the bootstrap cell; the run goes on meanwhile"
_NEW_TOKEN = "get new temporary keys, put them into the notebook's secrets and run the bootstrap cell; the run goes on"
_DENIED = {
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key id", _KEYS_AGAIN),
    "InvalidAccessKeyId": ("the access key id is unknown or was deleted", _KEYS_AGAIN),
    "ExpiredToken": ("the temporary keys have expired", _NEW_TOKEN),
    "TokenRefreshRequired": ("the temporary keys have expired", _NEW_TOKEN),
    "InvalidToken": ("the session token is not valid", _NEW_TOKEN),
    TIME_SKEWED: ("this VM's clock and the store's differ by more than it allows", "set the clock of this VM"),
}
_RIGHTS = "the key needs PutObject, GetObject, DeleteObject, ListBucket and AbortMultipartUpload on this bucket"
_TOO_LARGE_HINT = "the store takes no object of that size: save smaller files, or raise its limit"
_WRONG_PLACE = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})


class S3Refused(StoreError):
    """An answer that only the caller can judge: its HTTP status and S3's code for it, which may be empty."""

    def __init__(self, message: str, status: int, code: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.s3_code = code


class AnswerTooLarge(StoreError):
    """A body with more bytes than the caller wants to hold."""


@dataclass(frozen=True)
class Answer:
    """One answer; `body` is empty for a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class _Request:
    method: str
    key: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    max_bytes: int = s3_xml.MAX_BYTES
    stream: bool = False


class S3Client:
    """One bucket. Usable from several threads: each gets a connection of its own."""

    def __init__(
        self, spec: StoreSpec, credentials: Credentials, *, tries: int = TRIES, first_pause_s: float = 0.3
    ) -> None:
        """Raises UsageError for a bucket, region or endpoint that can't be one; contacts nobody."""
        if not _BUCKET.match(spec.bucket):
            raise UsageError(f"[store] bucket {spec.bucket[:70]!r} is no bucket's name")
        self._region = spec.region or _DEFAULT_REGION
        if not _REGION.match(self._region):
            raise UsageError(f"[store] region {spec.region[:50]!r} is no region's name")
        self._scheme, self._host, self._root = _address(spec, self._region)
        self.host = self._host
        self.place = f"bucket {spec.bucket} at {self._host}"
        self._credentials = credentials
        self._tries = tries
        self._first_pause_s = first_pause_s
        self.on_bytes: Callable[[int], None] = lambda size_bytes: None  # hears of each piece before it is sent
        self._clock_offset_s = 0.0  # the store's clock minus ours, once it complained
        self._local = threading.local()

    def ask(
        self,
        method: str,
        key: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        max_bytes: int = s3_xml.MAX_BYTES,
    ) -> Answer:
        """One request, tried again while the store or the network is at fault; a 2xx answer with its whole body.

        Raises S3Refused, AnswerTooLarge, StoreDenied, StoreFull, StoreGone, and StoreError when the tries are used up.
        """
        request = _Request(method, key, query, headers or {}, body, max_bytes)
        return self._persist(request)[0]

    @contextlib.contextmanager
    def stream(self, key: str, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """A GET whose body the caller reads; that can raise requests.RequestException. Otherwise like `ask`."""
        _, response = self._persist(_Request("GET", key, headers=headers, stream=True))
        with response:
            yield response

    # --- inside ------------------------------------------------------------------------------------

    def _persist(self, request: _Request) -> tuple[Answer, requests.Response]:
        backoff = Backoff(self._first_pause_s, 8.0)
        corrected = False
        left = self._tries
        while True:
            left -= 1
            wait_s = 0.0
            try:
                answer, response = self._send(request)
                refused = self._refusal(request, answer)
            except requests.RequestException as error:
                trouble = f"does not answer ({type(error).__name__})"
            else:
                if refused is None:
                    return answer, response
                response.close()
                if refused.s3_code == TIME_SKEWED and not corrected and self._set_clock(refused.date):
                    corrected = True
                    left += 1
                    continue
                if not refused.passing:
                    raise refused.error(self.place, request.method) from None
                trouble = f"answered {refused.status} {refused.s3_code}".rstrip()
                wait_s = _retry_after_s(refused.retry_after)
            if left <= 0:
                raise StoreError(f"the {self.place} {trouble}, {self._tries} times in a row") from None
            _sleep(max(wait_s, backoff.next_s()))

    def _send(self, request: _Request) -> tuple[Answer, requests.Response]:
        path = f"{self._root}/{request.key}" if request.key or not self._root else self._root
        unsigned = s3_signing.Unsigned(
            request.method, self._host, path, request.query, request.headers, hashlib.sha256(request.body).hexdigest()
        )
        now = dt.datetime.fromtimestamp(time.time() + self._clock_offset_s, dt.UTC)
        headers = s3_signing.sign(unsigned, self._credentials, self._region, now)
        headers["Accept-Encoding"] = "identity"  # what is hashed is what is stored
        url = f"{self._scheme}://{self._host}{s3_signing.encode_path(path)}"
        if request.query:
            url += "?" + s3_signing.encode_query(request.query)
        # As a file, so that the timeout holds for each piece that is sent and not for all of them together.
        body = _Body(request.body, self.on_bytes) if request.body else None
        prepared = requests.Request(request.method, url, headers=headers, data=body).prepare()
        session = self._session()
        settings = session.merge_environment_settings(url, {}, stream=True, verify=None, cert=None)
        timeout = (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        response = session.send(prepared, timeout=timeout, allow_redirects=False, **settings)
        if request.stream and response.status_code < 300:
            return Answer(response.status_code, response.headers), response
        with response:
            most = request.max_bytes if response.status_code < 300 else s3_xml.MAX_BYTES
            return Answer(response.status_code, response.headers, _body(response, most)), response

    def _refusal(self, request: _Request, answer: Answer) -> _Refusal | None:
        """What is wrong with an answer, or None. May ask again: the answer to a HEAD does not say."""
        in_body = request.method == "POST" and b"<Error>" in answer.body[:4096]  # a 200 that failed after it began
        if answer.status < 300 and not in_body:
            return None
        if request.method == "HEAD" and answer.status < 500:
            asked = {**request.headers, "Range": "bytes=0-0"}
            answer, response = self._send(_Request("GET", request.key, request.query, asked))
            response.close()
        return _Refusal.of(answer)

    def _set_clock(self, date: str) -> bool:
        """Take the time from the store's own answer; False when it does not tell."""
        try:
            theirs = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return False
        self._clock_offset_s = theirs - time.time()
        return True

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
        return session


class _Body(io.BytesIO):
    """A body that tells of each piece as it is taken."""

    def __init__(self, data: bytes, on_bytes: Callable[[int], None]) -> None:
        super().__init__(data)
        self._on_bytes = on_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self._on_bytes(len(piece))
        return piece


@dataclass(frozen=True)
class _Refusal:
    status: int
    s3_code: str
    region: str
    date: str
    retry_after: str

    @classmethod
    def of(cls, answer: Answer) -> _Refusal:
        code = region = ""
        with contextlib.suppress(StoreError):
            root = s3_xml.parse(answer.body)
            code, region = s3_xml.text(root, "Code"), s3_xml.text(root, "Region")
        region = region or answer.headers.get("x-amz-bucket-region", "")
        return cls(
            answer.status,
            code if _CODE.match(code) else "",
            region if _REGION.match(region) else "",
            answer.headers.get("Date", ""),
            answer.headers.get("Retry-After", ""),
        )

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        if self.s3_code in _FULL or self.s3_code in _DENIED:
            return False
        # Below 300: a HEAD was refused, and then a GET of the same was not.
        return self.s3_code in _PASSING or self.status in _PASSING_STATUS or self.status < 300

    def error(self, place: str, method: str) -> StoreError:
        said = f"{self.status} {self.s3_code}".rstrip()
        if self.status in (301, 307, 308) or self.s3_code in _WRONG_PLACE:
            found = f'set [store] region = "{self.region}"' if self.region else "check [store] region and endpoint"
            return StoreDenied(f"the {place} is served from another region or address ({said})", hint=found)
        if self.s3_code in _DENIED:
            why, hint = _DENIED[self.s3_code]
            return StoreDenied(f"the {place} refuses the request: {why} ({said})", hint=hint)
        if self.status == 507 or self.s3_code in _FULL:
            return StoreFull(f"the {place} has no room ({said})", hint="make room or raise the quota; the run goes on")
        if self.status == 404 and self.s3_code not in (NO_SUCH_KEY, NO_SUCH_UPLOAD):  # NoSuchBucket, or no S3 at all
            hint = "make it, or correct [store] bucket, region, endpoint"
            return StoreGone(f"the {place} is not there ({said})", hint=hint)
        if self.status in (401, 403):
            return StoreDenied(f"the {place} refuses a {method} ({said})", hint=_RIGHTS)
        hint = _TOO_LARGE_HINT if self.s3_code == "EntityTooLarge" else ""
        return S3Refused(f"the {place} answered {said} to a {method}", self.status, self.s3_code, hint=hint)


def _address(spec: StoreSpec, region: str) -> tuple[str, str, str]:
    """Scheme, host as it is sent and signed, and the path of the bucket (empty when the host names it)."""
    if not spec.endpoint:
        host = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
        # A dot in the bucket's name does not fit the wildcard of the certificate.
        return ("https", host, f"/{spec.bucket}") if "." in spec.bucket else ("https", f"{spec.bucket}.{host}", "")
    try:
        parts = urlsplit(spec.endpoint)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise UsageError("[store] endpoint is no address") from None
    if parts.username is not None or parts.query or parts.fragment or not host.isascii() or not host:
        raise UsageError("[store] endpoint must be https://host[:port][/path] and hold no key")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise UsageError("[store] endpoint must begin with https://; http:// is for this machine alone")
    shown = f"[{host}]" if ":" in host else host
    if port is not None and port != {"https": 443, "http": 80}[parts.scheme]:
        shown += f":{port}"
    return parts.scheme, shown, f"{unquote(parts.path).rstrip('/')}/{spec.bucket}"


def _body(response: requests.Response, max_bytes: int) -> bytes:
    pieces = bytearray()
    for piece in response.iter_content(1 << 16):
        pieces += piece
        if len(pieces) > max_bytes:
            raise AnswerTooLarge(f"the object store's answer has over {max_bytes} bytes")
    return bytes(pieces)


def _retry_after_s(text: str) -> float:
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdigit() else 0.0
