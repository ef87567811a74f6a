"""A VM with a ship and a payload that it can leave in the store for the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridgehead import files, names, signing
from vm_daemons.home import VmHome
from vm_support import KEY


def payload(home: VmHome, content: bytes = b"print('train')\n", **more: Any) -> dict[str, Any]:
    (home.payload / "pkg").mkdir(exist_ok=True)
    (home.payload / "pkg" / "train.py").write_bytes(content)
    entry = {"path": "pkg/train.py", "size": len(content), "mode": 0o755}
    entry["sha256"] = files.sha256_file(home.payload / "pkg" / "train.py")
    body = {"payload_sha256": "f" * 64, "project": "demo", "files": [entry], **more}
    document = signing.sign_document(KEY, "manifest", body)
    files.write_json(home.state / names.PAYLOAD_MANIFEST, document)
    home.update_record(payload_sha256="f" * 64)
    return document


def published_by(home: VmHome, drive: Path) -> list[Path]:
    """Where the store will have this VM's ship, and the archive and the list of its payload."""
    ship = home.root / names.VM_SHIP / f"{home.record()['ship_sha256'][:16]}.zip"
    ship.parent.mkdir(exist_ok=True)
    ship.write_bytes(b"zip")
    payload(home)
    archive = drive / "demo" / names.STORE_PAYLOAD / f"{'f' * 64}.tar"
    return [drive / "demo" / names.STORE_SHIP / ship.name, archive, archive.with_suffix(".json")]
