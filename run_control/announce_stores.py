"""Where the laptop leaves the bridge's address for VMs: the project's durable store, as this laptop reaches it.

The stores' own code is the VM's (vm_daemons.storage); it is imported when it is needed, since most commands never do.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bridge.project import ProjectView
from bridgehead import names
from bridgehead.errors import StoreDenied, StoreGone
from bridgehead.names import StoreKind
from bridgehead.records import StoreSpec
from run_control.project import Project

if TYPE_CHECKING:
    from vm_daemons.storage.objects import ObjectStore

_NOTEBOOKS_STORE = PurePosixPath("/content/drive/MyDrive/Bridgehead")  # what Colab's cell mounts when no path is named
_SIGN_IN = (
    "pip install google-auth, then gcloud auth application-default login"
    " --scopes=https://www.googleapis.com/auth/drive,https://www.googleapis.com/auth/cloud-platform"
)
_LAPTOP_PATH = f"set [store] laptop_path in {names.PROJECT_FILE} to that folder as this laptop sees it"
_S3_KEYS = "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the environment, then bridgehead down and up"
# Ours come first, then what the user's other tools take their keys from.
_S3_NAMES = (
    (names.SECRET_S3_KEY_ID, names.SECRET_S3_SECRET, names.SECRET_S3_TOKEN),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)


@dataclass(frozen=True)
class Target:
    """One store. `open` contacts nobody and raises StoreError or UsageError."""

    name: str  # for people
    open: Callable[[], ObjectStore]
    when_denied: str = ""  # the next step on this laptop; the store's own words are for a VM


def targets(project: Project, view: ProjectView, url: str) -> Iterator[Target]:
    """The stores that VMs which can use `url` look into."""
    if _is_folder(project.drive):
        yield Target("the local VMs' store", lambda: _folder(project.drive))
    spec, laptop_path = view.store, view.laptop_store
    if laptop_path:
        yield Target(laptop_path, lambda: _folder(Path(laptop_path).expanduser()))
    elif spec.kind == StoreKind.S3:
        yield Target(f"s3://{spec.bucket}", lambda: _bucket(spec), _S3_KEYS)
    elif spec.kind == StoreKind.DRIVE:
        yield Target("Google Drive", lambda: _drive(spec), _SIGN_IN)
    elif spec.folder and _is_folder(Path(spec.folder)):  # of a VM on this machine, or a disk that both see
        yield Target(spec.folder, lambda: _folder(Path(spec.folder)))
    elif not _is_loopback(url):  # a VM that can use a loopback address would have its store here
        yield Target("the mounted Google Drive", lambda: _drive_of_mount(spec), f"{_LAPTOP_PATH}; or {_SIGN_IN}")


def _folder(root: Path) -> ObjectStore:
    from vm_daemons.storage.folder_store import FolderStore

    if not _is_folder(root):
        raise StoreGone(f"this laptop has no folder {root}", hint="start what mounts it here, or mend laptop_path")
    return FolderStore(root, proves=False)


def _bucket(spec: StoreSpec) -> ObjectStore:
    from vm_daemons.storage.s3_store import S3Store

    for key_id, secret, token in _S3_NAMES:
        if os.environ.get(key_id) and os.environ.get(secret):
            keys = {"access_key_id": os.environ[key_id], "secret_access_key": os.environ[secret]}
            return S3Store(spec, {**keys, "session_token": os.environ.get(token, "")})
    raise StoreDenied("this laptop has no keys for the object store", hint=_S3_KEYS)


def _drive(spec: StoreSpec) -> ObjectStore:
    from vm_daemons.storage.drive_api import DriveApi

    return DriveApi(spec, _drive_credentials())


def _drive_of_mount(spec: StoreSpec) -> ObjectStore:
    """Drive's API, for the folder that a VM has mounted."""
    from vm_daemons.storage.drive_api import DriveApi

    root = PurePosixPath(spec.folder) if spec.folder else _NOTEBOOKS_STORE
    if not {"MyDrive", "My Drive"} & set(root.parts):
        raise StoreGone(f"this laptop has no folder {root}", hint=_LAPTOP_PATH)
    return DriveApi.for_mount(Path(root), spec, _drive_credentials())


def _drive_credentials() -> dict[str, str] | None:
    """None: the user's application default credentials, through google-auth."""
    text = os.environ.get(names.SECRET_DRIVE)
    return {"drive_credentials": text} if text else None


def _is_folder(path: Path) -> bool:
    """A mount that is dead counts as one: what is wrong with it is told when it is used."""
    try:
        return path.is_dir()
    except OSError:
        return True


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
