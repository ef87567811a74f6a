"""Drive's words on the wire: which operation a request is, how a file is described, what an upload holds."""

from __future__ import annotations

import json
import re
import time
from email.parser import BytesParser
from typing import Any

from doubles.drive_query import mime_type
from doubles.google_cloud import Entry


def operation(method: str, path: str, query: dict[str, str]) -> str:
    parts = path.strip("/").split("/")
    if parts[0] == "_double":
        return "_double." + parts[-1]
    if parts == ["token"]:
        return "token"
    if parts[-1] == "about":
        return "about.get"
    if parts[0] == "upload":
        if "upload_id" in query:
            return "upload.chunk"
        return "upload.create" if method == "POST" else "upload.update"
    if parts[:3] != ["drive", "v3", "files"]:
        return "unknown"
    if len(parts) == 3:
        return {"GET": "files.list", "POST": "files.create"}.get(method, "unknown")
    if parts[3] == "generateIds":
        return "files.generateIds"
    if parts[3] == "trash":
        return "files.emptyTrash"
    return {"GET": "files.get", "PATCH": "files.update", "DELETE": "files.delete"}.get(method, "unknown")


def resource(entry: Entry) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "kind": "drive#file", "id": entry.id, "name": entry.name, "mimeType": mime_type(entry),
        "parents": [entry.parent], "trashed": entry.trashed, "appProperties": entry.properties,
        "createdTime": _iso(entry.created), "modifiedTime": _iso(entry.modified), "version": str(entry.revision),
        "explicitlyTrashed": entry.trashed,
    }  # fmt: skip
    if not entry.folder:
        resource |= {"size": str(entry.size), "md5Checksum": entry.md5, "sha256Checksum": entry.sha256}
    return resource


def _iso(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when * 1000) % 1000:03d}Z"


def first_byte(content_range: str) -> int:
    found = re.match(r"bytes (\d+)-", content_range)
    return int(found[1]) if found else -1


def related(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    message = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    parts = message.get_payload()
    if not isinstance(parts, list) or len(parts) != 2:
        raise ValueError("not two parts")
    boundary = message.get_param("boundary")
    # The mail parser may touch line ends, so the content is cut out of the raw body.
    raw = body.split(f"--{boundary}".encode())[2]
    content = raw.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")
    metadata = json.loads(str(parts[0].get_payload()))  # type: ignore[union-attr]
    return metadata, content
