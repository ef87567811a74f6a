"""`bridgehead doctor`: named checks of this laptop and this project."""

from __future__ import annotations

import importlib.util
import shutil
import stat
import sys
import urllib.request
from pathlib import Path

from bridge.tunnels.spec import TunnelSpec
from bridgehead import names
from bridgehead.errors import BridgeDownError, BridgeheadError, ProjectError, VerificationError
from run_control import (
    bridge_control,
    doctor_tunnels,
    payload_words,
    preflight,
    private_files,
    project,
    project_file,
)
from run_control.checks import FAIL, PASS, REFUSE, WARN, Check
from run_control.project import Project

_DISK_FAIL_BYTES = 2**28
_DISK_WARN_BYTES = 2 * 2**30
_HEALTH_TIMEOUT_S = 5
_PYTHON_MIN = (3, 11)


def examine(folder: Path | None) -> list[Check]:
    """Every check, in the order in which a person would look."""
    about_project, root = _about_project(folder)
    return [
        _check_python(),
        *about_project,
        _check_disk(
            root / names.IN_FOLDER if (root / names.IN_FOLDER).is_dir() else root
        ),  # it may be a disk of its own
        *_check_tunnels(folder),
        *_preflight(folder),
        _check_local_runtime(),
    ]


def _preflight(folder: Path | None) -> list[Check]:
    """What of a launch can be looked at without a VM."""
    try:
        return preflight.examine(project.find(folder))
    except ProjectError:
        return []


def _about_project(folder: Path | None) -> tuple[list[Check], Path]:
    try:
        found = project.find(folder)
    except ProjectError as error:
        return [Check("project", WARN, error.message, error.hint)], folder or Path.cwd()
    checks = [_check_project(found), *_check_payload(found), _check_private(found), _check_bridge(found)]
    return checks, found.root


def _check_python() -> Check:
    version = sys.version_info
    text = f"Python {version[0]}.{version[1]}.{version[2]}"
    if tuple(version) < _PYTHON_MIN:
        return Check("python", FAIL, text, f"Bridgehead needs {_PYTHON_MIN[0]}.{_PYTHON_MIN[1]} or newer")
    return Check("python", PASS, text)


def _check_project(found: Project) -> Check:
    try:
        view = project_file.load(found.root)
    except ProjectError as error:
        return Check("project", FAIL, error.message, error.hint)
    return Check("project", PASS, f"{view.name}: {', '.join(view.stages) or 'no stage yet'}")


def _check_payload(found: Project) -> list[Check]:
    """Nothing where there is nothing to say, or the project file has a mistake, which is told above."""
    try:
        lines = payload_words.lines(found)
    except ProjectError:
        return []
    return [Check("payload", FAIL if " next: " in line else WARN, *line.partition(" next: ")[::2]) for line in lines]


def _check_disk(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    text = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < _DISK_FAIL_BYTES:
        return Check("disk", FAIL, text, "make room: logs and bundles arrive here")
    return Check("disk", WARN if free_bytes < _DISK_WARN_BYTES else PASS, text)


def _check_private(found: Project) -> Check:
    odd = private_files.odd_one(found)
    if odd:
        return Check("keys", FAIL, odd, private_files.HINT)
    for path in (found.private, found.private / names.KEYS_FILE, found.notebook):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            return Check("keys", FAIL, f"others can read {path}", f"chmod go= {path}")
    return Check("keys", PASS, "only you can read the keys")


def _check_bridge(found: Project) -> Check:
    live = bridge_control.find(found)
    if live is not None and not live.url:
        return Check("port", FAIL, bridge_control.record_lost(found, live), bridge_control.RESTART)
    if live is not None:
        return _answers(live.port)
    try:
        bridge_control.refuse_taken_port(names.DEFAULT_PORT)
    except BridgeDownError as error:
        return Check("port", WARN, error.message, error.hint)
    return Check("port", PASS, f"port {names.DEFAULT_PORT} is free; the bridge is not up")


def _answers(port: int) -> Check:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{names.HEALTH_PATH}", timeout=_HEALTH_TIMEOUT_S):
            return Check("port", PASS, f"the bridge answers on port {port}")
    except OSError as error:
        return Check("port", FAIL, f"the bridge on port {port} does not answer: {error}", "bridgehead down, then up")


def _check_tunnels(folder: Path | None) -> list[Check]:
    """Of the project's [tunnel]; without a sound project, of the defaults."""
    try:
        found = project.find(folder)
        spec = project_file.load(found.root).tunnel
    except ProjectError:
        return doctor_tunnels.examine(TunnelSpec())
    live = bridge_control.find(found)
    return doctor_tunnels.examine(spec, in_use=live.tunnel if live is not None and live.url else "")


def _check_local_runtime() -> Check:
    missing = [name for name in ("jupyter_client", "ipykernel") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"{' and '.join(missing)} can't be imported"
        return Check("local runtime", WARN, text, "pip install 'bridgehead[local]'")
    return Check("local runtime", PASS, "jupyter_client and ipykernel are here")


def worst(checks: list[Check]) -> BridgeheadError | None:
    """The error to end with when a check failed."""
    failed = [check for check in checks if check.state in (FAIL, REFUSE)]
    if not failed:
        return None
    return VerificationError(f"{failed[0].name}: {failed[0].text}", hint=failed[0].hint)
