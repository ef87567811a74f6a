"""Google Drive through its API: objects under keys, each confirmed by the sizes and digests that Drive itself tells.

A key is folders and a name below one app folder. Drive's names are not unique, so every look-up may find several: the
newest counts, and only files that bear our mark are ever removed. All ids are cached for a minute and looked up again
when one turns out to be gone or trashed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import requests

from bridgehead import files, paths
from bridgehead.errors import BridgeheadError, NotFoundError, StoreDenied, StoreError, UsageError, VerificationError
from bridgehead.names import StoreKind
from bridgehead.records import StoreSpec
from vm_daemons.storage.drive_auth import DriveAuth
from vm_daemons.storage.drive_folders import FILES, FOLDER, MARK, Cached, DriveFolders, quoted
from vm_daemons.storage.drive_http import DriveHttp, NotThere
from vm_daemons.storage.drive_upload import FILE_FIELDS, Content, Uploader
from vm_daemons.storage.objects import Room, Stored

APP_FOLDER: Final = "Bridgehead"
_MOUNTED_DRIVE: Final = frozenset({"MyDrive", "My Drive"})
_READ_BYTES: Final = 1 << 16
_TRIES: Final = 3  # of a whole transfer whose digest came out wrong
_CUTS: Final = 6  # of a download in a row, without a byte of progress

Credentials = DriveAuth | Mapping[str, object] | Path


class DriveApi:
    """An objects.ObjectStore. Thread-safe. Raises StoreDenied, StoreFull and StoreError; texts hold ids, not names."""

    kind = str(StoreKind.DRIVE)
    proves = True

    def __init__(
        self, spec: StoreSpec, credentials: Credentials | None = None, *, give_up_after_s: float = 120.0
    ) -> None:
        """`spec.path`: the app folder, also one below others. `credentials`: see DriveAuth. Contacts nobody.

        Raises UsageError for an endpoint that no token may be sent to.
        """
        self._root = [part for part in (spec.path or APP_FOLDER).split("/") if part]
        auth = credentials if isinstance(credentials, DriveAuth) else DriveAuth(credentials)
        self._http = DriveHttp(auth, spec.endpoint, give_up_after_s=give_up_after_s)
        self._uploader = Uploader(self._http, mb_per_s=spec.upload_mb_s)
        self._marked_only = True
        self._lock = threading.RLock()
        self._folders = DriveFolders(self._http)
        self._known: dict[str, Cached] = {}  # key -> the file that we wrote
        self._canary = f"canary-{secrets.token_hex(4)}"
        self.where = "Google Drive: " + "/".join(self._root)

    @classmethod
    def for_mount(
        cls, store: Path, spec: StoreSpec, credentials: Credentials | None = None, **settings: float
    ) -> DriveApi:
        """The API's view of the folder `store` of a mounted drive: the same keys, told by the other end.

        `delete` then also removes what the mount wrote. UsageError when `store` is not below My Drive.
        """
        parts = store.parts
        at = next((index for index, part in enumerate(parts) if part in _MOUNTED_DRIVE), None)
        if at is None:
            raise UsageError(
                "this store's folder is not below My Drive, so the Drive API can't confirm what is in it",
                hint='[store] path is to be below "…/MyDrive/", or confirm = false',
            )
        api = cls(StoreSpec(path="", endpoint=spec.endpoint), credentials, **settings)
        api._root, api._marked_only = list(parts[at + 1 :]), False
        api.where = "Google Drive: " + ("/".join(api._root) or "My Drive")
        return api

    @property
    def on_bytes(self) -> Callable[[int], None]:
        """Hears of each piece that was sent, and may wait."""
        return self._uploader.on_bytes

    @on_bytes.setter
    def on_bytes(self, hear: Callable[[int], None]) -> None:
        self._uploader.on_bytes = hear

    # --- writing ------------------------------------------------------------------------------------

    def put(self, key: str, source: Path) -> Stored:
        return self._put(key, Content.of_file(source))

    def put_bytes(self, key: str, data: bytes) -> None:
        self._put(key, Content.of_bytes(data))

    def delete(self, key: str) -> None:
        for resource in self._found(key):
            if self._ours(resource):
                self._remove(resource["id"])
        with self._lock:
            self._known.pop(key, None)

    def _put(self, key: str, content: Content) -> Stored:
        paths.check_relative(key)
        for _ in range(_TRIES):
            before = self._newest_id(key)
            try:
                now = self._update(before, content) if before else self._create(key, content)
            except NotThere:  # a cached id of what somebody removed meanwhile
                self._forget(key)
                continue
            if now.get("trashed"):  # with its folder, perhaps; there it would not be found again
                self._forget(key)
                if not before:
                    self._remove(now["id"])
                continue
            if not content.is_at(now):
                if not before:
                    self._remove(now["id"])
                continue
            with self._lock:
                self._known[key] = Cached([now["id"]])
            if not before:
                self._remove_older(key, now["id"])
            return Stored(key, content.size, content.md5, content.sha256)
        raise StoreError("Google Drive does not hold what was sent to it, after several tries")

    def _newest_id(self, key: str) -> str:
        with self._lock:
            known = self._known.get(key)
        if known is not None and known.fresh:
            return known.ids[0]
        found = self._found(key)
        return str(found[0]["id"]) if found else ""

    def _update(self, file_id: str, content: Content) -> dict[str, Any]:
        return self._uploader.send(content, {"appProperties": MARK}, file_id=file_id)

    def _create(self, key: str, content: Content) -> dict[str, Any]:
        *folders, name = key.split("/")
        parent = self._folders.make((*self._root, *folders))
        metadata = {"id": self._folders.new_id(), "name": name, "parents": [parent], "appProperties": MARK}
        return self._uploader.send(content, metadata)

    def _remove_older(self, key: str, keep: str) -> None:
        """Twins that we made and did not see at the time, because listings are late."""
        for resource in self._listed(key):
            if resource["id"] != keep and (resource.get("appProperties") or {}).get("bridgehead") == "1":
                self._remove(resource["id"])

    def _remove(self, file_id: str) -> None:
        try:
            self._http.call("DELETE", f"{FILES}/{file_id}").close()
        except NotThere:
            pass

    def _ours(self, resource: dict[str, Any]) -> bool:
        return not self._marked_only or (resource.get("appProperties") or {}).get("bridgehead") == "1"

    # --- reading ------------------------------------------------------------------------------------

    def get(self, key: str, target: Path) -> Stored:
        temp = target.parent / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
        try:
            for _ in range(_TRIES):
                resource = self._newest(key)
                try:
                    stored = self._fetch(key, resource, temp)
                except NotThere:
                    self._forget(key)
                    continue
                if stored is not None:
                    files.replace(temp, target)
                    files.fsync_folder(target.parent)
                    return stored
        finally:
            temp.unlink(missing_ok=True)
        raise VerificationError(f"a file came from Google Drive with another digest than Drive names, {_TRIES} times")

    def read(self, key: str, max_bytes: int) -> bytes | None:
        for _ in range(_TRIES):
            try:
                resource = self._newest(key)
                if _size(resource) > max_bytes:
                    raise VerificationError(
                        f"a record in Google Drive has {_size(resource)} bytes; {max_bytes} at most"
                    )
                with self._http.call("GET", f"{FILES}/{resource['id']}", params={"alt": "media"}) as answer:
                    data = answer.content
            except NotFoundError:
                return None
            except NotThere:
                self._forget(key)
                continue
            except requests.RequestException:
                continue
            if Content.of_bytes(data).is_at(resource):
                return data
        raise VerificationError("a record in Google Drive does not arrive as Drive describes it")

    def find(self, key: str) -> list[Stored]:
        """All of this name, the newest first."""
        return [_stored(key, resource) for resource in self._found(key)]

    def look(self, key: str) -> list[Stored]:
        return self.find(key)

    def by_id(self, file_id: str, key: str = "") -> Stored | None:
        """The file that a mount calls `user.drive.id`; None when Drive knows no such, or has it in the trash."""
        if not re.fullmatch(r"[A-Za-z0-9_-]{10,128}", file_id):
            return None
        try:
            resource = self._http.json("GET", f"{FILES}/{file_id}", params={"fields": FILE_FIELDS})
        except NotThere:
            return None
        return None if resource.get("trashed") else _stored(key, resource)

    def probe(self) -> Room:
        content = secrets.token_hex(8).encode()
        try:
            self.put_bytes(self._canary, content)
            back = self.read(self._canary, 1024)
            self.delete(self._canary)
            free_bytes, trash_bytes = self.quota()
        except BridgeheadError as error:
            return Room(error=error.in_one_line(), denied=isinstance(error, StoreDenied))
        except OSError as error:
            return Room(error=f"Google Drive: {error.strerror or type(error).__name__}")
        return Room(free_bytes, trash_bytes, "" if back == content else "Google Drive gave back another canary")

    def quota(self) -> tuple[int | None, int | None]:
        """Free bytes and bytes in the trash; None where the account has no limit or Drive does not tell."""
        told = self._http.json("GET", "/drive/v3/about", params={"fields": "storageQuota"}).get("storageQuota") or {}
        limit, used, trash = (_number(told.get(name)) for name in ("limit", "usage", "usageInDriveTrash"))
        free = None if limit is None or used is None else max(0, limit - used)
        return free, trash

    def _newest(self, key: str) -> dict[str, Any]:
        found = self._found(key)
        if not found:
            raise NotFoundError("no such object in Google Drive")
        return found[0]

    def _fetch(self, key: str, resource: dict[str, Any], temp: Path) -> Stored | None:
        """None when it did not arrive as described."""
        size, cuts = _size(resource), 0
        md5, sha256, have = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        with temp.open("wb") as handle:

            def take(piece: bytes) -> None:
                handle.write(piece)
                md5.update(piece)
                sha256.update(piece)

            while have < size:
                got = self._fetch_from(resource["id"], have, size, take)
                cuts = 0 if got else cuts + 1
                have += got
                if cuts > _CUTS:
                    raise StoreError("a download from Google Drive is cut again and again")
            handle.flush()
            os.fsync(handle.fileno())
        came = Content(have, md5.hexdigest(), sha256.hexdigest())
        return Stored(key, have, came.md5, came.sha256) if came.is_at(resource) else None

    def _fetch_from(self, file_id: str, have: int, size: int, take: Callable[[bytes], None]) -> int:
        """How many bytes came before the end or a cut."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        got = 0
        with self._http.call(
            "GET", f"{FILES}/{file_id}", params={"alt": "media"}, headers=headers, stream=True, ok=(416,)
        ) as answer:
            if answer.status_code == 416 or (have and not _continues(answer, have)):
                raise NotThere("the file in Google Drive is another one by now")
            try:
                for piece in answer.iter_content(_READ_BYTES):
                    if have + got + len(piece) > size:
                        raise NotThere("the file in Google Drive is longer than Drive said")
                    take(piece)
                    got += len(piece)
            except requests.RequestException:
                pass
        return got

    # --- names and ids ------------------------------------------------------------------------------

    def _found(self, key: str) -> list[dict[str, Any]]:
        """What lies under the key, newest first, with what we wrote ourselves and listings don't show yet."""
        found = self._listed(key)
        with self._lock:
            known = self._known.get(key)
        for file_id in known.ids if known is not None else []:
            if all(resource["id"] != file_id for resource in found):
                found += self._still_there(key, file_id)
        return sorted(found, key=lambda resource: str(resource.get("modifiedTime", "")), reverse=True)

    def _still_there(self, key: str, file_id: str) -> list[dict[str, Any]]:
        try:
            resource = self._http.json("GET", f"{FILES}/{file_id}", params={"fields": FILE_FIELDS})
        except NotThere:
            resource = {"trashed": True}
        if not resource.get("trashed") and resource.get("name") == key.rpartition("/")[2]:
            return [resource]
        self._forget(key)
        return []

    def _listed(self, key: str) -> list[dict[str, Any]]:
        *folders, name = paths.check_relative(key).split("/")
        found: list[dict[str, Any]] = []
        for folder in self._folders.ids((*self._root, *folders)):
            term = f"{quoted(folder)} in parents and name = {quoted(name)} and mimeType != {quoted(FOLDER)}"
            found += self._folders.query(term, FILE_FIELDS)
        return [resource for resource in found if resource.get("name") == name]

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)
        self._folders.forget()

    # Below here the name `list` is this method, for mypy and for readers: so it comes last.
    def list(self, prefix: str) -> list[str]:
        folders = self._root + ([part for part in prefix.split("/") if part] if prefix else [])
        found: set[str] = set()
        for folder in self._folders.ids(tuple(folders)):
            found |= {str(item.get("name")) for item in self._folders.query(f"{quoted(folder)} in parents", "id,name")}
        return sorted(name for name in found if _is_ours_by_grammar(name))


def _stored(key: str, resource: dict[str, Any]) -> Stored:
    md5, sha256 = (str(resource.get(name) or "") for name in ("md5Checksum", "sha256Checksum"))
    return Stored(key, _size(resource), md5, sha256)


def _size(resource: dict[str, Any]) -> int:
    return _number(resource.get("size")) or 0


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def _continues(answer: requests.Response, have: int) -> bool:
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _is_ours_by_grammar(name: str) -> bool:
    try:
        return "/" not in name and bool(paths.check_relative(name))
    except UsageError:
        return False
