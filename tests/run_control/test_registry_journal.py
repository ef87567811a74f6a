"""The journal: no entry is ever lost, whoever writes at once, whatever is torn, whatever the store forgets."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead import files
from bridgehead.errors import StoreError, StoreGone, VerificationError
from run_control.registry import catalog, entries
from run_control.registry.entries import Entry, Kind
from run_control.registry.journal import Draft, Journal
from vm_daemons.storage.folder_store import FolderStore

ROOT = Path(__file__).parents[2]
PREFIX = "watch/registry"


def journal(tmp_path: Path, laptop: str = "one", **more: Any) -> Journal:
    (tmp_path / "store").mkdir(exist_ok=True)
    store = FolderStore(tmp_path / "store", proves=False)
    return Journal(tmp_path / laptop / "registry.jsonl", store, PREFIX, f"me@{laptop}", **more)


def draft(model: str) -> Draft:
    return Draft(Kind.REGISTER, model, {"name": "m", "run_id": model})


def objects(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / PREFIX / "entries").iterdir())


def test_an_entry_is_one_object_and_names_the_one_before(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    first, second = mine.append(lambda _: draft("a")), mine.append(lambda _: draft("b"))
    assert first is not None and second is not None
    assert (first.seq, first.previous, second.previous) == (1, [], [first.digest])
    assert [path.name for path in objects(tmp_path)] == [first.name, second.name]
    assert entries.check_chain(journal(tmp_path, "two").entries()) == []


def test_five_laptops_at_once_lose_nothing_and_share_one_order(tmp_path: Path) -> None:
    journal(tmp_path)

    def write(laptop: int) -> None:
        mine = journal(tmp_path, f"laptop{laptop}", claim_s=300.0, wait_s=300.0)
        for number in range(3):
            mine.append(lambda _, name=f"{laptop}.{number}": draft(name))

    threads = [threading.Thread(target=write, args=(laptop,)) for laptop in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = journal(tmp_path, "reader").entries()
    assert {entry.model for entry in found} == {f"{laptop}.{number}" for laptop in range(5) for number in range(3)}
    assert [entry.seq for entry in found] == list(range(1, 16))
    assert entries.check_chain(found) == []
    assert not list((tmp_path / "store" / PREFIX / "claims").rglob("*-*"))


def test_two_processes_that_promote_the_same_model_do_it_once(tmp_path: Path) -> None:
    """The draft is made again after each collision, so the second one sees what the first one did."""
    code = (
        "import sys, pathlib\nfrom run_control.registry.journal import Draft, Journal\n"
        "from vm_daemons.storage.folder_store import FolderStore\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "mine = Journal(root / sys.argv[2] / 'c', FolderStore(root / 'store', proves=False), 'watch/registry', 'x')\n"
        "made = mine.append(lambda known: None if known else Draft('register', 'a', {}))\nprint(made is not None)"
    )
    journal(tmp_path)
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in ("p1", "p2")
    ]
    said = sorted(process.communicate(timeout=100)[0].strip() for process in running)
    assert said == ["False", "True"] and len(objects(tmp_path)) == 1


def test_a_claim_whose_writer_died_holds_nobody_up_for_long(tmp_path: Path) -> None:
    mine = journal(tmp_path, claim_s=0.2)
    assert mine.store is not None
    mine.store.put_bytes(f"{PREFIX}/claims/00000001/0000dead", b"{}")
    assert mine.append(lambda _: draft("a")) is not None
    assert not list((tmp_path / "store" / PREFIX / "claims").rglob("0000dead"))


def test_a_live_claim_with_a_lower_token_goes_first(tmp_path: Path) -> None:
    mine = journal(tmp_path, claim_s=60.0)
    store = mine.store
    assert store is not None
    claim = f"{PREFIX}/claims/00000001/0000"
    store.put_bytes(claim, b"{}")
    theirs = Entry(1, [], Kind.REGISTER, "theirs", 1.0, "them", {})
    written: list[Entry | None] = []
    thread = threading.Thread(target=lambda: written.append(mine.append(lambda _: draft("mine"))))
    thread.start()
    time.sleep(0.3)
    assert not written
    store.put_bytes(f"{PREFIX}/entries/{theirs.name}", theirs.canonical())
    store.delete(claim)
    thread.join(timeout=60)
    assert written[0] is not None and (written[0].seq, written[0].previous) == (2, [theirs.digest])


def test_two_entries_with_one_number_both_count_in_one_order(tmp_path: Path) -> None:
    """What a writer leaves that slept through its claim: later than anybody can still prevent."""
    mine = journal(tmp_path)
    mine.append(lambda _: draft("a"))
    assert mine.store is not None
    twins = [Entry(2, [mine.entries()[0].digest], Kind.DEMOTE, "a", 1.0, who, {}) for who in ("x", "y")]
    for twin in twins:
        mine.store.put_bytes(f"{PREFIX}/entries/{twin.name}", twin.canonical())
    orders = [[entry.digest for entry in journal(tmp_path, name).entries()] for name in ("one", "two")]
    assert orders[0] == orders[1] and len(orders[0]) == 3
    following = mine.append(lambda _: draft("b"))
    assert following is not None and following.previous == sorted(twin.digest for twin in twins)
    [problem] = entries.check_chain(mine.entries())
    assert problem.startswith("two writers collided at 2")


def test_a_torn_last_line_of_the_copy_is_left_out_and_written_past(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    for name in "abc":
        mine.append(lambda _, name=name: draft(name))
    copy = tmp_path / "one" / "registry.jsonl"
    copy.write_bytes(copy.read_bytes()[:-40])
    mine.append(lambda _: draft("d"))
    offline = Journal(copy, None, PREFIX, "me")
    assert [entry.model for entry in offline.entries()] == ["a", "b", "c", "d"]


def test_what_the_store_lost_is_put_back_from_the_copy(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    for name in "abc":
        mine.append(lambda _, name=name: draft(name))
    gone = objects(tmp_path)[1]
    gone.unlink()
    problems = entries.check_chain(journal(tmp_path, "two").entries())
    assert problems and "entry 3 follows one that is not there" in problems[0]
    mine.entries()
    assert gone.is_file() and entries.check_chain(journal(tmp_path, "three").entries()) == []


@pytest.mark.parametrize(
    "edit", [lambda data: data.replace(b"me@one", b"me@two"), lambda data: data[:-20], lambda _: b"[]"]
)
def test_an_entry_that_was_changed_is_refused_by_number(tmp_path: Path, edit: Any) -> None:
    journal(tmp_path).append(lambda _: draft("a"))
    [path] = objects(tmp_path)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(VerificationError, match="entry 00000001"):
        journal(tmp_path, "two").entries()


def test_without_its_store_a_laptop_shows_what_it_knows_and_writes_nothing(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    mine.append(lambda _: draft("a"))
    (tmp_path / "store").rename(tmp_path / "unmounted")
    later = Journal(tmp_path / "one" / "registry.jsonl", FolderStore(tmp_path / "store", proves=False), PREFIX, "me")
    assert [entry.model for entry in later.entries()] == ["a"] and "gone" in later.trouble
    with pytest.raises(StoreError):
        later.append(lambda _: draft("b"))
    with pytest.raises(StoreGone, match="no durable store"):
        Journal(tmp_path / "one" / "registry.jsonl", None, PREFIX, "me").append(lambda _: draft("b"))


def test_an_object_is_known_by_its_content(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    digest = mine.put_record({"verdict": "pass"})
    assert mine.put_record({"verdict": "pass"}) == digest and mine.record(digest) == {"verdict": "pass"}
    path = tmp_path / "store" / PREFIX / "objects" / digest
    path.write_bytes(b'{"verdict":"fail"}')
    with pytest.raises(VerificationError, match="was changed"):
        mine.record(digest)


ACTS = st.sampled_from(
    [
        (Kind.REGISTER, {"name": "m"}),
        *((Kind.ADVANCE, {"from": a, "to": b, "evidence": {"x": 1}}) for a in catalog.ORDER for b in catalog.ORDER),
        *((Kind.DEMOTE, {"to": state, "reason": "r"}) for state in catalog.ORDER),
        *((Kind.ALIAS, {"alias": "champion", "expected": e}) for e in ("", "m1", "m2")),
        (Kind.ALIAS, {"alias": "champion", "expected": "m1", "remove": True}),
        ("nonsense", {}),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ACTS, st.sampled_from(["m1", "m2"])), max_size=25))
def test_whatever_is_written_nothing_climbs_without_evidence_and_an_alias_has_one_bearer(acts: Any) -> None:
    written = [Entry(n + 1, [], kind, model, 0.0, "x", body) for n, ((kind, body), model) in enumerate(acts)]
    known = catalog.replay(written)
    for model in known.models.values():
        needed = catalog.ORDER[1 : catalog.ORDER.index(model.state) + 1]
        assert set(model.evidence) == set(needed)
        for alias in model.aliases:
            assert known.aliases[alias] == model.digest
            assert catalog.ORDER.index(model.state) >= catalog.ORDER.index(catalog.ALIAS_FROM)
    assert sum(len(model.aliases) for model in known.models.values()) == len(known.aliases)
    json.dumps([model.to_json() for model in known.models.values()])


def test_a_laptop_without_room_neither_hides_an_entry_nor_undoes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has it. A copy that was cut in the middle is mended by the next one that has room."""
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) > 1 and b"register" in data:
            return write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    mine = journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "append_line", lambda path, line: (half(_opened(path), line.encode()), half(0, b"x")))
        first = mine.append(lambda _: draft("a"))
        assert first is not None and mine.entries() == [first]
    second = mine.append(lambda _: draft("b"))
    assert second is not None and second.previous == [first.digest]
    assert journal(tmp_path).entries() == [first, second] and entries.check_chain([first, second]) == []


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
