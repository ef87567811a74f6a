"""AWS Signature Version 4 for S3 requests, as far as this store needs it: headers only, every payload hashed.

The secret key never leaves this module's arithmetic: what goes out is a key derived from it for one day, used once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from bridgehead import names
from bridgehead.errors import StoreDenied

_SECRETS = {
    "access_key_id": names.SECRET_S3_KEY_ID,
    "secret_access_key": names.SECRET_S3_SECRET,
    "session_token": names.SECRET_S3_TOKEN,
}
_ALGORITHM = "AWS4-HMAC-SHA256"
_SERVICE = "s3"
_SCOPE_END = "aws4_request"
_UNRESERVED = "-._~"  # beside letters and digits: the only characters that S3 wants as they are


@dataclass(frozen=True)
class Credentials:
    """What signs. Neither secret shows in a repr, so none gets into a traceback that prints locals."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def read(cls, values: Mapping[str, object]) -> Credentials:
        """From names to values, without the blanks that pasting adds. Raises StoreDenied, never quoting a value."""
        cleaned = {}
        for name in _SECRETS:
            told = values.get(name)
            value = told.strip() if isinstance(told, str) else ""
            if not all("!" <= letter <= "~" for letter in value):
                raise StoreDenied(
                    f"the {name} for the object store holds a blank or a character that no key has",
                    hint=f"copy it again into the notebook's secret {_SECRETS[name]} and run the bootstrap cell",
                )
            cleaned[name] = value
        for name in ("access_key_id", "secret_access_key"):
            if not cleaned[name]:
                raise StoreDenied(
                    f"no {name} for the object store",
                    hint=f"put {names.SECRET_S3_KEY_ID} and {names.SECRET_S3_SECRET} into the notebook's secrets"
                    " and run the bootstrap cell again",
                )
        return cls(**cleaned)


@dataclass(frozen=True)
class Unsigned:
    """One request before it is signed. `path` and `query` are raw text, `headers` what else is to be signed."""

    method: str
    host: str  # with the port, unless it is the scheme's own
    path: str  # from the root, decoded
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    payload_sha256: str = hashlib.sha256(b"").hexdigest()


def encode_path(path: str) -> str:
    """The path as it goes into the URL and, S3 being the exception, unchanged into what is signed."""
    return quote(path, safe="/" + _UNRESERVED)


def encode_query(query: Sequence[tuple[str, str]]) -> str:
    """Sorted and percent-encoded; a name without a value keeps its `=`. Usable in the URL and in what is signed."""
    pairs = sorted((quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def sign(request: Unsigned, credentials: Credentials, region: str, at: dt.datetime) -> dict[str, str]:
    """All headers to send: those of the request, host, date, payload hash, session token and the signature.

    `at` is an aware time; the server refuses one more than 15 minutes off.
    """
    stamp = at.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {**request.headers, "Host": request.host, "X-Amz-Date": stamp}
    headers["X-Amz-Content-Sha256"] = request.payload_sha256
    if credentials.session_token:
        headers["X-Amz-Security-Token"] = credentials.session_token
    canonical = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    signed_names = ";".join(sorted(canonical))
    text = "\n".join(
        [
            request.method,
            encode_path(request.path),
            encode_query(request.query),
            *(f"{name}:{canonical[name]}" for name in sorted(canonical)),
            "",
            signed_names,
            request.payload_sha256,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/{_SCOPE_END}"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(text.encode()).hexdigest()])
    key = _day_key(credentials.secret_access_key, stamp[:8], region)
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
        f"SignedHeaders={signed_names}, Signature={signature}"
    )
    return headers


def _day_key(secret: str, day: str, region: str) -> bytes:
    key = ("AWS4" + secret).encode()
    for part in (day, region, _SERVICE, _SCOPE_END):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
