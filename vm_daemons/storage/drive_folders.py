"""The ids behind folder paths of a Drive, and searches in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bridgehead.errors import StoreError
from vm_daemons.storage.drive_http import DriveHttp

FILES: Final = "/drive/v3/files"
FOLDER: Final = "application/vnd.google-apps.folder"
MARK: Final = {"bridgehead": "1"}  # on everything that we write
_CACHED_S: Final = 60.0
_IDS: Final = 10


@dataclass
class Cached:
    """Ids that were right a moment ago."""

    ids: list[str]
    at: float = field(default_factory=time.monotonic)

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self.at < _CACHED_S


class DriveFolders:
    """Thread-safe. Ids are kept for a minute, or until `forget`. Errors are those of DriveHttp."""

    def __init__(self, http: DriveHttp) -> None:
        self._http = http
        self._lock = threading.Lock()
        self._cached: dict[tuple[str, ...], Cached] = {}
        self._new_ids: list[str] = []

    def forget(self) -> None:
        with self._lock:
            self._cached.clear()

    def ids(self, folders: tuple[str, ...]) -> list[str]:
        """Every folder at this path, the oldest first; empty when there is none."""
        if not folders:
            return ["root"]
        with self._lock:
            cached = self._cached.get(folders)
        if cached is not None and cached.fresh:
            return cached.ids
        found: list[dict[str, Any]] = []
        for parent in self.ids(folders[:-1]):
            term = f"{quoted(parent)} in parents and name = {quoted(folders[-1])} and mimeType = {quoted(FOLDER)}"
            found += [item for item in self.query(term, "id,name,createdTime") if item.get("name") == folders[-1]]
        # Two writers may have made it at the same time: then both write into the older one.
        found.sort(key=lambda item: (str(item.get("createdTime", "")), item["id"]))
        there = [str(item["id"]) for item in found]
        if there:
            with self._lock:
                self._cached[folders] = Cached(there)
        return there

    def make(self, folders: tuple[str, ...]) -> str:
        """The id of the folder at this path, made with all above it where they are missing."""
        there = self.ids(folders)
        if there:
            return there[0]
        parent = self.make(folders[:-1])
        metadata = {
            "id": self.new_id(), "name": folders[-1], "parents": [parent], "mimeType": FOLDER, "appProperties": MARK,
        }  # fmt: skip
        self._http.call("POST", FILES, json=metadata, params={"fields": "id"}, ok=(409,)).close()
        # Another writer may have made it at this moment too. Whoever has made one looks again, and takes the oldest.
        made = self.ids(folders) or [str(metadata["id"])]
        with self._lock:
            self._cached[folders] = Cached(made)
        return made[0]

    def new_id(self) -> str:
        """Drive's own idea of an id that is not in use; asked for a few at a time."""
        with self._lock:
            if self._new_ids:
                return self._new_ids.pop()
        told = self._http.json("GET", f"{FILES}/generateIds", params={"count": str(_IDS), "space": "drive"})
        ids = told.get("ids")
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
            raise StoreError("Google Drive gave no id for a new file")
        with self._lock:
            self._new_ids += ids
            return self._new_ids.pop()

    def query(self, term: str, fields: str) -> Iterator[dict[str, Any]]:
        """All pages of files.list. What is in the trash is never in it."""
        params = {
            "q": f"{term} and trashed = false", "fields": f"nextPageToken,files({fields})", "pageSize": "1000",
            "spaces": "drive",
        }  # fmt: skip
        while True:
            page = self._http.json("GET", FILES, params=params)
            items = page.get("files")
            for item in items if isinstance(items, list) else []:
                if isinstance(item, dict) and isinstance(item.get("id"), str):
                    yield item
            if not page.get("nextPageToken"):
                return
            params["pageToken"] = str(page["nextPageToken"])


def quoted(text: str) -> str:
    """A string of the query language."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
