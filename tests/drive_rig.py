"""A Drive client against the double of the Drive API, for several test files."""

from __future__ import annotations

import json
from pathlib import Path

from bridgehead.records import StoreSpec
from doubles.drive_v3 import TOKEN, DriveServer
from vm_daemons.storage.drive_api import DriveApi
from vm_daemons.storage.drive_auth import DriveAuth
from vm_daemons.storage.drive_upload import GRAIN_BYTES, Uploader


def token_file(folder: Path, token: str = TOKEN) -> Path:
    path = folder / "token.json"
    path.write_text(json.dumps({"token": token}))
    return path


def quick(api: DriveApi) -> DriveApi:
    """Short pauses and small chunks."""
    api._http.first_pause_s = 0.01
    api._uploader = Uploader(api._http, chunk_bytes=2 * GRAIN_BYTES)
    return api


def drive_api(server: DriveServer, credentials: Path, *, path: str = "", give_up_after_s: float = 20.0) -> DriveApi:
    spec = StoreSpec(kind="drive", path=path, endpoint=server.url)
    return quick(DriveApi(spec, DriveAuth(credentials), give_up_after_s=give_up_after_s))
