"""The VM side on the Pythons that notebook images bring: boot, both daemons, and a stage that checkpoints."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bridge import boot_archive
from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names, processes
from bridgehead.records import StageSpec
from support import wait_until
from vm_daemons.home import VmHome

PURE = ("requests", "urllib3", "idna", "certifi", "charset_normalizer")
STAGE = """\
import sys, bridgehead
run = bridgehead.current_run()
run.progress(step=1, total_steps=1)
with run.checkpoint(1) as folder: (folder / "state.bin").write_bytes(b"x" * 1000)
run.artifact("version.txt").write_text(f"{sys.version_info[0]}.{sys.version_info[1]}")
run.results({"done": True})
"""
BOOT = "import sys; from vm_daemons import boot; from vm_daemons.home import VmHome; "
BOOT += "boot.boot(VmHome.from_environment(), sys.stdin.read())"


def _interpreter(version: str) -> Path | None:
    """That Python, on PATH or below pyenv, when it starts."""
    candidates = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    for path in candidates:
        if subprocess.run([path, "-c", ""], capture_output=True, timeout=30).returncode == 0:
            return path
    return None


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(STAGE)
    view = ProjectView("demo", {"train": StageSpec("train", "python train.py")}, payload_include=["*.py"])
    with live_bridge(root, load_project=lambda: view) as bridge:
        yield bridge


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_boot_daemons_and_a_stage(version: str, live: LiveBridge, tmp_path: Path) -> None:
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    python = _with_requests(python, tmp_path / "venv")
    env = _environment(tmp_path, live)
    code = live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}").encode()
    try:
        booted = subprocess.run(
            [python, "-c", BOOT], env=env, input=code, text=True, capture_output=True, timeout=60, cwd=tmp_path
        )
        assert booted.returncode == 0, booted.stdout + booted.stderr
        (live.root / names.QUEUE_FILE).write_text("run:train\n")
        run = wait_until(lambda: next(iter(live.bridge.ledger.commands()), None), 20, what="the line to be taken")
        wait_until(lambda: live.bridge.ledger.find_run(run.run_id).ended, 40, what="the run to end")
    finally:
        for pid in processes.tagged(names.ENV_LOCAL_VM, str(tmp_path)):
            os.kill(pid, signal.SIGKILL)
    arrived = live.arrivals / run.run_id
    assert files.read_json(arrived / names.EXIT)["state"] == names.RunState.DONE
    assert (arrived / names.ARTIFACTS / "version.txt").read_text() == version
    committed = list(
        (tmp_path / "drive" / "demo" / "runs" / run.run_id / names.CHECKPOINTS).glob(f"slot-*/{names.SLOT_COMMIT}")
    )
    assert len(committed) == 1


def _with_requests(python: Path, folder: Path) -> Path:
    """A virtual environment that holds requests and nothing else, as the packages of a notebook image do."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in PURE:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    return folder / "bin" / "python"


def _environment(tmp_path: Path, live: LiveBridge) -> dict[str, str]:
    """As after the cell's first lines: the boot archive is unpacked, and our code comes from there."""
    ship = VmHome(tmp_path / "vm").ship(live.bridge.boot_sha256)
    with zipfile.ZipFile(io.BytesIO(boot_archive.build().data)) as archive:
        archive.extractall(ship)
    keep = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG")}
    return {
        **keep,
        "PYTHONPATH": str(ship),
        names.ENV_HOME: str(tmp_path / "vm"),
        names.ENV_STORE: str(tmp_path / "drive"),
        names.ENV_LOCAL_VM: str(tmp_path),
    }
