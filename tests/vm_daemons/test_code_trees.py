"""A run works on the user's files as it began with them, whatever is synced, edited or restarted meanwhile."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, files, names, signing
from bridgehead.errors import NotFoundError, TransferError, VerificationError
from bridgehead.names import RunState
from bridgehead.pairing import Pairing
from command_rig import Rig
from support import wait_until
from vm_daemons import code_trees, command_daemon, payload, run_keeper
from vm_daemons.home import VmHome
from vm_daemons.storage import publish
from vm_daemons.storage.store import Store
from vm_run_support import log_of, vm_home
from vm_support import KEY

OLD, NEW = "1" * 64, "2" * 64


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    drive = tmp_path / "drive"
    drive.mkdir()
    rig = Rig(tmp_path / "vm", drive)
    rig.home.save_pairing(Pairing("http://127.0.0.1:9", "test-key", KEY, "0" * 64))
    yield rig
    rig.clean()


def lay(home: VmHome, digest: str, **texts: str) -> None:
    """Make the payload folder what a laptop's manifest says, as a sync does."""
    entries, contents = [], {}
    for stem, text in texts.items():
        path = f"pkg/{stem}.py" if stem != "train" else "train.py"
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        contents[sha256] = text.encode()
        entries.append({"path": path, "size": len(text), "sha256": sha256, "mode": 0o644})
    body = {"payload_sha256": digest, "project": "demo", "ship_sha256": "5" * 64, "files": entries}
    document = signing.sign_document(KEY, "manifest", {**body, "requirements": [], "store": {}, "vm": {}})

    def bring(_tree: object, shelf: payload.Shelf, missing: list[dict[str, object]]) -> int:
        for entry in missing:
            shelf.add(str(entry["sha256"]), contents[str(entry["sha256"])])
        return 0

    with payload.locked(home):
        payload.install(home, document, bring)


LATE = (
    "import os, time\nprint('up', flush=True)\n"
    "while not os.path.exists(os.environ['BRIDGEHEAD_RUN_DIR'] + '/go'): time.sleep(0.02)\n"
    "from pkg import late\n"
)


def test_a_sync_does_not_reach_a_run_that_imports_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(rig.home, OLD, train=LATE, late="print('late: old')")
    monkeypatch.setattr(command_daemon.payload, "sync", lambda _client, _home: None)
    first, second = rig.run("python train.py"), rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(first)
        wait_until(lambda: "up" in log_of(rig.dir(first)), what="the stage")
        lay(rig.home, NEW, train=LATE, late="print('late: new')")
        (rig.dir(first) / "go").touch()
        assert rig.wait_for_exit(first).state is RunState.DONE
        rig.laptop.queue(second)
        wait_until(lambda: "up" in log_of(rig.dir(second)), what="the second stage")
        (rig.dir(second) / "go").touch()
        assert rig.wait_for_exit(second).state is RunState.DONE
    assert "late: old" in log_of(rig.dir(first)) and "late: new" in log_of(rig.dir(second))
    told = [files.read_json(rig.dir(run) / names.RUN_RECORD)["payload_sha256"] for run in (first, second)]
    assert told == [OLD, NEW]


