"""Drive's HTTP interface, version 3, over the model of an account: `python -m doubles.drive_v3 FOLDER --port-file F`.

As documented: metadata by `fields`, paging, media with ranges, multipart and resumable uploads (308, `Range`, sessions
that end), permanent deletion, quota with trash, errors in Google's own form. Faults and a log of all requests are
reached in the process (`DriveServer`) or by HTTP under `/_double/`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from doubles import drive_query, drive_words
from doubles.google_cloud import ROOT_ID, Cloud, Entry, NoSuchFile, QuotaExceeded, new_id

TOKEN = "ya29.token-of-the-double"
REFRESH_TOKEN = "1//refresh-token-of-the-double"
_GRAIN_BYTES = 256 * 1024
_SMALL_BYTES = 5 * 2**20  # what one request may carry without a session
_DEFAULT_FIELDS = "kind,id,name,mimeType"


class Answer(Exception):
    """Ends the handling of a request with this status and body."""

    def __init__(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers or {}
        self.body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


def error(status: int, reason: str, headers: dict[str, str] | None = None) -> Answer:
    detail = {"domain": "global", "reason": reason, "message": reason}
    return Answer(status, {"error": {"code": status, "message": reason, "errors": [detail]}}, headers)


@dataclass
class Fault:
    """For the next `times` requests whose `operation` contains `match`."""

    match: str = ""  # "" any; else part of an operation's name, such as "upload.chunk" or "files.list"
    times: int = 1
    status: int = 0  # answered instead of acting; 0: act
    reason: str = "backendError"
    retry_after_s: float | None = None
    cut: str = ""  # "before" acting, "after" acting and without an answer, "middle" of the body in either direction
    keep_bytes: int = 0  # of a chunk that is cut in the middle
    damage: bool = False  # one bit of the content is flipped on its way
    end_session: bool = False  # the resumable session is forgotten
    delay_s: float = 0.0


@dataclass
class Request:
    operation: str
    status: int
    received_bytes: int
    sent_bytes: int


@dataclass
class _Session:
    file_id: str  # of an update; empty for a new file
    metadata: dict[str, Any]
    size: int | None
    fields: str
    data: bytearray = field(default_factory=bytearray)
    done: Entry | None = None


class DriveServer:
    """On a port of 127.0.0.1 until it is closed. `url` is the endpoint."""

    def __init__(self, cloud: Cloud, *, port: int = 0) -> None:
        self.cloud = cloud
        self.log: list[Request] = []
        self.tokens = {TOKEN}
        self.refresh_tokens = {REFRESH_TOKEN}
        self.list_lag_s = 0.0  # files younger than this are not listed yet
        self.page_size = 1000  # most that one page of a list holds
        self.faults: list[Fault] = []
        self.sessions: dict[str, _Session] = {}
        self.lock = threading.RLock()
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.drive = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def fail_next(self, match: str = "", **fault: Any) -> None:
        """See Fault. Those that match are used up in the order given."""
        with self.lock:
            self.faults.append(Fault(match, **fault))

    def revoke(self) -> None:
        """Every token is refused from now on, and none is given out."""
        with self.lock:
            self.tokens, self.refresh_tokens = set(), set()

    def expire(self) -> None:
        """Access tokens are refused; a refresh token still gets a new one."""
        with self.lock:
            self.tokens = set()

    def count(self, match: str = "") -> int:
        with self.lock:
            return sum(match in request.operation for request in self.log)

    def take_fault(self, operation: str) -> Fault:
        with self.lock:
            for fault in self.faults:
                if fault.match in operation and fault.times > 0:
                    fault.times -= 1
                    return fault
        return Fault()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    drive: DriveServer

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is no news


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet
    disable_nagle_algorithm = True
    server: _Http

    def _handle(self) -> None:
        drive, parts = self.server.drive, urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        operation = drive_words.operation(self.command, parts.path, self.query)
        if operation == "upload.chunk" and "*/" in self.headers.get("Content-Range", ""):
            operation = "upload.query"
        fault = Fault() if operation.startswith("_") else drive.take_fault(operation)
        self.body = self.rfile.read(length)
        time.sleep(fault.delay_s)
        try:
            if fault.cut == "before":
                raise ConnectionAbortedError
            self._middle(operation, fault)
            if fault.status:
                after = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
                raise error(fault.status, fault.reason, after)
            raise self._answer(operation, parts.path, fault)
        except Answer as answer:
            self._log(operation, answer.status, 0 if fault.cut == "after" else len(answer.body))
            if fault.cut == "after":
                self.close_connection = True
                return
            self._send(answer, fault)
        except ConnectionAbortedError:
            self._log(operation, 0, 0)
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def log_message(self, *_: object) -> None:
        pass

    def _log(self, operation: str, status: int, sent_bytes: int) -> None:
        with self.server.drive.lock:
            self.server.drive.log.append(Request(operation, status, len(self.body), sent_bytes))

    def _middle(self, operation: str, fault: Fault) -> None:
        """A chunk that breaks off: what came in whole grains is kept, and nobody is answered."""
        if fault.cut == "middle" and operation == "upload.chunk":
            session = self._session()
            first = drive_words.first_byte(self.headers.get("Content-Range", ""))
            if first == len(session.data):
                session.data += self.body[: fault.keep_bytes // _GRAIN_BYTES * _GRAIN_BYTES]
            raise ConnectionAbortedError
        if fault.end_session:
            self.server.drive.sessions.pop(self.query.get("upload_id", ""), None)
        if fault.damage and self.body and operation.startswith("upload."):
            self.body = self.body[:-1] + bytes([self.body[-1] ^ 1])

    def _send(self, answer: Answer, fault: Fault) -> None:
        body = answer.body
        if fault.damage and self.query.get("alt") == "media" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Type" not in answer.headers and body:
            self.send_header("Content-Type", "application/json; charset=UTF-8")
        if answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault.cut == "middle":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)

    # --- who may, and what -------------------------------------------------------------------------

    def _answer(self, operation: str, path: str, fault: Fault) -> Answer:
        drive = self.server.drive
        if operation.startswith("_"):
            return self._double(operation)
        if operation == "token":
            return self._token()
        if operation in ("upload.chunk", "upload.query"):
            return self._chunk()  # the session's address is itself the permission
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in drive.tokens:
            return error(401, "authError", {"WWW-Authenticate": "Bearer"})
        try:
            method = getattr(self, "_" + operation.replace(".", "_"), None)
            if method is None:
                return error(404, "notFound")
            answer: Answer = method(path.rpartition("/")[2])
            return answer
        except NoSuchFile:
            return error(404, "notFound")
        except QuotaExceeded:
            return error(403, "storageQuotaExceeded")
        except (drive_query.BadQuery, ValueError):
            return error(400, "invalid")

    def _token(self) -> Answer:
        form = {key: values[-1] for key, values in parse_qs(self.body.decode()).items()}
        with self.server.drive.lock:
            if form.get("refresh_token") not in self.server.drive.refresh_tokens:
                return Answer(400, {"error": "invalid_grant", "error_description": "Token has been revoked."})
            token = "ya29." + secrets.token_hex(8)
            self.server.drive.tokens.add(token)
        return Answer(200, {"access_token": token, "expires_in": 3599, "token_type": "Bearer"})

    # --- metadata -----------------------------------------------------------------------------------

    def _about_get(self, _: str) -> Answer:
        if "fields" not in self.query:
            return error(400, "required")
        usage = self.server.drive.cloud.usage()
        quota = {"usage": str(usage.used), "usageInDrive": str(usage.used), "usageInDriveTrash": str(usage.trashed)}
        if usage.limit is not None:
            quota["limit"] = str(usage.limit)
        return Answer(200, drive_query.select({"kind": "drive#about", "storageQuota": quota}, self.query["fields"]))

    def _files_generateIds(self, _: str) -> Answer:
        return Answer(200, {"ids": [new_id() for _ in range(int(self.query.get("count", "10")))], "space": "drive"})

    def _files_list(self, _: str) -> Answer:
        drive = self.server.drive
        young = time.time() - drive.list_lag_s
        known = [entry for entry in drive.cloud.entries() if not drive.list_lag_s or entry.created <= young]
        found = drive_query.matches(self.query.get("q", "").replace("'root' in", f"'{ROOT_ID}' in"), known)
        if self.query.get("orderBy", "").startswith("modifiedTime"):
            found.sort(key=lambda entry: entry.modified, reverse=self.query["orderBy"].endswith(" desc"))
        size = min(int(self.query.get("pageSize", "100")), drive.page_size)
        start = int(self.query.get("pageToken", "0"))
        resource: dict[str, Any] = {"files": [drive_words.resource(entry) for entry in found[start : start + size]]}
        if start + size < len(found):
            resource["nextPageToken"] = str(start + size)
        return Answer(200, drive_query.select(resource, self.query.get("fields", f"files({_DEFAULT_FIELDS})")))

    def _files_get(self, file_id: str) -> Answer:
        if file_id == "root":
            folder = {"id": ROOT_ID, "name": "My Drive", "mimeType": drive_query.FOLDER_TYPE}
            return Answer(200, drive_query.select(folder, self.query.get("fields", _DEFAULT_FIELDS)))
        entry = self.server.drive.cloud.get(file_id)
        return self._media(entry) if self.query.get("alt") == "media" else self._file(entry)

    def _media(self, entry: Entry) -> Answer:
        data = self.server.drive.cloud.content(entry).read_bytes()
        headers = {"Content-Type": drive_query.FILE_TYPE}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None:
            return Answer(200, data, headers)
        first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
        if first >= len(data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _files_create(self, _: str) -> Answer:
        return self._file(self._made(json.loads(self.body or b"{}"), None))

    def _files_update(self, file_id: str) -> Answer:
        return self._file(self._changed(file_id, json.loads(self.body or b"{}"), None))

    def _files_delete(self, file_id: str) -> Answer:
        self.server.drive.cloud.delete(file_id)
        return Answer(204)

    def _files_emptyTrash(self, _: str) -> Answer:
        self.server.drive.cloud.empty_trash()
        return Answer(204)

    def _file(self, entry: Entry, fields: str = "") -> Answer:
        return Answer(
            200, drive_query.select(drive_words.resource(entry), fields or self.query.get("fields", _DEFAULT_FIELDS))
        )

    def _made(self, metadata: dict[str, Any], content: bytes | None) -> Entry:
        drive = self.server.drive
        parent = (metadata.get("parents") or ["root"])[0].replace("root", ROOT_ID, 1)
        wanted = metadata.get("id", "")
        with drive.lock:
            if wanted and any(entry.id == wanted for entry in drive.cloud.entries()):
                raise error(409, "fileIdInUse")
            return drive.cloud.create(
                metadata.get("name", "Untitled"), ROOT_ID if parent.startswith(ROOT_ID) else parent, content,
                folder=metadata.get("mimeType") == drive_query.FOLDER_TYPE,
                properties=metadata.get("appProperties"), file_id=wanted,
            )  # fmt: skip

    def _changed(self, file_id: str, metadata: dict[str, Any], content: bytes | None) -> Entry:
        return self.server.drive.cloud.update(
            file_id, content=content, name=metadata.get("name"), trashed=metadata.get("trashed"),
            properties=metadata.get("appProperties"), parent=self.query.get("addParents"),
        )  # fmt: skip

    # --- uploads ------------------------------------------------------------------------------------

    def _upload_create(self, _: str) -> Answer:
        return self._upload("")

    def _upload_update(self, file_id: str) -> Answer:
        self.server.drive.cloud.get(file_id)
        return self._upload(file_id)

    def _upload(self, file_id: str) -> Answer:
        if self.query["uploadType"] == "multipart":
            metadata, content = drive_words.related(self.headers["Content-Type"], self.body)
            if len(content) > _SMALL_BYTES:
                return error(413, "uploadTooLarge")
            return self._file(self._stored(file_id, metadata, content))
        name, size = secrets.token_urlsafe(16), self.headers.get("X-Upload-Content-Length")
        fields = self.query.get("fields", _DEFAULT_FIELDS)
        session = _Session(file_id, json.loads(self.body or b"{}"), int(size) if size else None, fields)
        self.server.drive.sessions[name] = session
        address = f"{self.server.drive.url}{urlsplit(self.path).path}?uploadType=resumable&upload_id={name}"
        return Answer(200, None, {"Location": address, "X-GUploader-UploadID": name})

    def _stored(self, file_id: str, metadata: dict[str, Any], content: bytes) -> Entry:
        return self._changed(file_id, metadata, content) if file_id else self._made(metadata, content)

    def _session(self) -> _Session:
        session = self.server.drive.sessions.get(self.query.get("upload_id", ""))
        if session is None:
            raise error(404, "notFound")
        return session

    def _chunk(self) -> Answer:
        session = self._session()
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", ""))
        if found is None:
            return error(400, "badRequest")
        if session.done is not None:
            return self._file(session.done, session.fields)
        if found[1] is None:
            return _incomplete(session)
        first, last, total = int(found[1]), int(found[2]), found[3]
        whole = total != "*" and last + 1 == int(total)
        if last - first + 1 != len(self.body) or (len(self.body) % _GRAIN_BYTES and not whole):
            return error(400, "badRequest")
        if first > len(session.data):
            return _incomplete(session)
        session.data += self.body[len(session.data) - first :]
        if not whole:
            return _incomplete(session)
        try:
            session.done = self._stored(session.file_id, session.metadata, bytes(session.data))
        except NoSuchFile:
            return error(404, "notFound")
        except QuotaExceeded:
            return error(403, "storageQuotaExceeded")
        return self._file(session.done, session.fields)

    # --- for a test in another process ----------------------------------------------------------------

    def _double(self, operation: str) -> Answer:
        drive = self.server.drive
        asked = json.loads(self.body or b"{}")
        if operation == "_double.faults":
            drive.fail_next(**asked)
        elif operation == "_double.settings":
            for name, value in asked.items():
                setattr(drive, name, set(value) if isinstance(value, list) else value)
        with drive.lock:
            return Answer(200, {"log": [asdict(request) for request in drive.log]})


def _incomplete(session: _Session) -> Answer:
    return Answer(308, None, {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    server = DriveServer(Cloud(args.folder), port=args.port)
    temp = args.port_file.with_suffix(".tmp")
    temp.write_text(server.url.rpartition(":")[2])
    os.replace(temp, args.port_file)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
