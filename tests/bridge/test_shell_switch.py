"""sh: switched off: for a project, or for a pairing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ledger_support import Clock

from bridge.ledger import Ledger
from bridge.project import ProjectView
from bridge.queue_file import QueueReader
from bridge_client import LiveBridge, live_bridge, project
from bridgehead import names
from bridgehead.errors import ProjectError
from bridgehead.queue_lines import encode_shell
from support import wait_until

SHELL = encode_shell("nvidia-smi")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / names.LEDGER_FILE, clock=Clock())
    made.bind_vm("vm-any", "k-1", "k-1", allow_sh=True)
    made.bind_vm("vm-none", "k-2", "k-2", allow_sh=False)
    return made


def test_a_project_that_switched_it_off_rejects_the_line_with_the_reason(ledger: Ledger) -> None:
    [row] = ledger.take([(1, SHELL)], ProjectView("demo", allow_sh=False))
    assert row.state == "rejected" and "switched off" in row.reason and names.PROJECT_FILE in row.reason
    assert ledger.deliver("vm-any", 0) == []


def test_a_line_for_a_vm_that_was_paired_without_it_is_rejected(ledger: Ledger) -> None:
    refused, fine = ledger.take([(1, f"@vm-none {SHELL}"), (2, f"@vm-any {SHELL}")], ProjectView("demo"))
    assert refused.state == "rejected" and "vm-none was paired with a key that does not allow sh:" in refused.reason
    assert [command.id for command in ledger.deliver("vm-any", 0)] == [fine.id]


def test_a_line_for_any_vm_goes_to_one_that_was_paired_for_it(ledger: Ledger) -> None:
    [row] = ledger.take([(1, SHELL)], ProjectView("demo"))
    assert ledger.deliver("vm-none", 0) == []
    assert [command.id for command in ledger.deliver("vm-any", 0)] == [row.id]


def test_with_no_pairing_for_it_the_line_is_rejected(ledger: Ledger) -> None:
    [row] = ledger.take([(1, SHELL)], ProjectView("demo", pairings_allow_sh=False))
    assert row.state == "rejected" and "keys new" in row.reason


def test_a_line_waits_while_nobody_can_tell_whether_it_is_switched_off(ledger: Ledger) -> None:
    views = iter([ProjectError("a mistake"), ProjectView("demo", allow_sh=False)])

    def load() -> ProjectView:
        view = next(views)
        if isinstance(view, ProjectError):
            raise view
        return view

    reader = QueueReader(ledger, load, names.QUEUE_FILE)
    content = f"{SHELL}\n".encode()
    assert reader.process(content, settled=True) and ledger.commands() == []
    assert "wait until the project file is mended" in ledger.notes()[-1].text
    assert not reader.process(content, settled=True)
    assert [row.state for row in ledger.commands()] == ["rejected"]


def test_a_running_bridge_rejects_the_line_once_its_only_pairing_has_no_sh(tmp_path: Path) -> None:
    with live_bridge(tmp_path) as live:
        keys = live.bridge.keys
        keys.make("narrow", allow_sh=False)
        _queue(live, SHELL)
        assert wait_until(lambda: live.bridge.ledger.commands(), 20)[0].state == "queued"
        narrow = keys.find("narrow")
        client = live.client()
        client.key_id, client.key = narrow.id, narrow.key
        assert client.get("/queue?vm=vm-none&after=0&wait=0").json["commands"] == []


def test_manifest_and_hints_tell_the_vm_of_the_switch(tmp_path: Path) -> None:
    view = dataclasses.replace(project(), allow_sh=False)
    with live_bridge(tmp_path, load_project=lambda: view) as live:
        assert live.client().get("/serve/manifest.json").json["body"]["allow_sh"] is False
        wait_until(lambda: live.bridge._permits.project_allows_sh is False, 20)


def _queue(live: LiveBridge, line: str) -> None:
    with (live.root / names.QUEUE_FILE).open("a") as handle:
        handle.write(line + "\n")
