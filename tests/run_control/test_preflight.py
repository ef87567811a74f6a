"""The checks of `bridgehead doctor` that are about a launch and need no VM."""

from __future__ import annotations

import dataclasses
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_support import Seeded

from bridgehead import names
from bridgehead.names import RunState
from run_control import doctor, init, memos, preflight, views
from run_control.checks import PASS, REFUSE, WARN, Check
from run_control.project import Project
from s3_rig import BUCKET, s3_endpoint


def _named(project: Project) -> dict[str, Check]:
    return {check.name: check for check in preflight.examine(project)}


def _edit(project: Project, old: str, new: str) -> None:
    text = project.file.read_text()
    assert old in text
    project.file.write_text(text.replace(old, new))


def test_what_init_makes_passes(fresh: Project) -> None:
    found = _named(fresh)
    assert {check.state for check in found.values()} == {PASS}
    assert set(found) == {"plan", "prices", "credentials", "temp", "torch", "export"}
    assert "skipped" in found["credentials"].text
    assert not [check for check in doctor.examine(fresh.root) if check.state == REFUSE]


def test_a_stage_that_would_be_refused_is_named_with_what_to_do(fresh: Project) -> None:
    fresh.file.write_text(fresh.file.read_text() + '\n[money]\nprovider = "colab"\ngpu = "H100"\n')
    found = _named(fresh)
    assert found["plan pretrain"].state == REFUSE and "no figure for H100" in found["plan pretrain"].text
    worst = doctor.worst(doctor.examine(fresh.root))
    assert worst is not None and worst.exit_code == 9


def test_a_stale_price_is_a_warning(fresh: Project) -> None:
    fresh.file.write_text(fresh.file.read_text() + '\n[money]\nprovider = "colab"\ngpu = "L4"\nmax_hours = 1\n')
    found = _named(fresh)
    assert found["prices"].state == WARN and "stale" in found["prices"].text and found["plan"].state == PASS


@pytest.mark.parametrize(("line", "state"), [("torch==2.1", REFUSE), ("TorchVision", REFUSE), ("torchmetrics", PASS)])
def test_requirements_that_would_move_torch_are_refused(line: str, state: str, fresh: Project) -> None:
    _edit(fresh, '"seglearn==1.2.5", ', f'"seglearn==1.2.5", "{line}", ')
    assert _named(fresh)["torch"].state == state


def test_what_an_export_needs_and_the_image_lacks_is_told_at_once(fresh: Project) -> None:
    _edit(fresh, '"onnx>=1.19", "onnxscript>=0.6.2", ', "")
    assert _named(fresh)["export"].state == WARN and "onnx, onnxscript" in _named(fresh)["export"].text


def test_a_store_is_looked_at_with_a_canary(fresh: Project, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    fresh.file.write_text(fresh.file.read_text() + f'\n[store]\nkind = "folder"\npath = "{tmp_path}/disk"\n')
    assert _named(fresh)["store"].state == PASS
    assert list((tmp_path / "disk").rglob("*.tmp*")) == []
    _edit(fresh, f"{tmp_path}/disk", f"{tmp_path}/gone")
    assert "store" not in _named(fresh)  # it may well be a disk that only the VM has


def test_a_bucket_without_keys_on_this_laptop_is_a_warning(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", names.SECRET_S3_KEY_ID, names.SECRET_S3_SECRET):
        monkeypatch.delenv(name, raising=False)
    fresh.file.write_text(fresh.file.read_text() + '\n[store]\nkind = "s3"\nbucket = "b"\n')
    found = _named(fresh)
    assert found["credentials"].state == WARN and "no keys" in found["credentials"].text and found["credentials"].hint
    assert "store" not in found


class _Refuses(http.server.BaseHTTPRequestHandler):
    """An object store that knows no such key."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT

    def log_message(self, *_arguments: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(100)


def _with_bucket(project: Project, url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    monkeypatch.setenv(names.SECRET_S3_KEY_ID, "AKIDTEST")
    monkeypatch.setenv(names.SECRET_S3_SECRET, "hidden-secret")
    store = f'\n[store]\nkind = "s3"\nbucket = "{BUCKET}"\nendpoint = "{url}"\nregion = "us-east-1"\n'
    project.file.write_text(project.file.read_text() + store)
    return _named(project)


def test_keys_that_the_store_refuses_are_found_by_a_real_call(
    fresh: Project, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _with_bucket(fresh, refusing, monkeypatch)
    assert found["credentials"].state == WARN and found["credentials"].hint and "store" not in found
    assert "hidden-secret" not in str(found)


def test_keys_that_the_store_takes_pass_by_a_real_call(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_endpoint() as url:
        found = _with_bucket(fresh, url, monkeypatch)
    assert (found["credentials"].state, found["store"].state) == (PASS, PASS)


def test_a_memo_of_the_last_weeks_is_quoted(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    view = views.run(seeded.project, run_id)
    now = time.time()
    failed = dataclasses.replace(view, state=RunState.FAILED, failure_class="mount_lost", updated=now)
    memos.note(seeded.project, failed, {"verdict": {"class": "mount_lost"}}, now)
    found = _named(seeded.project)["memos"]
    assert found.state == WARN and "mount" in found.text


def test_a_project_file_with_a_mistake_is_doctors_own_business(tmp_path: Path) -> None:
    made, _ = init.init(tmp_path / "watch")
    made.file.write_text("[project\n")
    assert preflight.examine(made) == []
