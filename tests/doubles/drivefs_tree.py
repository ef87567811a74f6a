"""What a mounted Drive knows on its machine: a tree of names, a cache of contents, and what still has to be uploaded.

Whatever a program writes lands here and is visible at once; the account (google_cloud.Cloud) hears of it later, in
whatever order and state the faults say. Nothing of it survives the process.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import random
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from doubles.google_cloud import ROOT_ID, Cloud, Entry, NoSuchFile, QuotaExceeded, new_id

_ZEROED_BYTES = 4096
_RETRY_S = 0.2


@dataclass
class Faults:
    """How this mount misbehaves. Chances are 0 to 1 and drawn from (seed, path, how often it was uploaded)."""

    delay_s: tuple[float, float] = (0.0, 0.05)  # from closing a file to its upload
    reorder: bool = False  # each file's delay counts for itself: later ones may overtake
    hold: bool = False  # nothing is uploaded until this is false again
    drop: float = 0.0  # looks uploaded, never was
    zero: float = 0.0  # one block arrives as zeros
    duplicate: float = 0.0  # arrives as a second file of its name
    only: str = "*"  # names that drop, zero and duplicate concern
    stale: bool = False  # folders that were listed once keep showing that
    full: bool = False  # ENOSPC on each write
    full_after_bytes: int = 0  # ENOSPC from so many more written bytes on; 0: off
    read_only: bool = False  # EROFS
    error: float = 0.0  # chance of EIO for each call that touches content
    dead: bool = False  # ENOTCONN on every call, as after the mount's process died
    die_after_bytes: int = 0  # the process ends at once after so many more written bytes; 0: off
    hang: bool = False  # no call returns
    slow_s: float = 0.0  # each call takes so much longer
    upload_mb_s: float = 0.0  # 0: as fast as it goes


@dataclass(eq=False)
class Node:
    """One name in the mount. `shown` differs from `name` where a folder holds two of one name."""

    key: int
    name: str
    shown: str
    parent: Node | None
    folder: bool
    cloud_id: str = ""  # chosen before the upload, as the real client does
    uploaded: bool = False  # the account knows that id
    revision: int = 0  # of the account's content, which size and cache stand for
    size: int = 0
    mtime: float = 0.0
    cache: Path | None = None
    dirty: bool = False  # name, place, being or content still has to reach the account
    content_dirty: bool = False
    writes: int = 0
    uploads: int = 0
    writers: int = 0
    due: float = 0.0
    gone: bool = False
    children: dict[str, Node] = field(default_factory=dict)
    seen: int = -1  # the account's change count when this folder was last compared


class Tree:
    """Thread-safe; `lock` guards all nodes. Paths begin with `/`; `/MyDrive` is the account's own folder."""

    def __init__(self, cloud: Cloud, cache: Path, seed: int) -> None:
        self.cloud = cloud
        self.faults = Faults()
        self.lock = threading.RLock()
        self._cache = cache
        self._seed = seed
        self._keys = 0
        self._last_due = 0.0
        self._by_id: dict[str, Node] = {}
        self._waiting: dict[int, Node] = {}
        self._busy = False
        self.counts = {"uploads": 0, "dropped": 0, "zeroed": 0, "duplicated": 0, "refused": 0, "bytes": 0}
        self.root = self._node("", None, folder=True)
        self.drive = self._node("MyDrive", self.root, folder=True)
        self.drive.cloud_id, self.drive.uploaded = ROOT_ID, True

    # --- what the file system asks for ----------------------------------------------------------------

    def find(self, path: str) -> Node:
        """Raises OSError(ENOENT, ENOTDIR)."""
        node, now = self.root, self.cloud.changes()
        for name in path.strip("/").split("/") if path.strip("/") else []:
            if not node.folder:
                raise OSError(errno.ENOTDIR, path)
            self._refresh(node, now)
            if name not in node.children:
                raise OSError(errno.ENOENT, path)
            node = node.children[name]
        return node

    def names(self, node: Node) -> list[str]:
        self._refresh(node)
        return list(node.children)

    def parent_of(self, path: str) -> tuple[Node, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        parent = self.find(head or "/")
        if parent is self.root:
            raise OSError(errno.EPERM, path)
        self._refresh(parent)
        return parent, name

    def add(self, path: str, *, folder: bool) -> Node:
        parent, name = self.parent_of(path)
        if name in parent.children:
            raise OSError(errno.EEXIST, path)
        node = self._node(name, parent, folder=folder)
        if not folder:
            node.cache = self._cache / str(node.key)
            node.cache.touch()
        node.content_dirty = not folder
        self.changed(node)
        return node

    def remove(self, path: str, *, folder: bool) -> None:
        """Into the account's trash, later."""
        parent, name = self.parent_of(path)
        node = self.find(path)
        if node.folder != folder:
            raise OSError(errno.ENOTDIR if folder else errno.EISDIR, path)
        if folder and self.names(node):
            raise OSError(errno.ENOTEMPTY, path)
        del parent.children[name]
        self._forget(node)

    def rename(self, old: str, new: str) -> None:
        node = self.find(old)
        old_parent, old_name = self.parent_of(old)
        new_parent, new_name = self.parent_of(new)
        replaced = new_parent.children.get(new_name)
        if replaced is node:
            return
        if replaced is not None:
            if replaced.folder and self.names(replaced):
                raise OSError(errno.ENOTEMPTY, new)
            self._forget(replaced)
        del old_parent.children[old_name]
        node.parent, node.name, node.shown = new_parent, new_name, new_name
        new_parent.children[new_name] = node
        self.changed(node)

    def content(self, node: Node) -> Path:
        """The local copy of a file, fetched from the account if need be."""
        if node.cache is None:
            target = self._cache / str(node.key)
            try:
                shutil.copyfile(self.cloud.content(self.cloud.get(node.cloud_id)), target)
            except (NoSuchFile, FileNotFoundError):
                raise OSError(errno.EIO, node.shown) from None
            node.cache = target
            node.size = target.stat().st_size
        return node.cache

    def changed(self, node: Node) -> None:
        """Upload it, or what became of it, after the delay."""
        draw = self._draw(node, "delay")
        due = time.monotonic() + draw.uniform(*self.faults.delay_s)
        self._last_due = max(self._last_due, due)
        node.due = due if self.faults.reorder else self._last_due
        node.dirty = True
        self._waiting[node.key] = node

    def written(self, node: Node) -> None:
        """Its content is another one now; it is uploaded once nobody writes it any more."""
        node.writes += 1
        node.dirty = node.content_dirty = True
        node.mtime = time.time()
        self._waiting[node.key] = node

    def pending(self) -> list[str]:
        """The paths that the account does not know as they are, and the one under way."""
        with self.lock:
            return [self.path(node) for node in self._waiting.values()] + (["(uploading)"] if self._busy else [])

    def path(self, node: Node) -> str:
        """By true names, below My Drive."""
        parts: list[str] = []
        at: Node | None = node
        while at is not None and at is not self.drive and at is not self.root:
            parts.append(at.name)
            at = at.parent
        return "/".join(reversed(parts))

    # --- the account as last heard of -------------------------------------------------------------------

    def _refresh(self, folder: Node, now: int = -1) -> None:
        """`now` spares asking for the account's change count."""
        if folder is self.root or not folder.uploaded or (self.faults.stale and folder.seen >= 0):
            return
        now = self.cloud.changes() if now < 0 else now
        if folder.seen == now:
            return
        folder.seen = now
        entries = {entry.id: entry for entry in self.cloud.children(folder.cloud_id)}
        for node in list(folder.children.values()):
            if node.uploaded and not node.dirty and node.cloud_id not in entries:
                del folder.children[node.shown]
                self._by_id.pop(node.cloud_id, None)
        for entry in entries.values():
            self._hear_of(folder, entry)

    def _hear_of(self, folder: Node, entry: Entry) -> None:
        node = self._by_id.get(entry.id)
        if node is None:
            node = self._node(entry.name, folder, folder=entry.folder)
            node.cloud_id, node.uploaded = entry.id, True
            self._by_id[entry.id] = node
        if node.dirty or node.gone:
            return  # ours is newer
        if (node.parent, node.name) != (folder, entry.name):
            if node.parent is not None:
                node.parent.children.pop(node.shown, None)
            node.parent, node.name, node.shown = folder, entry.name, _free_name(folder, entry.name)
            folder.children[node.shown] = node
        if node.revision != entry.revision:
            node.cache = None
        node.revision, node.size, node.mtime = entry.revision, entry.size, entry.modified

    def _node(self, name: str, parent: Node | None, *, folder: bool) -> Node:
        self._keys += 1
        shown = name if parent is None else _free_name(parent, name)
        node = Node(self._keys, name, shown, parent, folder, mtime=time.time())
        if parent is not None:
            parent.children[shown] = node
        return node

    def _forget(self, node: Node) -> None:
        node.gone = True
        self._waiting.pop(node.key, None)
        if node.cloud_id:
            self.changed(node)

    # --- the uploader -----------------------------------------------------------------------------------

    def upload_next(self) -> bool:
        """Bring the account up to date with one node that is due; False when there was none."""
        with self.lock:
            if self.faults.hold or self.faults.dead:
                return False
            now = time.monotonic()
            due = [node for node in self._waiting.values() if node.due <= now and (node.gone or not node.writers)]
            if not due:
                return False
            node = min(due, key=lambda each: (each.due, each.key))
            self._busy = True
        try:
            self._bring(node)
        except QuotaExceeded:  # nobody on the machine is told
            with self.lock:
                self.counts["refused"] += 1
                node.due = time.monotonic() + _RETRY_S
        except NoSuchFile:  # somebody removed the file or its folder over there
            with self.lock:
                self._not_there(node)
        finally:
            with self.lock:
                self._busy = False
        return True

    def _not_there(self, node: Node) -> None:
        at: Node | None = node
        while at is not None and at is not self.drive:
            with contextlib.suppress(NoSuchFile):
                self.cloud.get(at.cloud_id)
                at = at.parent
                continue
            self._by_id.pop(at.cloud_id, None)
            at.uploaded, at.cloud_id = False, ""
            at = at.parent
        node.content_dirty = node.cache is not None and not node.folder
        if node.gone or not (node.content_dirty or node.folder):
            self._waiting.pop(node.key, None)

    def _bring(self, node: Node) -> None:
        if node.gone:
            if node.uploaded:
                self.cloud.update(node.cloud_id, trashed=True)
            with self.lock:
                self._waiting.pop(node.key, None)
            return
        with self.lock:
            writes, name, parent, content = node.writes, node.name, node.parent, node.content_dirty
            assert parent is not None
        parent_id = self._ensure(parent)
        if node.folder:
            self._ensure(node)
            self.cloud.update(node.cloud_id, name=name, parent=parent_id)
        elif not content:
            if node.uploaded:  # else what never arrived gets no other name either
                self.cloud.update(node.cloud_id, name=name, parent=parent_id)
        elif not self._bring_content(node, name, parent_id, writes):
            return
        with self.lock:
            if (node.writes, node.name, node.parent) == (writes, name, parent) and not node.writers:
                node.dirty = node.content_dirty = False
                self._waiting.pop(node.key, None)

    def _bring_content(self, node: Node, name: str, parent_id: str, writes: int) -> bool:
        """False when somebody wrote to it meanwhile: another time."""
        with self.lock:
            node.uploads += 1
            draw = self._draw(node, "upload")
            concerned = fnmatch.fnmatch(name, self.faults.only)
            drop, zero, twice = (
                concerned and draw.random() < chance
                for chance in (self.faults.drop, self.faults.zero, self.faults.duplicate)
            )
            copy = self._cache / f"{node.key}-upload"
            shutil.copyfile(self.content(node), copy)
        try:
            size = copy.stat().st_size
            if self.faults.upload_mb_s > 0:
                time.sleep(size / (self.faults.upload_mb_s * 1e6))
            if node.writes != writes or node.writers:
                return False
            if drop:
                self.counts["dropped"] += 1
                return True
            if zero and size:
                self.counts["zeroed"] += 1
                _zero_block(copy, draw)
            self._send(node, name, parent_id, copy, twice=twice)
            self.counts["bytes"] += size
        finally:
            copy.unlink(missing_ok=True)
        return True

    def _send(self, node: Node, name: str, parent_id: str, copy: Path, *, twice: bool) -> None:
        self.counts["uploads"] += 1
        if twice:
            # A first version comes again beside itself; a later one comes as a new file and leaves the old as it was.
            self.counts["duplicated"] += 1
            self.cloud.create(name, parent_id, copy)
            if node.uploaded:
                return
        if node.uploaded:
            entry = self.cloud.update(node.cloud_id, content=copy, name=name, parent=parent_id)
        else:
            self._reserve(node)
            entry = self.cloud.create(name, parent_id, copy, file_id=node.cloud_id)
        with self.lock:
            node.uploaded, node.revision = True, entry.revision

    def _ensure(self, folder: Node) -> str:
        if not folder.uploaded:
            assert folder.parent is not None
            parent_id = self._ensure(folder.parent)
            self._reserve(folder)
            self.cloud.create(folder.name, parent_id, folder=True, file_id=folder.cloud_id)
            folder.uploaded = True
        return folder.cloud_id

    def _reserve(self, node: Node) -> None:
        with self.lock:
            if not node.cloud_id:
                node.cloud_id = new_id()
                self._by_id[node.cloud_id] = node

    def _draw(self, node: Node, what: str) -> random.Random:
        return random.Random(f"{self._seed}|{what}|{self.path(node)}|{node.uploads}")


def _free_name(folder: Node, name: str) -> str:
    """`name`, or `stem (1).ext` and so on where the folder shows another of that name."""
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    shown, count = name, 0
    while shown in folder.children:
        count += 1
        shown = f"{stem} ({count}){dot}{extension}"
    return shown


def _zero_block(path: Path, draw: random.Random) -> None:
    blocks = max(1, path.stat().st_size // _ZEROED_BYTES)
    offset = draw.randrange(blocks) * _ZEROED_BYTES
    length = min(_ZEROED_BYTES, path.stat().st_size - offset)
    with path.open("r+b") as handle:
        handle.seek(offset)
        handle.write(bytes(length))
