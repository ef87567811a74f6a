"""The key file: private, made once, and never repaired in silence."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from bridge.keys import KEY_BYTES, KeyStore
from bridgehead import names
from bridgehead.errors import PairingError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / names.PRIVATE_FOLDER / names.KEYS_FILE


def test_a_key_is_made_once_and_kept(path: Path) -> None:
    key_id, key = KeyStore(path).current()
    assert KeyStore(path).current() == (key_id, key)
    assert len(key) == KEY_BYTES and KeyStore(path).key(key_id) == key
    assert KeyStore(path).key("k-unknown") is None


def test_only_its_owner_can_read_it(path: Path) -> None:
    KeyStore(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [names.KEYS_FILE]
    path.chmod(0o644)
    KeyStore(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"current": "k-1", "keys": {}}', '{"current": "k-1", "keys": {"k-1": "c2hvcnQ="}}']
)
def test_a_damaged_file_is_an_error_with_a_next_step_and_stays(path: Path, content: str) -> None:
    KeyStore(path)
    path.write_text(content)
    with pytest.raises(PairingError) as caught:
        KeyStore(path)
    assert "pair the VM" in caught.value.hint
    assert path.read_text() == content


def test_two_that_start_at_once_agree_on_one_key(path: Path) -> None:
    found = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait(10)
        found.append(KeyStore(path).current())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4 and len(set(found)) == 1
