"""An ObjectStore that misbehaves on purpose, and checkpoints to put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bridgehead import checkpoints, names
from bridgehead.errors import StoreError
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import Room, Stored

T = TypeVar("T")


class Died(BaseException):
    """The process was killed here: nothing that comes after runs, not even what cleans up after errors."""


class Faulty:
    """A folder behind hooks: `before` and `after` see (method, key) of each call and may raise, wait or do mischief."""

    def __init__(self, root: Path, *, proves: bool = False) -> None:
        self.inner = FolderStore(root, proves=proves)
        self.kind, self.where, self.proves = self.inner.kind, self.inner.where, proves
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, key: None
        self.after: Callable[[str, str], None] = lambda method, key: None

    def put(self, key: str, source: Path) -> Stored:
        return self._call("put", key, lambda: self.inner.put(key, source))

    def put_bytes(self, key: str, data: bytes) -> None:
        self._call("put_bytes", key, lambda: self.inner.put_bytes(key, data))

    def get(self, key: str, target: Path) -> Stored:
        return self._call("get", key, lambda: self.inner.get(key, target))

    def read(self, key: str, max_bytes: int) -> bytes | None:
        return self._call("read", key, lambda: self.inner.read(key, max_bytes))

    def find(self, key: str) -> list[Stored]:
        return self._call("find", key, lambda: self.inner.find(key))

    def look(self, key: str) -> list[Stored]:
        return self._call("look", key, lambda: self.inner.look(key))

    def list(self, prefix: str) -> list[str]:
        return self._call("list", prefix, lambda: self.inner.list(prefix))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def empty(self, key: str) -> bool:
        return self._call("empty", key, lambda: self.inner.empty(key))

    def probe(self) -> Room:
        try:
            return self._call("probe", "", self.inner.probe)
        except StoreError as error:
            return Room(error=error.message)

    def _call(self, method: str, key: str, action: Callable[[], T]) -> T:
        self.calls.append((method, key))
        self.before(method, key)
        result = action()
        self.after(method, key)
        return result


def save(run_dir: Path, step: int, content: bytes = b"weights") -> Path:
    """A committed local checkpoint with a file in a subfolder."""
    root = run_dir / names.CHECKPOINTS
    with checkpoints.staging(root) as staged:
        (staged / "state.pt").write_bytes(content + str(step).encode())
        (staged / "shards").mkdir()
        (staged / "shards" / "0.bin").write_bytes(b"shard" * 1000)
        return checkpoints.commit(staged, root, step, {"epoch": step // 10}).folder
