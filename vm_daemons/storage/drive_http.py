"""One request to the Drive API, repeated while that helps, and what its refusals mean.

Texts hold ids and reasons, never names of files, addresses of sessions or tokens.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import requests

from bridgehead.errors import StoreDenied, StoreError, StoreFull
from vm_daemons.storage.drive_auth import SIGN_IN_HINT, DriveAuth, check_trusted

GOOGLE: Final = "https://www.googleapis.com"
_TIMEOUT_S: Final = (10.0, 60.0)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 32.0
_TOO_FAST: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded"})
_NO_ROOM: Final = frozenset(
    {
        "storageQuotaExceeded", "quotaExceeded", "teamDriveFileLimitExceeded", "numChildrenInNonRootLimitExceeded",
        "activeItemCreationLimitExceeded", "uploadTooLarge",
    }
)  # fmt: skip
_TOMORROW: Final = frozenset({"dailyLimitExceeded", "downloadQuotaExceeded"})


class NotThere(StoreError):
    """404 or 410: no such file, or an upload session that ended."""


class Passing(StoreError):
    """The same request may succeed soon."""


class DriveHttp:
    """Thread-safe; a connection for each thread. `give_up_after_s` bounds one call with all its repeats."""

    def __init__(self, auth: DriveAuth, endpoint: str = "", *, give_up_after_s: float = 120.0) -> None:
        self.endpoint = check_trusted((endpoint or GOOGLE).rstrip("/"))
        self.give_up_after_s = give_up_after_s
        self.first_pause_s = _FIRST_PAUSE_S
        self._auth = auth
        self._local = threading.local()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        ok: tuple[int, ...] = (),
        repeat: bool = True,
    ) -> requests.Response:
        """An answer of 2xx, or one of `ok`. `path` below the endpoint, or a whole address that it gave us.

        Raises NotThere, StoreFull, StoreDenied, and StoreError once repeating has not helped (or, without `repeat`,
        at once).
        """
        url = check_trusted(path) if "://" in path else self.endpoint + path
        deadline = time.monotonic() + self.give_up_after_s
        pause_s, renewed = self.first_pause_s, False
        token = self._auth.token()
        while True:
            wait_s = 0.0
            try:
                answer = self._session().request(
                    method, url, params=params, json=json, data=data, headers=dict(headers or {}), stream=stream,
                    auth=_Bearer(token, self._auth.billed_project), timeout=_TIMEOUT_S, allow_redirects=False,
                )  # fmt: skip
            except requests.RequestException as error:
                failure: StoreError = Passing(f"Google Drive does not answer ({type(error).__name__})")
            else:
                if 200 <= answer.status_code < 300 or answer.status_code in ok:
                    return answer
                with answer:
                    if answer.status_code == 401 and not renewed:
                        token, renewed = self._auth.renew(token), True
                        continue
                    failure, wait_s = refusal(answer), _retry_after_s(answer)
            if not isinstance(failure, Passing) or not repeat:
                raise failure
            # Not all at once: several daemons may have been refused in the same moment.
            wait_s = max(wait_s, pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            if time.monotonic() + wait_s > deadline:
                raise failure
            time.sleep(wait_s)

    def json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        """The same, for an answer that is one JSON object."""
        with self.call(method, path, **kwargs) as answer:
            return json_object(answer)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.headers.update({"User-Agent": "bridgehead", "Accept-Encoding": "identity"})
        return session


class _Bearer(requests.auth.AuthBase):
    """A header set by hand would give way to ~/.netrc; this does not."""

    def __init__(self, token: str, project: str) -> None:
        self._token = token
        self._project = project

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        if self._project:
            request.headers["X-Goog-User-Project"] = self._project
        return request


def json_object(answer: requests.Response) -> dict[str, Any]:
    try:
        value = answer.json()
    except (ValueError, requests.RequestException):
        value = None
    if not isinstance(value, dict):
        raise StoreError("something other than Google Drive answered: no JSON object")
    return value


def refusal(answer: requests.Response) -> StoreError:
    """What a status other than 2xx means."""
    status, reason = answer.status_code, _reason(answer)
    what = f"Google Drive answered {status} {reason}".rstrip()
    if status in (404, 410):
        return NotThere(what)
    if status == 401:
        return StoreDenied("Google Drive refuses the credentials: expired or revoked", hint=SIGN_IN_HINT)
    if status in (408, 429) or status >= 500 or reason in _TOO_FAST:
        return Passing(what, hint="it is asked again later")
    if reason in _NO_ROOM or status == 413:
        return StoreFull(f"no room in Google Drive ({reason})", hint="delete something there and empty the trash")
    if reason in _TOMORROW:
        return StoreError(what, hint="Google's limit for a day is used up; it opens again by itself")
    if status == 403:
        return StoreDenied(f"Google Drive does not permit this ({reason or 'no reason given'})", hint=SIGN_IN_HINT)
    if 300 <= status < 400:
        return StoreError(f"Google Drive sent us elsewhere ({status}), and credentials don't follow")
    return StoreError(what)


def _reason(answer: requests.Response) -> str:
    """The machine's word in an error body; its message may hold names."""
    try:
        error = answer.json()["error"]
        reason = error["errors"][0]["reason"] if isinstance(error, dict) else error
    except (ValueError, KeyError, IndexError, TypeError, requests.RequestException):
        return ""
    return reason[:60] if isinstance(reason, str) and reason.isalnum() else ""


def _retry_after_s(answer: requests.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    try:
        return max(0.0, float(text)) if text and float(text) < 1e6 else 0.0
    except ValueError:
        return 0.0  # a date: our own pauses will do
