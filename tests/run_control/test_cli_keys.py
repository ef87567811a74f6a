"""`bridgehead keys` and `bridgehead audit`: a running bridge heeds them at once, and no secret is on show."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Answer, in_process

from bridge.keys import KeyStore
from bridge_client import Client
from bridgehead import names
from bridgehead.pairing import decode
from run_control import bridge_control, init
from run_control.project import Project
from support import wait_until

VM = "vm-abc123"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project, _ = init.init(tmp_path_factory.mktemp("up") / "watch")
    try:
        bridge_control.start(project, port=0, tunnel="none")
        yield project
    finally:
        bridge_control.stop(project)


def _say(capsys: pytest.CaptureFixture[str], project: Project, *words: str) -> Answer:
    answer = in_process(capsys, "-C", str(project.root), *words)
    for item in _store(project).all():
        for secret in (item.key, item.salt):
            if secret:
                shown = answer.out + answer.err
                assert base64.b64encode(secret).decode() not in shown and secret.hex() not in shown
    return answer


def _store(project: Project) -> KeyStore:
    return KeyStore(project.private / names.KEYS_FILE)


def _client(project: Project, key_id: str) -> Client:
    live = bridge_control.need(project)
    key = _store(project).key(key_id) or bytes(32)
    return Client(live.port, key_id, key)


def _notebook_code(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    line = next(cell["source"][0] for cell in cells if cell["cell_type"] == "code")
    return str(line).split('"')[1]


def test_a_new_key_works_at_once_and_its_notebook_is_its_owners_alone(
    up: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _say(capsys, up, "keys", "new", "--name", "narrow", "--no-sh", "--json").data
    assert (data["name"], data["sh"]) == ("narrow", False)
    assert _client(up, data["id"]).get("/queue.txt").status == 200
    path = Path(data["notebook"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pairing = decode(_notebook_code(path))
    assert (pairing.key_id, pairing.allow_sh) == (data["id"], False)
    assert decode(_notebook_code(up.notebook)).key_id == _store(up).current()[0]


def test_the_list_tells_who_uses_which_key(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    made = _say(capsys, up, "keys", "new", "--name", "listed", "--json").data["id"]
    assert _client(up, made).get(f"/queue?vm={VM}-1&after=0&wait=0").status == 200
    rows = {row["id"]: row for row in _say(capsys, up, "keys", "list", "--json").data["keys"]}
    assert rows[made]["vms"] == [f"{VM}-1"] and rows[made]["last_used"] > rows[made]["made"] > 0
    assert rows[made]["state"] == "active" and rows[made]["sh"] is True and not rows[made]["current"]
    text = _say(capsys, up, "keys", "list").out
    assert "listed" in text and f"{VM}-1" in text and "active, current" in text


def test_a_revoked_key_is_refused_at_once(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    made = _say(capsys, up, "keys", "new", "--name", "leaked", "--json").data["id"]
    client = _client(up, made)
    assert client.get("/queue.txt").status == 200
    answer = _say(capsys, up, "keys", "revoke", "leaked")
    assert answer.code == 0 and made in answer.out
    assert client.get("/queue.txt").status == 401
    again = _say(capsys, up, "keys", "revoke", made)
    assert again.code == 2 and "revoked already" in again.err and "keys list" in again.err


def test_revoking_the_current_key_writes_the_notebook_anew(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    old = _store(up).current()[0]
    data = _say(capsys, up, "keys", "revoke", old, "--json").data
    assert data["revoked"] == [old] and data["current"] == _store(up).current()[0] != old
    assert decode(_notebook_code(up.notebook)).key_id == data["current"]


def test_a_rotated_key_and_its_successor_are_good_and_the_notebook_is_written_anew(
    up: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    old = _store(up).current()[0]
    data = _say(capsys, up, "keys", "rotate", "--json").data
    assert data["after"] == old and _store(up).current()[0] == data["id"]
    assert {_client(up, key_id).get("/queue.txt").status for key_id in (old, data["id"])} == {200}
    pairing = decode(_notebook_code(up.notebook))
    assert pairing.key_id == data["id"] and pairing.former == (_store(up).key(old),)
    twice = _say(capsys, up, "keys", "rotate", old)
    assert twice.code == 2 and "is rotating" in twice.err


def test_a_notebook_for_one_key_can_be_asked_for(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    made = _say(capsys, up, "keys", "new", "--name", "asked", "--json").data["id"]
    path = _say(capsys, up, "notebook", "--key", "asked", "--json").data["notebook"]
    assert decode(_notebook_code(Path(path))).key_id == made


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("keys", "revoke", "nothing"), 6, "no key 'nothing'"),
        (("keys", "revoke"), 2, "KEY"),
        (("keys", "rotate", "--grace", "soon"), 2, "not a duration"),
        (("keys", "new", "--name", " x"), 2, "a name has"),
        (("notebook", "--key", "nothing"), 6, "no key 'nothing'"),
        (("audit", "--run", "nothing"), 6, "no run 'nothing'"),
    ],
)
def test_bad_input_is_told_in_words(
    up: Project, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str
) -> None:
    answer = _say(capsys, up, *words)
    assert answer.code == code and told in answer.err and "Traceback" not in answer.err


def test_the_audit_tells_who_queued_a_run_and_who_made_a_key(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = _say(capsys, up, "run", "pretrain", "epochs=2", "--json").data["run_id"]
    with up.queue.open("a") as handle:
        handle.write("run:pretrain epochs=3\n")
    made = _say(capsys, up, "keys", "new", "--json").data["id"]

    def lines() -> list[dict[str, object]]:
        found = _say(capsys, up, "audit", "--json").data["lines"]
        assert isinstance(found, list)
        return found if any(line.get("line") == "run:pretrain epochs=3" for line in found) else []

    found = wait_until(lines, 30, what="the line in the audit file")
    taken = {str(line["line"]): line for line in found if line["event"] == "taken"}
    queued_by = taken["run:pretrain epochs=2"]["queued_by"]
    assert isinstance(queued_by, dict) and queued_by["via"] == "cli" and "@" in queued_by["user"]
    assert taken["run:pretrain epochs=3"]["queued_by"] == {"via": names.QUEUE_FILE}
    assert any(line["event"] == "key made" and line["key_id"] == made for line in found)
    assert run_id in _say(capsys, up, "audit", "--run", run_id, "--json").out
    mine = _say(capsys, up, "audit", "--run", run_id, "--json").data["lines"]
    assert {line["run_id"] for line in mine} == {run_id}
    assert "run:pretrain epochs=2" in _say(capsys, up, "audit").out


def test_the_chain_is_checked_and_an_edit_exits_9(fresh: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        assert _say(capsys, fresh, "keys", "new", "--name", name).code == 0
    answer = _say(capsys, fresh, "audit", "--verify")
    assert answer.code == 0 and "4 lines" in answer.out  # with the first key's own
    path = fresh.private / names.AUDIT_FILE
    path.write_bytes(path.read_bytes().replace(b'"one"', b'"ONE"'))
    answer = _say(capsys, fresh, "audit", "--verify", "--json")
    assert answer.code == 9 and not answer.json["ok"]
    assert f"{names.AUDIT_FILE}:3" in answer.json["data"]["problems"][0]


def test_keys_and_audit_work_before_the_first_up(fresh: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert _say(capsys, fresh, "audit", "--json").data["lines"] == []
    answer = _say(capsys, fresh, "keys", "new", "--name", "early", "--json")
    assert answer.data["notebook"] == ""
    assert [row["name"] for row in _say(capsys, fresh, "keys", "list", "--json").data["keys"]] == ["", "early"]
