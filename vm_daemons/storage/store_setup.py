"""Which durable store this VM uses, settled by the cell: only it can mount Drive, sign in and read notebook secrets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import StoreDenied, StoreError, UsageError
from bridgehead.names import StoreKind
from bridgehead.records import StoreSpec
from vm_daemons import mounting
from vm_daemons.home import VmHome
from vm_daemons.storage import store_choice

TOKEN_TIMEOUT_S = 20.0
# What the store's own code calls a credential, and the notebook secret that holds it.
_SECRETS = {
    "access_key_id": names.SECRET_S3_KEY_ID,
    "secret_access_key": names.SECRET_S3_SECRET,
    "session_token": names.SECRET_S3_TOKEN,
    "drive_credentials": names.SECRET_DRIVE,
}
_OF_KIND = {
    StoreKind.S3: ("access_key_id", "secret_access_key", "session_token"),
    StoreKind.DRIVE: ("drive_credentials",),
    StoreKind.MOUNT: ("drive_credentials",),  # to ask Drive whether what is on the mount has arrived
}


def settle(home: VmHome, told: object, say: Callable[[str], None], *, found: Path | None = None) -> str:
    """Write down [store] of the project and find or sign in to it; what to call it, "" when there is none.

    `found` is a mount that has been found and tried out already. A folder that somebody has named stays this VM's
    store however it is just now: the uploader tells what is wrong with it, and catches up once it is well.
    """
    try:
        spec = StoreSpec.from_json(told)
    except UsageError as error:
        say(f"[store] of the project can't be read ({error.message}); the store is what the notebook offers")
        spec = StoreSpec()
    _keep_secrets(home, spec)
    if spec.kind in (StoreKind.DRIVE, StoreKind.S3):
        if spec.kind == StoreKind.DRIVE:
            _sign_in(home, say)
        home.update_record(store_spec=spec.to_json(), store="")
        _try_credentials(home, spec, say)
        return f"{spec.kind} {spec.bucket or spec.path}".strip()
    if spec.folder:
        usable(spec.folder, say)
        root: Path | None = Path(spec.folder)
    else:
        root = found or mounting.find_store(say) or _told_by_the_machine()
    if root is not None and spec.confirm and spec.kind == StoreKind.MOUNT and "MyDrive" in root.parts:
        _sign_in(home, say)
    home.update_record(store_spec=spec.to_json(), store=str(root) if root else "")
    return str(root) if root else ""


def usable(folder: str, say: Callable[[str], None]) -> Path | None:
    """A folder that the project names, in a mount or not, made where the one above it is well. None, said loudly."""
    root = Path(folder)
    if mounting.DRIVE_MOUNT in root.parents:
        mounting.find_store(lambda line: None)  # mounts Drive; what is wrong shows below
    wrong = mounting.try_out_in_time(root, create_last=True)
    if wrong:
        say(f"WARNING: no durable store for now ({wrong}). Until {root} is well, checkpoints stay on this VM alone.")
    return None if wrong else root


def _told_by_the_machine() -> Path | None:
    told = os.environ.get(names.ENV_STORE)
    return Path(told) if told else None


def _sign_in(home: VmHome, say: Callable[[str], None]) -> None:
    """Leaves credentials for the Drive API where its client looks for them; without them nothing gets confirmed."""
    if (home.state / names.VM_STORE_SECRETS).exists():
        return
    try:
        from google.colab import auth
    except ImportError:
        return
    say("store: signing in, so that Drive itself can be asked what has arrived")
    try:
        auth.authenticate_user()
    except Exception as error:  # noqa: BLE001 - edge: the notebook's code raises what it likes
        say(f"store: no sign-in ({type(error).__name__}); checkpoints are mounted, and nobody confirms them")


def _try_credentials(home: VmHome, spec: StoreSpec, say: Callable[[str], None]) -> None:
    """Say at once what only a person at this notebook can put right. All other trouble is the uploader's to tell.

    A bucket is not contacted; Google is asked for a token.
    """
    try:
        store_choice.choose(home)
        if spec.kind == StoreKind.DRIVE:
            from vm_daemons.storage.drive_auth import DriveAuth  # a VM with another store needs none of it

            mounting.in_time(DriveAuth(store_choice.credentials(home)).token, TOKEN_TIMEOUT_S, "Google's sign-in")
    except (StoreDenied, UsageError) as error:
        say(f"WARNING: no durable store for now: {error.in_one_line()}. Until then checkpoints stay on this VM alone.")
    except (StoreError, OSError):
        return


def _keep_secrets(home: VmHome, spec: StoreSpec) -> None:
    wanted = _OF_KIND.get(StoreKind(spec.kind), ()) if spec.kind in set(StoreKind) else ()
    secrets = {name: text for name in wanted if (text := secret(_SECRETS[name]))}
    path = home.state / names.VM_STORE_SECRETS
    if secrets:
        files.write_json(path, secrets, mode=0o600)
    elif wanted and spec.kind == StoreKind.S3:
        path.unlink(missing_ok=True)


def secret(name: str) -> str:
    """An environment variable or a notebook secret of this name; "" when there is none."""
    found = os.environ.get(name, "")
    for read in (_of_colab, _of_kaggle):
        if not found:
            try:
                found = read(name)
            except Exception:  # noqa: BLE001 - edge: absent, denied or not that kind of notebook
                continue
    return found.strip()


def _of_colab(name: str) -> str:
    from google.colab import userdata

    return str(userdata.get(name) or "")


def _of_kaggle(name: str) -> str:
    from kaggle_secrets import UserSecretsClient

    return str(UserSecretsClient().get_secret(name) or "")
