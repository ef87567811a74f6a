"""Tiny outputs of a run on their way into a folder that outlives the VM: many together against one by one.

Same files, same disk, same run; both end with every file on the disk, read back and renamed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from vm_daemons.storage.folder_store import FolderStore

_SIZE_BYTES: Final = 1024
_TOGETHER: Final = 500  # as many as the uploader gives at once


def rows(count: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        made = Path(name) / "made"
        made.mkdir()
        sources = [made / f"f{number}.json" for number in range(count)]
        for number, path in enumerate(sources):
            path.write_bytes(number.to_bytes(8, "big") * (_SIZE_BYTES // 8))
        one_s = _timed(Path(name) / "one", lambda store: [store.put(f"run/{path.name}", path) for path in sources])
        many_s = _timed(Path(name) / "many", lambda store: _together(store, sources))
    yield {
        "name": f"{count} outputs of {_SIZE_BYTES} bytes into a folder store, together against one by one",
        "together_s": round(many_s, 2),
        "one_by_one_s": round(one_s, 2),
        "ratio": round(one_s / many_s, 1),
    }


def _together(store: FolderStore, sources: list[Path]) -> None:
    for start in range(0, len(sources), _TOGETHER):
        store.put_many([(f"run/{path.name}", path) for path in sources[start : start + _TOGETHER]])


def _timed(root: Path, work: Callable[[FolderStore], object]) -> float:
    root.mkdir()
    began = time.monotonic()
    work(FolderStore(root, proves=True))
    return time.monotonic() - began