def test_a_run_that_is_started_again_after_a_sync_has_its_own_files(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = (
        "import os, signal\nprint('mine')\n"
        "mark = os.environ['BRIDGEHEAD_RUN_DIR'] + '/again'\n"
        "if os.path.exists(mark): raise SystemExit\n"
        "while not os.path.exists(os.environ['BRIDGEHEAD_RUN_DIR'] + '/go'): pass\n"
        "open(mark, 'w').close()\n"
        "for pid in (os.getppid(), os.getpid()): os.kill(pid, signal.SIGKILL)"
    )
    lay(rig.home, OLD, train=dies)
    monkeypatch.setattr(command_daemon.payload, "sync", lambda _client, _home: None)
    train = rig.run("python -u train.py")
    with rig.daemon():
        rig.laptop.queue(train)
        wait_until(lambda: "mine" in log_of(rig.dir(train)), what="the stage")
        lay(rig.home, NEW, train="print('edited')")
        (rig.dir(train) / "go").touch()
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert log_of(rig.dir(train)).count("mine") == 2 and "edited" not in log_of(rig.dir(train))


def test_a_run_waits_while_a_file_is_neither_the_laptops_nor_to_be_had(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_client: object, _home: VmHome) -> None:
        raise TransferError("the laptop is away")

    lay(rig.home, OLD, train="print('sent')")
    (rig.home.payload / "train.py").write_text("print('changed on the VM')")
    monkeypatch.setattr(command_daemon.payload, "sync", away)
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.05)
    train = rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(train)
        wait_until(lambda: "waits for its files: train.py" in log_of(rig.dir(train)), what="why it waits")
        lay(rig.home, OLD, train="print('sent')")
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "changed on the VM" not in log_of(rig.dir(train))


# --- on the next VM -----------------------------------------------------------------------------------------


def with_checkpoint(rig: Rig, run_id: str, code: str) -> None:
    root = rig.home.run(run_id) / names.CHECKPOINTS
    root.mkdir(parents=True)
    with checkpoints.staging(root) as staged:
        (staged / "state").write_bytes(b"state")
        checkpoints.commit(staged, root, 5, {"code": code})


def second_attempt(rig: Rig, **given: object) -> str:
    """What an attempt prints that goes on from a checkpoint of OLD, on a VM whose laptop has sent NEW since."""
    lay(rig.home, NEW, train="print('edited')")
    train = rig.run("python train.py", attempt=2, **given)
    with_checkpoint(rig, train.run_id, OLD)
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    return log_of(rig.dir(train))


def publish_old(rig: Rig, tmp_path: Path) -> Store:
    """Another VM of the pairing has left the old files in the store."""
    other = vm_home(tmp_path / "other", store=Path(str(rig.home.store_path())))
    lay(other, OLD, train="print('as it began')")
    store = Store(other)
    assert publish.payload(store.objects(), other) == ""
    return Store(rig.home)


def test_the_next_vm_goes_on_with_the_files_that_made_the_checkpoint(rig: Rig, tmp_path: Path) -> None:
    publish_old(rig, tmp_path)
    printed = second_attempt(rig)
    assert "as it began" in printed and "edited" not in printed


def test_where_the_store_lacks_them_the_log_says_so(rig: Rig) -> None:
    printed = second_attempt(rig)
    assert "its files are not to be had as it began with them" in printed and "edited" in printed


def test_files_that_may_differ_are_the_newest(rig: Rig, tmp_path: Path) -> None:
    publish_old(rig, tmp_path)
    lay(rig.home, NEW, train="print('edited')")
    train = rig.run("python train.py", attempt=2)
    spec = train.to_json()
    spec["spec"]["allow"] = ["code"]
    train = type(train).from_json(spec)
    with_checkpoint(rig, train.run_id, OLD)
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "edited" in log_of(rig.dir(train))


def test_an_archive_that_is_not_what_the_laptop_signed_is_not_used(rig: Rig, tmp_path: Path) -> None:
    store = publish_old(rig, tmp_path)
    archive = Path(str(rig.home.store_path())) / "demo" / names.STORE_PAYLOAD / f"{OLD}.tar"
    archive.write_bytes(archive.read_bytes().replace(b"as it began", b"as they say"))
    with pytest.raises(VerificationError, match="another hash"):
        code_trees.bring(rig.home, store, OLD)
    assert not code_trees.is_ready(rig.home, OLD)


def test_two_that_bring_the_same_files_get_one_tree(rig: Rig, tmp_path: Path) -> None:
    store = publish_old(rig, tmp_path)
    answers: list[str] = []
    with payload.locked(rig.home):  # so that both have fetched the archive before one may build
        takers = [
            threading.Thread(target=lambda: answers.append(code_trees.bring(rig.home, store, OLD))) for _ in range(2)
        ]
        for taker in takers:
            taker.start()
    for taker in takers:
        taker.join(100)
    assert answers == [OLD, OLD]
    assert [path.name for path in tree(rig.home, OLD).iterdir()] == ["train.py"]


