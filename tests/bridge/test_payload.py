"""The payload: what the globs choose, what is never sent, and that hashes follow the files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from bridge.payload import Payload
from bridge.project import ProjectView
from bridgehead import names
from bridgehead.errors import NotFoundError, UsageError


def project(root: Path, include: list[str], exclude: list[str] | None = None) -> Payload:
    return Payload(root, lambda: ProjectView("watch", {}, include, exclude or [], ["numpy>=2"]))


def write(root: Path, *paths: str) -> None:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path)


def listed(payload: Payload) -> list[str]:
    return [entry["path"] for entry in payload.manifest()["files"]]


def read(payload: Payload, path: str) -> tuple[bytes, int, str]:
    fd, size, sha256 = payload.open(path)
    with os.fdopen(fd, "rb") as handle:
        return handle.read(), size, sha256


def test_a_manifest_says_what_each_file_is(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    manifest = project(tmp_path, ["*.py", "*.sh"]).manifest()
    assert (manifest["project"], manifest["requirements"]) == ("watch", ["numpy>=2"])
    assert manifest["files"] == [
        {"path": "run.sh", "size": 6, "sha256": hashlib.sha256(b"run.sh").hexdigest(), "mode": 0o755},
        {"path": "train.py", "size": 8, "sha256": hashlib.sha256(b"train.py").hexdigest(), "mode": 0o644},
    ]


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        (["*.py"], [], ["a.py"]),
        (["**/*.py"], [], ["a.py", "lib/b.py", "lib/deep/c.py"]),
        (["lib"], [], ["lib/b.py", "lib/data.csv", "lib/deep/c.py"]),
        (["lib/"], ["lib/deep"], ["lib/b.py", "lib/data.csv"]),
        (["lib/*"], [], ["lib/b.py", "lib/data.csv", "lib/deep/c.py"]),
        (["lib/**"], ["**/*.csv"], ["lib/b.py", "lib/deep/c.py"]),
        (["**/deep/?.py"], [], ["lib/deep/c.py"]),
        (["lib/[a-c].py", "[!a].py"], [], ["lib/b.py"]),
        (["**"], ["lib"], ["a.py"]),
        ([], [], []),
    ],
)
def test_globs(tmp_path: Path, include: list[str], exclude: list[str], found: list[str]) -> None:
    write(tmp_path, "a.py", "lib/b.py", "lib/data.csv", "lib/deep/c.py")
    assert listed(project(tmp_path, include, exclude)) == found


def test_private_files_and_leftovers_are_never_sent(tmp_path: Path) -> None:
    never = [f"{names.PRIVATE_FOLDER}/{names.KEYS_FILE}", f"{names.IN_FOLDER}/run/log", ".git/config"]
    never += [names.QUEUE_FILE, names.PROJECT_FILE, ".venv/lib/x.py", "lib/__pycache__/x.pyc", ".env"]
    write(tmp_path, "train.py", "lib/in/kept.py", *never)
    everything = ["**", f"{names.PRIVATE_FOLDER}/**", names.IN_FOLDER, ".git", ".venv/**", "lib/__pycache__"]
    assert listed(project(tmp_path, everything)) == ["lib/in/kept.py", "train.py"]


def test_links_are_neither_sent_nor_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, "secret.py")
    root = tmp_path / "project"
    write(root, "train.py")
    (root / "link.py").symlink_to(outside / "secret.py")
    (root / "folder").symlink_to(outside)
    payload = project(root, ["**"])
    assert listed(payload) == ["train.py"]
    for path in ("link.py", "folder/secret.py", "nothing.py"):
        with pytest.raises(NotFoundError):
            payload.open(path)


def test_a_file_that_turns_into_a_link_after_the_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "other.py")
    payload = project(tmp_path, ["train.py"])
    assert listed(payload) == ["train.py"]
    (tmp_path / "train.py").unlink()
    (tmp_path / "train.py").symlink_to("other.py")
    with pytest.raises(NotFoundError):
        payload.open("train.py")


@pytest.mark.parametrize("name", ["my data.csv", "naïve.py", "con.py"])
def test_a_name_that_cannot_cross_the_wire_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    with pytest.raises(UsageError) as caught:
        project(tmp_path, ["**"]).manifest()
    assert repr(name) in caught.value.message and "exclude" in caught.value.hint
    assert listed(project(tmp_path, ["**"], [name])) == []


@pytest.mark.parametrize("path", ["../keys.json", "/etc/passwd", "a//b", ".bridgehead/keys.json", "lib\\b.py", ""])
def test_unsafe_paths_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError):
        project(tmp_path, ["**"]).open(path)


def test_a_named_pipe_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert listed(project(tmp_path, ["**"])) == []


def test_opening_gives_content_size_and_hash_also_before_any_manifest(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    content, size, sha256 = read(project(tmp_path, ["**"]), "train.py")
    assert (content, size, sha256) == (b"train.py", 8, hashlib.sha256(b"train.py").hexdigest())


def test_a_change_of_the_same_size_in_the_same_instant_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    payload = project(tmp_path, ["**"])
    first = payload.manifest()
    info = (tmp_path / "train.py").stat()
    with (tmp_path / "train.py").open("r+") as handle:
        handle.write("TRAIN.PY")
    os.utime(tmp_path / "train.py", ns=(info.st_atime_ns, info.st_mtime_ns))
    second = payload.manifest()
    assert first["payload_sha256"] != second["payload_sha256"]
    assert second["files"][0]["sha256"] == hashlib.sha256(b"TRAIN.PY").hexdigest()


def test_an_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "data.bin")
    os.utime(tmp_path / "data.bin", (1_000_000_000, 1_000_000_000))
    payload = project(tmp_path, ["**"])
    first = payload.manifest()
    monkeypatch.setattr(os, "read", lambda *_: pytest.fail("read again"))
    assert payload.manifest() == first


def test_all_names_that_can_not_travel_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path, "good.py", *(f"my data {number}.csv" for number in range(8)))
    payload = project(tmp_path, ["**"])
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            payload.manifest()
        message = caught.value.message
        assert message.startswith("8 payload files have names that can't travel: 'my data 0.csv'")
        assert message.count("my data") >= 5 and "my data 5" not in message and message.endswith("; and 3 more")
    assert listed(project(tmp_path, ["**"], ["*.csv"])) == ["good.py"]


def test_what_is_passed_over_in_silence_no_more(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".env", ".cache/x/y", "lib/.hidden.py", "out/b.csv", ".git/config", ".csv.swp", "lib/c.csv")
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "folder").symlink_to("lib")
    os.mkfifo(tmp_path / "pipe.py")
    told = project(tmp_path, ["**"], ["out", "*.swp"]).manifest()["stays"]
    assert told == (
        "not sent: 3 hidden files (.cache/x/y, .env, lib/.hidden.py): a name with a leading dot can't travel, so rename"
        " what a run needs; 2 links (folder, link.py): put the files themselves there; 1 FIFO or device (pipe.py)"
    )
    assert project(tmp_path, ["*.csv"]).manifest()["stays"] == ""
    with pytest.raises(UsageError, match="'.env'"):
        project(tmp_path, ["a.py", ".env"]).manifest()
