"""What VMs hear of the owner's wishes about uploads."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from bridge.project import ProjectView
from bridge.upload_rules import UploadRules
from bridge_client import VM, live_bridge, project
from bridgehead import files, names, signing
from bridgehead.errors import ProjectError
from bridgehead.records import Heartbeat, VmRules


def test_a_heartbeat_is_answered_with_signed_pause_and_limit_and_a_pause_outlives_the_bridge(tmp_path: Path) -> None:
    limited = dataclasses.replace(project(), vm=VmRules(upload_mb_s=2.5))
    heard = []
    for _ in range(2):
        with live_bridge(tmp_path, load_project=lambda: limited) as live:
            client = live.client()
            beat = files.canonical_json(Heartbeat(VM, "boot", time.time()).to_json())
            answer = client.ask("POST", f"/vms/{VM}/heartbeat", beat)
            heard.append(signing.open_document(client.key, "hints", answer.json)["uploads"])
        (tmp_path / names.PRIVATE_FOLDER / names.UPLOADS_PAUSED).touch()
    assert heard == [{"paused": False, "mb_s": 2.5}, {"paused": True, "mb_s": 2.5}]


def test_a_mistake_in_the_project_file_leaves_what_it_said_before(tmp_path: Path) -> None:
    def load() -> ProjectView:
        raise ProjectError("a mistake")

    rules = UploadRules(tmp_path, load)
    assert rules.hints() == {"paused": False, "mb_s": 0.0}
    assert rules.log_max_bytes() == VmRules().log_max_mb * 2**20
