"""`bridgehead doctor`: each check says what it found."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import VerificationError
from run_control import bridge_control, doctor
from run_control.checks import FAIL, WARN
from run_control.project import Project


def _states(checks: list[doctor.Check]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


def test_a_sound_project_fails_nothing(fresh: Project) -> None:
    checks = doctor.examine(fresh.root)
    assert doctor.worst(checks) is None
    assert _states(checks)["project"] == _states(checks)["keys"] == "pass"


def test_outside_a_project_it_warns(tmp_path: Path) -> None:
    assert _states(doctor.examine(tmp_path))["project"] == "warn"


def test_a_mistake_in_the_project_file_fails(fresh: Project) -> None:
    fresh.file.write_text("[project]\n")
    checks = doctor.examine(fresh.root)
    assert _states(checks)["project"] == "fail"
    assert isinstance(doctor.worst(checks), VerificationError)


def test_keys_that_others_can_read_fail(fresh: Project) -> None:
    fresh.private.chmod(0o755)
    assert _states(doctor.examine(fresh.root))["keys"] == "fail"


def test_a_tool_that_is_missing_warns(fresh: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _states(doctor.examine(fresh.root))["cloudflared"] == "warn"


def test_the_owner_of_a_port_is_found() -> None:
    import os

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert bridge_control.port_owner(taken.getsockname()[1]) == os.getpid()


def test_the_default_port_is_one_of_the_checks(fresh: Project) -> None:
    [check] = [check for check in doctor.examine(fresh.root) if check.name == "port"]
    assert str(names.DEFAULT_PORT) in check.text


def test_what_of_the_payload_does_not_travel_is_told(fresh: Project) -> None:
    text = fresh.file.read_text()
    assert "include = [" in text
    (fresh.root / "my data.py").write_text("")
    (fresh.root / ".hidden.py").write_text("")
    head, _, rest = text.partition("include = [")
    fresh.file.write_text(head + 'include = ["*.py"]' + rest.partition("]")[2])
    found = [check for check in doctor.examine(fresh.root) if check.name == "payload"]
    assert [check.state for check in found] == [FAIL, WARN]
    assert (
        "'my data.py'" in found[0].text and "rename" in found[0].hint and "1 hidden file (.hidden.py)" in found[1].text
    )
