"""What the store stands on in tests: a VM's home beside a folder, S3 behind a gate, a Google account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from doubles.drive_v3 import DriveServer
from doubles.google_cloud import Cloud
from drive_rig import drive_api, token_file
from s3_rig import BUCKET, DEADLINE_S, Gate, gate_before, s3_endpoint
from vm_daemons.home import VmHome
from vm_daemons.storage.drive_api import DriveApi
from vm_run_support import run_folder, vm_home


@pytest.fixture
def home(tmp_path: Path, drive: Path) -> VmHome:
    return vm_home(tmp_path / "vm-a", store=drive)


@pytest.fixture
def run_dir(home: VmHome) -> Path:
    return run_folder(home, "python train.py")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_endpoint() as url:
        yield url


@pytest.fixture
def gate(endpoint: str) -> Iterator[Gate]:
    """An empty bucket behind a gate."""
    requests.post(f"{endpoint}/moto-api/reset", timeout=DEADLINE_S)
    requests.put(f"{endpoint}/{BUCKET}", timeout=DEADLINE_S)
    with gate_before(endpoint) as gate:
        yield gate


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def server(cloud: Cloud) -> Iterator[DriveServer]:
    with DriveServer(cloud) as running:
        yield running


@pytest.fixture
def api(server: DriveServer, tmp_path: Path) -> DriveApi:
    return drive_api(server, token_file(tmp_path))
