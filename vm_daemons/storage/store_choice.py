"""Which ObjectStore this VM uses: what [store] of the project file says, and what the cell found."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import StoreError, UsageError
from bridgehead.names import StoreKind
from bridgehead.records import StoreSpec
from vm_daemons.home import VmHome
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import ObjectStore

SPEC_KEY = "store_spec"  # of vm.json


def spec_of(home: VmHome) -> StoreSpec:
    """The project's [store]; a mount when the laptop has told nothing. Raises StoreError when it can't be read."""
    told = home.record().get(SPEC_KEY)
    if told is None:
        return StoreSpec()
    try:
        return StoreSpec.from_json(told)
    except UsageError as error:
        raise StoreError(f"[store] of the project can't be read: {error.message}") from None


def is_configured(home: VmHome) -> bool:
    """Whether there is a store at all; how it is, is another question."""
    try:
        return spec_of(home).kind in (StoreKind.DRIVE, StoreKind.S3) or home.store_path() is not None
    except StoreError:
        return True


def stamp(home: VmHome) -> tuple[str, str, int]:
    """Changes when another store was chosen or somebody signed in anew."""
    record = home.record()
    secrets = files.plain_stat(home.state / names.VM_STORE_SECRETS)
    return str(record.get(SPEC_KEY)), str(record.get("store")), secrets.st_mtime_ns if secrets else 0


def choose(home: VmHome) -> ObjectStore | None:
    """A store of its own for each caller: one is not for several threads. None when none is configured.

    Raises StoreError (StoreDenied when credentials are missing).
    """
    spec = spec_of(home)
    if spec.kind == StoreKind.DRIVE:
        made: ObjectStore = _class(spec, "drive_api", "DriveApi")(spec, credentials(home))
        return made
    if spec.kind == StoreKind.S3:
        made = _class(spec, "s3_store", "S3Store")(spec, credentials(home))
        return made
    root = home.store_path()
    if root is None:
        return None
    return FolderStore(Path(root), proves=spec.kind == StoreKind.FOLDER)


def second_look(home: VmHome) -> ObjectStore | None:
    """Another path to what lies on the mount: the Drive API, where [store] confirm and credentials allow it.

    Raises StoreError (StoreDenied when credentials are missing).
    """
    spec, root = spec_of(home), home.store_path()
    if spec.kind != StoreKind.MOUNT or not spec.confirm or root is None:
        return None
    known = credentials(home)
    # Without a sign-in of its own the API can only say no: the level then stays at "mounted", and says so.
    if not {"MyDrive", "My Drive"} & set(root.parts):
        return None
    made: ObjectStore = _class(spec, "drive_api", "DriveApi").for_mount(root, spec, known)
    return made


def credentials(home: VmHome) -> dict[str, str]:
    """What the cell got from notebook secrets; empty when nothing."""
    told = files.read_json(home.state / names.VM_STORE_SECRETS)
    if not isinstance(told, dict):
        return {}
    return {str(name): str(value) for name, value in told.items() if isinstance(value, str)}


def project_of(home: VmHome) -> str:
    """The folder of the store that is this project's own."""
    return str(home.record().get("project") or "project")


def _class(spec: StoreSpec, module: str, name: str) -> Any:
    """Imported only where it is used: a VM with a mount needs none of it."""
    try:
        return getattr(importlib.import_module(f"vm_daemons.storage.{module}"), name)
    except ImportError:
        raise StoreError(f"what the store kind {spec.kind!r} needs is not in this ship") from None
