"""A folder as an ObjectStore: whole objects or none, every trouble told by its kind, and nothing of others touched."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridgehead import files
from bridgehead.errors import BridgeheadError, NotFoundError, StoreDenied, StoreError, StoreFull, StoreGone
from bridgehead.errors import VerificationError as Unverified
from vm_daemons.storage import folder_store
from vm_daemons.storage.folder_store import FolderStore

KEY = "demo/runs/pretrain-0001-ab12cd/state.pt"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder


@pytest.fixture(params=[False, True], ids=["mount", "folder"])
def store(root: Path, request: pytest.FixtureRequest) -> FolderStore:
    return FolderStore(root, proves=request.param)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "local"
    path.write_bytes(b"weights" * 300_000)
    return path


def temps(root: Path) -> list[Path]:
    return list(root.rglob(f"{files.TEMP_PREFIX}*"))


def test_what_is_put_comes_back_with_both_digests(store: FolderStore, source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    sent = store.put(KEY, source)
    assert (sent.size, sent.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert sent.md5 == hashlib.md5(data).hexdigest()
    got = store.get(KEY, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data and got == sent
    (found,) = store.find(KEY)
    assert found.size == len(data) and found.sha256 == (sent.sha256 if store.proves else "")


@pytest.fixture
def many(tmp_path: Path) -> list[tuple[str, Path]]:
    folder = tmp_path / "outputs"
    folder.mkdir()
    items = []
    for number in range(40):
        path = folder / f"{number}.json"
        path.write_bytes(b"%d" % number * number)
        items.append((f"demo/runs/r/artifacts/{number % 3}/{number}.json", path))
    return items


def test_many_files_together_are_as_good_as_each_alone(
    store: FolderStore, root: Path, many: list[tuple[str, Path]], tmp_path: Path
) -> None:
    stored = store.put_many(many)
    alone = FolderStore(root, proves=store.proves)
    for (key, source), item in zip(many, stored, strict=True):
        assert item == alone.get(key, tmp_path / "back") and (tmp_path / "back").read_bytes() == source.read_bytes()
    assert temps(root) == [] and store.put_many([]) == []


def test_many_files_together_cost_a_few_flushes(
    root: Path, many: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(fd), real(fd))[1])
    FolderStore(root, proves=True).put_many(many)
    assert len(flushed) == 3  # the folders


def test_where_a_file_system_can_not_be_flushed_each_file_is(
    root: Path, many: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(fd), real(fd))[1])
    monkeypatch.setattr(files, "sync_file_system", lambda folder: False)
    FolderStore(root, proves=True).put_many(many)
    assert len(flushed) == len(many) + 3


@pytest.mark.parametrize("at", ["write", "flush", "read back", "rename"])
def test_of_many_files_an_error_leaves_old_or_new_ones_and_nothing_half(
    root: Path, many: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store = FolderStore(root, proves=True)
    for key, _ in many:
        store.put_bytes(key, b"old")
    full = OSError(errno.ENOSPC, "no room")
    count, replace, digest, stage = [0], files.replace, store._digest, store._stage

    def fails(*_: object) -> bool:
        count[0] += 1
        return count[0] > 20

    def or_full(work: Callable[..., Any], *words: Any) -> Any:
        if fails():
            raise full if at != "write" else StoreFull("no room")
        return work(*words)

    with monkeypatch.context() as patched:
        if at == "write":
            patched.setattr(store, "_stage", lambda *words: or_full(stage, *words))
        elif at == "flush":
            count[0] = 99
            patched.setattr(files, "sync_file_system", lambda folder: or_full(bool))
        elif at == "read back":
            patched.setattr(store, "_digest", lambda path: "0" * 64 if fails() else digest(path))
        else:
            patched.setattr(files, "replace", lambda *words: or_full(replace, *words))
        with pytest.raises(Unverified if at == "read back" else StoreFull):
            store.put_many(many)
    assert temps(root) == []
    seen = {key: store.read(key, 10_000) for key, _ in many}
    news = [seen[key] == source.read_bytes() for key, source in many]
    assert all(new or seen[key] == b"old" for new, (key, _) in zip(news, many, strict=True))
    assert any(news) is (at == "rename")
    store.put_many(many)
    assert all(store.read(key, 10_000) == source.read_bytes() for key, source in many)


def test_a_killed_writer_of_many_leaves_what_the_next_one_sweeps(root: Path, many: list[tuple[str, Path]]) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from bridgehead import files\n"
        "from vm_daemons.storage.folder_store import FolderStore\n"
        "files.sync_file_system = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "items = [(line.split(' ')[0], Path(line.split(' ')[1])) for line in sys.argv[2:]]\n"
        "FolderStore(Path(sys.argv[1]), proves=True).put_many(items)\n"
    )
    words = [f"{key} {path}" for key, path in many]
    killed = subprocess.run([sys.executable, "-c", code, str(root), *words], timeout=60)
    assert killed.returncode == -9 and len(temps(root)) == len(many)
    FolderStore(root, proves=True).put_many(many)
    assert temps(root) == []


def test_small_records_are_replaced_whole(store: FolderStore) -> None:
    store.put_bytes(KEY, b"one")
    store.put_bytes(KEY, b"")
    assert store.read(KEY, 10) == b""
    store.put_bytes(KEY, b"three")
    assert store.read(KEY, 10) == b"three"
    with pytest.raises(Unverified, match="over 4 bytes"):
        store.read(KEY, 4)


def test_what_is_not_there_is_no_trouble(store: FolderStore, tmp_path: Path) -> None:
    assert store.read(KEY, 10) is None and store.find(KEY) == [] and store.list("demo/none") == []
    store.delete(KEY)
    with pytest.raises(NotFoundError):
        store.get(KEY, tmp_path / "back")
    store.put_bytes("demo/file", b"x")
    assert store.read("demo/file/below", 10) is None and store.list("demo/file") == []


def test_only_names_that_can_be_keys_are_listed(store: FolderStore, root: Path) -> None:
    store.put_bytes("demo/b", b"x")
    store.put_bytes("demo/a/c", b"x")
    for name in ("b (1)", ".tmp-rest", "-dash", "Räuber"):
        (root / "demo" / name).write_text("of others")
    assert store.list("demo") == ["a", "b"]


@pytest.mark.parametrize("key", ["../out", "/etc/passwd", "demo/../../out", "demo//x", "a b", ""])
def test_no_key_leads_outside(store: FolderStore, key: str, source: Path) -> None:
    for action in (lambda: store.put(key, source), lambda: store.read(key, 9), lambda: store.delete(key)):
        with pytest.raises(BridgeheadError, match="not an object of the store"):
            action()


def test_a_link_in_the_store_is_followed_by_nobody(store: FolderStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary").write_text("mine")
    (root / "demo").symlink_to(tmp_path / "mine")
    with pytest.raises(Unverified):
        store.read("demo/diary", 100)
    with pytest.raises(Unverified):
        store.delete("demo/diary")
    assert (tmp_path / "mine" / "diary").read_text() == "mine"


def test_odd_files_neither_hang_nor_count(store: FolderStore, root: Path, tmp_path: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    for name in ("pipe", "folder"):
        assert store.find(name) == []
        with pytest.raises((Unverified, StoreError)):
            store.read(name, 100)
        store.delete(name)
        assert (root / name).exists()


def test_a_deleted_file_weighs_nothing_in_the_trash(store: FolderStore, root: Path, source: Path) -> None:
    store.put(KEY, source)
    with (root / KEY).open("rb") as trash:  # what a drive keeps of it
        store.delete(KEY)
        assert os.fstat(trash.fileno()).st_size == 0
    assert not (root / KEY).exists()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreDenied),
        (errno.EACCES, StoreDenied),
        (errno.EIO, StoreGone),
        (errno.ENOTCONN, StoreGone),
        (errno.ESTALE, StoreGone),
        (errno.ENODEV, StoreGone),
        (errno.ETIMEDOUT, StoreError),
    ],
)
def test_trouble_in_the_middle_is_told_by_its_kind_and_leaves_the_old_object(
    store: FolderStore, root: Path, source: Path, code: int, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes(KEY, b"old")

    def fail(_fd: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(kind) as caught:
            store.put(KEY, source)
    assert type(caught.value) is kind and caught.value.exit_code == 13
    if kind is StoreFull:  # a drive with room refuses bursts of writes in the same words
        assert ("burst of writes" in caught.value.hint) is not store.proves
    assert store.read(KEY, 10) == b"old" and temps(root) == []


def test_a_put_that_reads_back_differently_leaves_the_old_object(
    store: FolderStore, root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes(KEY, b"old")
    monkeypatch.setattr(FolderStore, "_digest", lambda *_: "0" * 64)
    with pytest.raises(Unverified, match="reads back"):
        store.put(KEY, source)
    assert store.read(KEY, 10) == b"old" and temps(root) == []


def test_on_a_mount_an_object_can_be_emptied_so_that_its_end_weighs_nothing(store: FolderStore, root: Path) -> None:
    store.put_bytes(KEY, b"old")
    assert store.empty(KEY) is not store.proves
    assert (root / KEY).read_bytes() == (b"old" if store.proves else b"")
    assert store.empty(KEY) is False, "then it may be deleted"
    assert store.empty("demo/no/such") is False
    (root / "link").symlink_to(root / KEY)
    with pytest.raises(Unverified):
        store.empty("link")


def test_trouble_of_the_local_disk_is_not_the_stores(store: FolderStore, tmp_path: Path) -> None:
    store.put_bytes(KEY, b"x")
    with pytest.raises(FileNotFoundError):
        store.put(KEY, tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        store.get(KEY, tmp_path / "none" / "back")


def test_where_the_root_is_gone_nothing_is_made_in_its_place(store: FolderStore, root: Path, source: Path) -> None:
    root.rmdir()
    for action in (
        lambda: store.put(KEY, source),
        lambda: store.put_bytes(KEY, b"x"),
        lambda: store.read(KEY, 10),
        lambda: store.find(KEY),
        lambda: store.list(""),
        lambda: store.list("demo"),
        lambda: store.delete(KEY),
    ):
        with pytest.raises(StoreGone, match="is gone"):
            action()
    assert not root.exists() and "is gone" in store.probe().error


def test_the_canary_tells_the_room_and_leaves_nothing(store: FolderStore, root: Path) -> None:
    room = store.probe()
    assert room.error == "" and room.free_bytes is not None and room.free_bytes > 0
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_root_is_said(store: FolderStore, root: Path) -> None:
    root.chmod(0o500)
    try:
        assert "can't be written to" in store.probe().error
    finally:
        root.chmod(0o700)


def test_what_a_killed_writer_left_is_swept_and_what_a_live_one_writes_is_not(
    store: FolderStore, root: Path, source: Path
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(100)
    (root / "demo").mkdir()
    boot = folder_store._this_boot()
    left = [root / "demo" / f".tmp-{boot}-{pid}-00000000" for pid in (dead.pid, os.getppid(), os.getpid())]
    foreign = root / "demo" / ".tmp-0badb007-1-00000000"  # of another machine, and young
    for path in (*left, foreign):
        path.write_bytes(b"half")
    store.put("demo/new", source)
    assert [path.exists() for path in (*left, foreign)] == [False, True, True, True]


def test_a_killed_put_leaves_the_old_object_and_its_rest_goes_with_the_next(root: Path, source: Path) -> None:
    store = FolderStore(root, proves=False)
    store.put_bytes("demo/state", b"old")
    code = (
        "import os, sys; from pathlib import Path; from vm_daemons.storage.folder_store import FolderStore\n"
        "store = FolderStore(Path(sys.argv[1]), proves=False)\n"
        "store.on_bytes = lambda _: os._exit(9)\n"
        "store.put('demo/state', Path(sys.argv[2]))"
    )
    repo = str(Path(__file__).parents[3])
    process = subprocess.run([sys.executable, "-c", code, str(root), str(source)], cwd=repo, timeout=30, check=False)
    assert process.returncode == 9
    assert store.read("demo/state", 10) == b"old" and len(temps(root)) == 1
    FolderStore(root, proves=False).put_bytes("demo/state", b"new")
    assert store.read("demo/state", 10) == b"new" and temps(root) == []
