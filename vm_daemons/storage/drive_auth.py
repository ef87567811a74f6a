"""Access tokens for Google Drive, from what the machine already holds; none is ever asked for or shown.

On the VM that is what the notebook's own sign-in leaves, on a laptop the user's application default credentials
(`gcloud auth application-default login`), or what the owner gives, as a file or from notebook secrets:
`{"token": …, "expiry": …}`, or credentials with a refresh token or a service account's key. Only the first of these
works without google-auth.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from bridgehead import names
from bridgehead.errors import StoreDenied, StoreError, UsageError

# The narrower drive.file would hide what the VM wrote from the laptop, whose credentials belong to another client.
SCOPES: Final = ("https://www.googleapis.com/auth/drive",)
SIGN_IN_HINT: Final = (
    "on the VM run the bootstrap cell again and let it sign in, or give it the notebook secret"
    f" {names.SECRET_DRIVE}; on the laptop: gcloud auth application-default login"
    " --scopes=https://www.googleapis.com/auth/drive,https://www.googleapis.com/auth/cloud-platform"
)
_ENDPOINT_HINT: Final = (
    "[store] endpoint must be https below googleapis.com, or on this machine; leave it out for Google itself"
)
_GOOGLE_TOKENS: Final = "https://oauth2.googleapis.com/token"
_NOTEBOOK_CREDENTIALS: Final = Path("/content/.adc/adc.json")  # where Colab's sign-in may put a file
_SECRET: Final = "drive_credentials"
_EARLY_S: Final = 60.0  # a token is renewed so long before it ends
_TIMEOUT_S: Final = 30.0


def check_trusted(url: str) -> str:
    """`url` itself when a token may be sent there: Google over TLS, or this machine. Raises UsageError."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        raise UsageError("the address of Google Drive's API can't be read", hint=_ENDPOINT_HINT) from None
    if _is_loopback(host) and parts.scheme in ("http", "https"):
        return url
    if parts.scheme == "https" and (host == "googleapis.com" or host.endswith(".googleapis.com")):
        return url
    raise UsageError(
        f"credentials for Google Drive are not sent to {host[:80] or 'an address without a host'!r}",
        hint=_ENDPOINT_HINT,
    )


class DriveAuth:
    """`token()` is good now as far as is known; `renew()` gets another when the far end refused it. Thread-safe."""

    def __init__(self, credentials: Path | Mapping[str, object] | None = None) -> None:
        """`credentials`: a file; or secrets, which may hold the text of such a file as `drive_credentials`.

        None, or secrets that are for something else: what the machine's sign-in left.
        """
        self._given = credentials
        self._lock = threading.Lock()
        self._token = ""
        self._expiry = 0.0
        self._google: Any = None

    def token(self) -> str:
        """Raises StoreDenied (a person has to sign in) and StoreError (Google's token service does not answer)."""
        with self._lock:
            if not self._token or time.time() > self._expiry - _EARLY_S:
                self._fetch()
            return self._token

    def renew(self, refused: str) -> str:
        """A token other than `refused`. Raises StoreDenied when there is none to be had."""
        with self._lock:
            if self._token == refused:
                self._fetch()
            if self._token == refused:
                raise StoreDenied("Google Drive refuses the credentials: expired or revoked", hint=SIGN_IN_HINT)
            return self._token

    @property
    def billed_project(self) -> str:
        """The Cloud project that a laptop's sign-in counts requests for; Google asks for it in a header."""
        return str(getattr(self._google, "quota_project_id", None) or "")

    def _fetch(self) -> None:
        info = _given_info(self._given)
        if info is not None and "token" in info and "refresh_token" not in info:
            self._token, self._expiry = _plain_token(info)
            return
        self._google_token(info)

    def _google_token(self, info: dict[str, Any] | None) -> None:
        try:
            from google.auth import exceptions
            from google.auth.transport.requests import Request
        except ImportError:
            raise StoreDenied(
                "google-auth is not installed here, and there is no plain token for Google Drive",
                hint="pip install google-auth, then run the cell again",
            ) from None
        session = requests.Session()
        try:
            if self._google is None:
                self._google = _credentials(info)
            self._google.refresh(Request(session=_WithTimeout(session)))
        except exceptions.TransportError:
            raise StoreError("Google's token service does not answer") from None
        except exceptions.RefreshError as error:
            self._google = None  # the file may hold better ones by the next time
            if getattr(error, "retryable", False):
                raise StoreError("Google's token service is not able to answer just now") from None
            raise StoreDenied("Google refuses to renew the sign-in: expired or revoked", hint=SIGN_IN_HINT) from None
        except (exceptions.GoogleAuthError, ValueError):
            self._google = None
            raise StoreDenied("this machine holds no sign-in for Google Drive", hint=SIGN_IN_HINT) from None
        finally:
            session.close()
        self._token = str(self._google.token or "")
        expiry = self._google.expiry
        self._expiry = time.time() + 300 if expiry is None else expiry.replace(tzinfo=datetime.UTC).timestamp()
        if not self._token:
            raise StoreDenied("this machine's sign-in gives no token for Google Drive", hint=SIGN_IN_HINT)


