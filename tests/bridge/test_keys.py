"""The key file: private, made once, and never repaired in silence."""

from __future__ import annotations

import base64
import json
import stat
import threading
from pathlib import Path

import pytest

from bridge.keys import KEY_BYTES, KeyStore
from bridgehead import names, rotation
from bridgehead.errors import NotFoundError, PairingError, UsageError


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
        barrier.wait(100)
        found.append(KeyStore(path).current())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(found) == 4 and len(set(found)) == 1


# --- several keys, and their ends ------------------------------------------------------------------


def test_a_file_of_version_1_is_read_and_rewritten_with_the_first_change(path: Path) -> None:
    path.parent.mkdir()
    old = base64.b64encode(bytes(range(32))).decode()
    path.write_text(json.dumps({"v": 1, "current": "k-old", "keys": {"k-old": old}}))
    store = KeyStore(path)
    assert store.current() == ("k-old", bytes(range(32))) and store.shell_allowed()
    made = store.make("colab")
    assert {item.id for item in KeyStore(path).all()} == {"k-old", made.id}
    assert json.loads(path.read_text())["v"] == 2 and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_of_a_newer_version_is_refused_and_stays(path: Path) -> None:
    KeyStore(path)
    content = path.read_text().replace('"v": 2', '"v": 3')
    path.write_text(content)
    with pytest.raises(PairingError, match="version 3"):
        KeyStore(path)
    assert path.read_text() == content


def test_another_process_change_is_seen_at_once(path: Path) -> None:
    bridge, cli = KeyStore(path), KeyStore(path)
    made = cli.make()
    assert bridge.key(made.id) == made.key
    cli.revoke(made.id)
    assert bridge.key(made.id) is None


def test_a_file_that_breaks_under_a_running_bridge_changes_nothing(path: Path) -> None:
    store = KeyStore(path)
    current = store.current()
    path.write_text("{")
    assert store.current() == current
    path.unlink()
    assert store.current() == current


def test_a_revoked_key_leaves_the_file_and_the_current_one_gets_an_heir(path: Path) -> None:
    store = KeyStore(path)
    key_id, key = store.current()
    ended, heir = store.revoke(key_id)
    assert [item.id for item in ended] == [key_id] and heir is not None
    assert store.current() == (heir.id, heir.key) and store.active() == [(heir.id, heir.key)]
    assert base64.b64encode(key).decode() not in path.read_text()
    with pytest.raises(UsageError, match="revoked already"):
        store.revoke(key_id)


def test_revoking_another_key_leaves_the_current_one(path: Path) -> None:
    store = KeyStore(path)
    current, other = store.current(), store.make("other", allow_sh=False)
    assert store.revoke(other.id)[1] is None and store.current() == current


def test_both_keys_of_a_rotation_are_good_until_the_old_one_ends(path: Path) -> None:
    store = KeyStore(path)
    old_id, old = store.current()
    new = store.rotate(old_id)
    assert new.key == rotation.successor(old, new.salt, old_id, new.id)
    assert store.current() == (new.id, new.key) and store.next_of(old_id) == new
    assert store.active() == [(old_id, old), (new.id, new.key)]
    assert store.end(old_id) and not store.end(old_id)
    assert store.active() == [(new.id, new.key)] and store.key(old_id) is None


def test_the_grace_of_a_rotated_key_ends_by_itself(path: Path) -> None:
    store = KeyStore(path)
    old_id, _ = store.current()
    store.rotate(old_id, grace_s=-1.0)
    assert store.key(old_id) is None


def test_a_key_is_rotated_once_and_its_successor_can_be_rotated_on(path: Path) -> None:
    store = KeyStore(path)
    old_id, old = store.current()
    new = store.rotate(old_id)
    with pytest.raises(UsageError, match="rotating"):
        store.rotate(old_id)
    newest = store.rotate(new.id)
    assert newest.family == old_id
    assert store.pairing("http://h", "0" * 64).former == (new.key, old)


def test_revoking_one_key_of_a_rotation_ends_all_of_them(path: Path) -> None:
    """Who has an old key and saw the salts has the new ones too."""
    store = KeyStore(path)
    old_id, _ = store.current()
    new = store.rotate(old_id)
    ended, heir = store.revoke(old_id)
    assert {item.id for item in ended} == {old_id, new.id} and heir is not None
    assert store.active() == [(heir.id, heir.key)] and store.pairing("http://h", "0" * 64).former == ()


def test_a_pairing_code_of_a_key_that_has_ended_is_refused(path: Path) -> None:
    store = KeyStore(path)
    old_id, _ = store.current()
    store.rotate(old_id)
    store.end(old_id)
    with pytest.raises(PairingError, match="not good any more"):
        store.pairing("http://h", "0" * 64, key_id=old_id)


def test_a_key_without_sh_says_so_in_its_code_and_after_its_rotation(path: Path) -> None:
    store = KeyStore(path)
    made = store.make("narrow", allow_sh=False)
    assert store.pairing("http://h", "0" * 64, key_id=made.id).allow_sh is False
    assert store.rotate(made.id).allow_sh is False and store.shell_allowed()
    store.revoke(store.current()[0])  # its heir allows what it allowed
    assert store.shell_allowed()


def test_a_key_is_found_by_id_name_and_beginning(path: Path) -> None:
    store = KeyStore(path)
    made = store.make("colab one")
    assert store.find("colab one") == store.find(made.id) == store.find(made.id[:-1]) == made
    assert store.find("").id == store.current()[0]
    with pytest.raises(NotFoundError, match="no key 'colab'"):
        store.find("colab")
    with pytest.raises(UsageError, match="2 keys begin"):
        store.find("k-")
    with pytest.raises(UsageError, match="called"):
        store.make("colab one")


def test_no_secret_is_in_a_repr(path: Path) -> None:
    store = KeyStore(path)
    new = store.rotate(store.current()[0])
    shown = repr(store.all()) + repr(store.pairing("http://h", "0" * 64)) + str(new)
    assert repr(new.key)[2:-1] not in shown and repr(new.salt)[2:-1] not in shown


def test_many_processes_that_make_keys_at_once_lose_none(path: Path) -> None:
    KeyStore(path)
    threads = [threading.Thread(target=lambda: KeyStore(path).make()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(KeyStore(path).all()) == 9