def test_a_store_that_hangs_holds_up_no_other_run(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = publish_old(rig, tmp_path)
    lay(rig.home, NEW, train="new")
    fetching, hangs = threading.Event(), threading.Event()

    class Hanging(type(store.objects())):  # type: ignore[misc]
        def get(self, key: str, target: Path) -> object:
            fetching.set()
            assert hangs.wait(100)
            return super().get(key, target)

    monkeypatch.setattr(store.objects(), "__class__", Hanging)
    objects = store.objects()
    monkeypatch.setattr(store, "objects", lambda: objects)
    taker = threading.Thread(target=code_trees.bring, args=(rig.home, store, OLD))
    taker.start()
    try:
        assert fetching.wait(100)
        assert code_trees.make(rig.home) == NEW
    finally:
        hangs.set()
        taker.join(100)
    assert tree(rig.home, OLD).is_dir()


# --- the tree itself ----------------------------------------------------------------------------------------


def tree(home: VmHome, digest: str) -> Path:
    assert home.code(digest) != home.payload
    return home.code(digest)


def test_what_else_lies_in_the_payload_folder_is_seen(rig: Rig) -> None:
    lay(rig.home, OLD, train="1", late="2")
    for name in ("data.bin", "pkg/more.bin"):
        (rig.home.payload / name).write_text(name)
    assert code_trees.make(rig.home) == OLD
    (rig.home.payload / "later.bin").write_text("later")
    code_trees.make(rig.home)
    there = {path.relative_to(tree(rig.home, OLD)).as_posix() for path in tree(rig.home, OLD).rglob("*")}
    assert there == {"train.py", "pkg", "pkg/late.py", "data.bin", "pkg/more.bin", "later.bin"}
    assert (tree(rig.home, OLD) / "pkg/more.bin").read_text() == "pkg/more.bin"


def test_after_a_restart_of_the_machine_each_file_is_looked_at(rig: Rig) -> None:
    lay(rig.home, OLD, train="good")
    code_trees.make(rig.home)
    note = next(rig.home.root.glob(f"{names.VM_CODE}/*.json"))
    for content, kept in (("good", True), ("gone", False)):
        (tree(rig.home, OLD) / "kept").touch()
        files.write_json(note, {**files.read_json(note), "boot_id": "another"})
        (tree(rig.home, OLD) / "train.py").unlink()
        (tree(rig.home, OLD) / "train.py").write_text(content)
        assert not code_trees.is_ready(rig.home, OLD)
        code_trees.make(rig.home)
        assert (tree(rig.home, OLD) / "kept").exists() is kept
        assert (tree(rig.home, OLD) / "train.py").read_text() == "good"


def test_trees_go_when_every_run_in_them_has_ended(rig: Rig) -> None:
    lay(rig.home, OLD, train="old")
    code_trees.make(rig.home)
    os.utime(next(rig.home.root.glob(f"{names.VM_CODE}/*.json")), (0, 0))
    run_dir = rig.home.run("train-0001-abcdef")
    run_dir.mkdir()
    files.write_json(run_dir / names.RUN_RECORD, {"payload_sha256": OLD})
    lay(rig.home, NEW, train="new")
    code_trees.make(rig.home)
    assert tree(rig.home, OLD).is_dir()
    files.write_json(run_dir / names.EXIT, {})
    code_trees.make(rig.home)
    assert rig.home.code(OLD) == rig.home.payload and tree(rig.home, NEW).is_dir()


def test_a_payload_that_nobody_has_is_not_found(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        code_trees.bring(rig.home, Store(rig.home), OLD)


def test_without_a_list_of_the_laptop_there_is_no_tree(rig: Rig) -> None:
    assert code_trees.make(rig.home) == ""
    assert rig.home.code("") == rig.home.payload
