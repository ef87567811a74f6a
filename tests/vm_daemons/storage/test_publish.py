"""What a VM leaves in the store for the next one, and how it notices that it is damaged there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from publish_support import published_by
from store_support import Faulty

from bridgehead import files
from vm_daemons.home import VmHome
from vm_daemons.storage import publish
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import Stored
from vm_daemons.uploader import Uploader


@pytest.mark.parametrize("name", ["a.py", "pkg/" * 20 + "a.py", "pkg/" + "long" * 30 + ".py", "deep/" * 60 + "a.py"])
@pytest.mark.parametrize("size_bytes", [0, 1, 511, 512, 513, 10240, 100_000])
def test_the_size_of_an_archive_is_known_without_packing_it(home: VmHome, name: str, size_bytes: int) -> None:
    path = home.payload / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size_bytes))
    entries = [{"path": name, "size": size_bytes, "mode": 0o644, "sha256": files.sha256_file(path)}]
    assert publish._pack(home.root / "packed.tar", home.payload, entries) == ""
    assert (home.root / "packed.tar").stat().st_size == publish._packed_bytes(entries)


@pytest.mark.parametrize("which", ["ship", "payload"])
def test_where_the_store_tells_a_digest_other_bytes_of_the_same_size_are_noticed(
    home: VmHome, drive: Path, which: str
) -> None:
    kept = published_by(home, drive)
    place, has = {"ship": (kept[0], publish.has_ship), "payload": (kept[1], publish.has_payload)}[which]

    class Telling(Faulty):
        """A store that keeps the digest beside the object, as Drive and S3 do."""

        def look(self, key: str) -> list[Stored]:
            return FolderStore(drive, proves=True).find(key)

    store = Telling(drive)
    assert publish.ship(store, home) and publish.payload(store, home) == "" and has(store, home)
    place.write_bytes(bytes(len(place.read_bytes())))
    assert not has(store, home) and has(Faulty(drive), home)
    assert publish.ship(store, home) and publish.payload(store, home) == "" and has(store, home)


def test_a_store_that_shows_it_damaged_as_soon_as_it_was_sent_gets_it_ever_more_seldom(
    home: VmHome, drive: Path
) -> None:
    published_by(home, drive)

    class Short(Faulty):
        def look(self, key: str) -> list[Stored]:
            return [Stored(key, 1)]

    store = Short(drive)
    made = Uploader(home, choose=lambda: store)
    lost = []
    for canary in range(40):
        made._well, done = canary, {"ship": "x"}
        made._forget_what_is_gone(done, store)
        lost += [] if done else [canary]
    assert lost == [0, 1, 3, 7, 15, 31]