class _WithTimeout:
    """google-auth waits two minutes for a token; we have a run to look after."""

    def __init__(self, session: requests.Session) -> None:
        self._session = session

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = min(float(kwargs.get("timeout") or _TIMEOUT_S), _TIMEOUT_S)
        return self._session.request(method, url, allow_redirects=False, **kwargs)

    def close(self) -> None:
        self._session.close()


def _credentials(info: dict[str, Any] | None) -> Any:
    """google-auth's own object. Raises its errors, ValueError for a file that is none of its kinds."""
    import google.auth
    from google.oauth2 import credentials as user_credentials
    from google.oauth2 import service_account

    if info is None:
        info = _notebook_info()
    if info is None:
        found, _project = google.auth.default(scopes=list(SCOPES))
        return found
    try:
        token_uri = check_trusted(str(info.get("token_uri") or _GOOGLE_TOKENS))
    except UsageError as error:
        raise StoreDenied(error.message, hint=SIGN_IN_HINT) from None
    if info.get("type") == "service_account":
        whole = {**info, "token_uri": token_uri}
        return service_account.Credentials.from_service_account_info(whole, scopes=list(SCOPES))
    if "refresh_token" in info:
        return user_credentials.Credentials(
            token=None,
            refresh_token=info["refresh_token"],
            token_uri=token_uri,
            client_id=info.get("client_id"),
            client_secret=info.get("client_secret"),
            quota_project_id=info.get("quota_project_id"),
        )
    raise ValueError("no kind of credentials that we know")


def _given_info(given: Path | Mapping[str, object] | None) -> dict[str, Any] | None:
    if isinstance(given, Path):
        return _read(given)
    if given and _SECRET in given:
        return _parse(str(given[_SECRET]).encode(), f"the secret {names.SECRET_DRIVE}")
    known = given is not None and any(name in given for name in ("token", "refresh_token", "private_key"))
    return dict(given) if known and given is not None else None


def _notebook_info() -> dict[str, Any] | None:
    """What Colab's sign-in left, when the daemon did not inherit the variable that names it."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or not _NOTEBOOK_CREDENTIALS.is_file():
        return None
    return _read(_NOTEBOOK_CREDENTIALS)


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_bytes(), path.name)
    except OSError as error:
        raise StoreDenied(f"{path.name}: {error.strerror}", hint=SIGN_IN_HINT) from None


def _parse(text: bytes, what: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict):
        raise StoreDenied(f"{what} holds no credentials: it is not a JSON object", hint=SIGN_IN_HINT)
    return info


def _plain_token(info: dict[str, Any]) -> tuple[str, float]:
    """The token and when it ends, in seconds since 1970; a far day when the file does not say."""
    expiry, token = info.get("expiry"), info["token"]
    if isinstance(token, str) and token.isascii() and token.isprintable() and token and " " not in token:
        if isinstance(expiry, (int, float)) and not isinstance(expiry, bool):
            return token, float(expiry)
        if expiry is None:
            return token, time.time() + 3600 * 24
        if isinstance(expiry, str):
            if expiry.isdigit():
                return token, float(expiry)
            try:
                when = datetime.datetime.fromisoformat(expiry)
            except ValueError:
                raise StoreDenied("the token file's expiry is no time", hint=SIGN_IN_HINT) from None
            return token, (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()
    raise StoreDenied("the token file holds no usable token", hint=SIGN_IN_HINT)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
