"""A VM takes up what another one left in the store, with the laptop off; and never while the other may live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from takeover_rig import PATIENCE_S, Ghost, TakerRig

from bridgehead import checkpoints, files, names, signing
from bridgehead.errors import SupersededError
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, RunRecord
from command_rig import SLEEP, WAITS
from support import wait_until
from vm_daemons import peers as peers_module
from vm_daemons import takeover
from vm_daemons.journal import Journal, Step
from vm_daemons.peers import Peer, Peers
from vm_daemons.storage.store import Store
from vm_daemons.storage.store_choice import choose
from vm_run_support import log_of, python, wait_for_stage

RESUMES = python(
    "import bridgehead\n"
    "found = bridgehead.current_run().latest_checkpoint()\n"
    "print('from', found.step if found else None, flush=True)"
)
LEAVES_A_MARK = "touch was-here"


@pytest.fixture
def taker(tmp_path: Path, drive: Path) -> Iterator[TakerRig]:
    rig = TakerRig(tmp_path / "vm", drive)
    yield rig
    rig.clean()


@pytest.fixture
def ghost(tmp_path: Path, drive: Path) -> Ghost:
    return Ghost(tmp_path / "dead", drive)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each look into the store."""
    counted: list[int] = []
    real = Peers.look

    def look(self: Peers, also: set[str] | None = None) -> list[Peer]:
        found = real(self, also)
        counted.append(len(found))
        return found

    monkeypatch.setattr(Peers, "look", look)
    return counted


def more_looks(looks: list[int], number: int = 6) -> None:
    before = len(looks)
    wait_until(lambda: len(looks) >= before + number, 20, what="more looks into the store")


def attempt_of(rig: TakerRig, command: Command) -> int:
    return RunRecord.from_json(files.read_json(rig.dir(command) / names.RUN_RECORD)).attempt


# --- what is taken up ---------------------------------------------------------------------------------------


def test_a_run_goes_on_from_the_store_with_the_laptop_off(taker: TakerRig, ghost: Ghost) -> None:
    train = ghost.had(taker.run(RESUMES))
    ghost.saved(train, 40)
    with taker.daemon():
        assert taker.wait_for_exit(train).state is RunState.DONE, log_of(taker.dir(train))
        assert "from 40" in log_of(taker.dir(train))
        taker.mirror(Command.from_json({**train.to_json(), "attempt": 2}))
        taker.laptop.off.clear()
        assert taker.laptop.finished(train).attempt == 2
    assert taker.laptop.answers(train) == ["accepted", "started", "finished"]


def test_what_was_queued_behind_it_is_taken_in_the_same_order(taker: TakerRig, ghost: Ghost) -> None:
    first = ghost.had(taker.run("sh -c 'cat order || true; echo first >> order'"))
    second = ghost.had(taker.run("sh -c 'echo second >> order'", inputs={"train": first.run_id}), started=False)
    with taker.daemon():
        taker.wait_for_exit(first)
        taker.wait_for_exit(second)
    assert (taker.home.payload / "order").read_text() == "first\nsecond\n"


def test_a_shell_command_is_never_begun_a_second_time(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    shells = [ghost.had(taker.shell(LEAVES_A_MARK), started=started) for started in (True, False)]
    with taker.daemon():
        more_looks(looks)
        taker.laptop.off.clear()
        for shell in shells:
            wait_until(lambda told=shell: taker.laptop.answers(told) == ["unknown"], what="the answer")  # type: ignore[misc]
    assert not (taker.home.payload / "was-here").exists()
    reasons = {command_id: record.reason for command_id, record in taker.laptop.acks}
    began, waited = (reasons[shell.id] for shell in shells)
    assert began == f"it began on {ghost.vm_id}, which is dead; nobody knows how it ended, and it is not repeated"
    assert f"it waited on {ghost.vm_id}, which is dead; most likely it never began" in waited


def test_the_outcome_of_a_shell_command_that_the_laptop_never_heard_is_passed_on(taker: TakerRig, ghost: Ghost) -> None:
    shell = ghost.had(taker.shell(LEAVES_A_MARK))
    ghost.journal.finished(shell, AckRecord(ghost.vm_id, Ack.FINISHED, 1, exit_code=3, state="failed"))
    ghost.publish()
    with taker.daemon():
        wait_until(lambda: taker.journal_has("finished"), what="the take-over")
        taker.laptop.off.clear()
        told = taker.laptop.finished(shell)
    assert (told.exit_code, told.state, told.attempt) == (3, "failed", 2)


def test_a_run_that_was_asked_to_stop_is_left_alone(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    ghost.had(taker.command(Verb.STOP, train.run_id), started=False)
    with taker.daemon():
        more_looks(looks)
    assert not taker.dir(train).exists()


def test_a_run_that_had_ended_is_brought_and_not_run_again(taker: TakerRig, ghost: Ghost) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    ghost.ended(train)
    with taker.daemon():
        ended = taker.wait_for_exit(train)
        taker.mirror(Command.from_json({**train.to_json(), "attempt": 2}))
        taker.laptop.off.clear()
        assert taker.laptop.finished(train).state == "done"
    assert (ended.state, ended.attempt) == (RunState.DONE, 2)
    assert (taker.dir(train) / "artifacts/encoder.bin").read_bytes() == b"encoder"
    assert log_of(taker.dir(train)).startswith("trained over there\n--- attempt 1 had ended (done)")
    assert not (taker.home.payload / "was-here").exists()


def test_also_the_ledgers_own_next_attempt_is_not_run_when_the_run_had_ended(taker: TakerRig, ghost: Ghost) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    ghost.ended(train)
    taker.laptop.off.clear()
    again = Command.from_json({**taker.again(train, attempt=2).to_json(), "former_vm": "x", "former_gone": True})
    again = Command.from_json({**again.to_json(), "vm_id": taker.home.record()["vm_id"]})
    with taker.daemon():
        taker.laptop.queue(again)
        assert taker.wait_for_exit(train).attempt == 2
        taker.mirror(again)
        assert taker.laptop.finished(train).state == "done"
    assert not (taker.home.payload / "was-here").exists()


def test_when_what_it_left_is_damaged_it_goes_on_from_its_checkpoint(
    taker: TakerRig, ghost: Ghost, drive: Path
) -> None:
    train = ghost.had(taker.run(RESUMES))
    ghost.saved(train, 40)
    ghost.ended(train)
    next(drive.rglob("encoder.bin")).write_bytes(b"ENCODER")
    with taker.daemon():
        taker.wait_for_exit(train)
    assert "what it left in the store is damaged" in log_of(taker.dir(train))
    assert "from 40" in log_of(taker.dir(train))


def test_a_run_that_was_handed_over_needs_no_silence(taker: TakerRig, ghost: Ghost) -> None:
    train = ghost.had(taker.run(RESUMES))
    ghost.saved(train, 40)
    ghost.journal.handed_over(train)
    ghost.publish()
    with ghost.beating(), taker.daemon():
        assert taker.wait_for_exit(train).state is RunState.DONE
    assert "from 40" in log_of(taker.dir(train))


# --- what is not ------------------------------------------------------------------------------------------


def test_nothing_is_taken_from_a_vm_that_beats(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    with ghost.beating(), taker.daemon():
        more_looks(looks, 8)
        assert not taker.dir(train).exists()


def test_nothing_is_taken_while_the_laptop_answers(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    taker.laptop.off.clear()
    other = taker.run("true", stage="other", former_vm=ghost.vm_id, attempt=2)  # so that it looks
    with taker.daemon():
        taker.laptop.queue(other)
        taker.wait_for_exit(other)
        assert not taker.dir(train).exists()


def test_a_command_that_the_laptop_never_signed_is_not_run(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    """Whoever can write to the store must not be able to have code run here."""
    ghost.had(taker.run(LEAVES_A_MARK))
    path = ghost.folder / names.VM_JOURNAL
    line = json.loads(path.read_text().splitlines()[0])
    line["command"]["spec"]["command"] = "touch forged"
    path.write_text(json.dumps(line) + "\n")
    with taker.daemon():
        more_looks(looks)
    assert list(taker.home.payload.iterdir()) == []


@pytest.mark.parametrize(
    "journal",
    [
        b"",
        b"\0" * 4096,
        b"[" * 100_000 + b"\n",
        b"{}\n[]\nnull\n1\n",
        b'{"step": "accepted", "id": 1}\n',
        b"\xff\xfe\n",
    ],
)
def test_a_journal_that_makes_no_sense_takes_nothing_and_stops_nothing(
    taker: TakerRig, ghost: Ghost, tmp_path: Path, drive: Path, journal: bytes
) -> None:
    other = Ghost(tmp_path / "other", drive)
    train = other.had(taker.run("true"))
    (ghost.folder / names.VM_JOURNAL).write_bytes(journal)
    (ghost.folder / names.STORE_BEAT).write_bytes(journal)
    with taker.daemon():
        taker.wait_for_exit(train)


def test_the_journal_of_a_vm_that_is_long_dead_is_read_once(
    taker: TakerRig, ghost: Ghost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project has many dead VMs after a year, and each read of the store is a request."""
    taker.home.update_record(vm_rules={"lost_after_s": 0.0})
    train = ghost.had(taker.run("true"))
    peers = Peers(taker.home, lambda: choose(taker.home))
    peers.look()
    peers.look()
    (ghost.folder / names.VM_JOURNAL).unlink()
    (peer,) = peers.look()
    assert [entry.command.id for entry in peer.entries] == [train.id]
    ghost.beat()
    (peer,) = peers.look()
    assert peer.entries == ()


def test_a_journal_that_is_too_big_is_passed_over(
    taker: TakerRig, ghost: Ghost, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost.had(taker.run("true"))
    monkeypatch.setattr(peers_module, "JOURNAL_MAX_BYTES", 100)
    (peer,) = Peers(taker.home, lambda: choose(taker.home)).look()
    assert peer.entries == ()


# --- the second sign ----------------------------------------------------------------------------------------


def lent(taker: TakerRig, ghost: Ghost, command: str = WAITS) -> Command:
    return taker.run(command, attempt=2, former_vm=ghost.vm_id)


def test_a_lent_run_is_accepted_once_its_former_vm_is_silent_in_the_store_too(
    taker: TakerRig, ghost: Ghost, looks: list[int]
) -> None:
    train = lent(taker, ghost, "true")
    taker.laptop.off.clear()
    with taker.daemon():
        with ghost.beating():
            taker.laptop.queue(train)
            more_looks(looks, 8)
            assert taker.laptop.answers(train) == [] and not taker.dir(train).exists()
        assert taker.wait_for_exit(train).state is RunState.DONE
    assert taker.laptop.answers(train)[0] == "accepted"


def test_it_does_not_start_before_the_laptop_has_agreed(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = lent(taker, ghost, "true")
    taker.laptop.off.clear()
    refused: list[str] = []

    def refuse(_id: str, record: AckRecord) -> Exception:
        refused.append(str(record.ack))
        return SupersededError("its former VM is back")

    taker.laptop.refuse = refuse
    with taker.daemon():
        taker.laptop.queue(train)
        wait_until(lambda: refused, what="the answer")
        files.write_json(taker.home.state / names.VM_REVOKED, [{"run_id": train.run_id, "attempt": 2}])
        wait_until(lambda: taker.journal_has("abandoned"), what="its end")
    assert not taker.dir(train).exists()


def test_the_news_that_its_former_vm_is_gone_is_enough(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = lent(taker, ghost, "true")
    taker.laptop.off.clear()
    with ghost.beating(), taker.daemon():
        taker.laptop.queue(train)
        more_looks(looks, 3)
        taker.laptop.queue(Command.from_json({**taker.again(train).to_json(), "former_gone": True}))
        assert taker.wait_for_exit(train).state is RunState.DONE


def test_a_vm_that_said_goodbye_is_dead_at_once(taker: TakerRig, ghost: Ghost) -> None:
    taker.home.update_record(vm_rules={"lost_after_s": 3600.0})
    ghost.beat(released=True)
    train = lent(taker, ghost, "true")
    taker.laptop.off.clear()
    with taker.daemon():
        taker.laptop.queue(train)
        # One look is enough; until the next one an hour would pass.
        assert taker.wait_for_exit(train).state is RunState.DONE


def test_without_a_store_there_is_no_second_sign_to_wait_for(tmp_path: Path) -> None:
    taker = TakerRig(tmp_path / "vm", None)
    taker.laptop.off.clear()
    train = taker.run("true", attempt=2, former_vm="vm-other")
    with taker.daemon():
        taker.laptop.queue(train)
        assert taker.wait_for_exit(train).state is RunState.DONE


def test_a_lent_run_goes_on_when_the_laptop_goes_too(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = lent(taker, ghost, "true")
    taker.laptop.off.clear()
    with taker.daemon():
        with ghost.beating():
            taker.laptop.queue(train)
            more_looks(looks, 3)
            taker.laptop.off.set()
        assert taker.wait_for_exit(train).state is RunState.DONE
    assert attempt_of(taker, train) == 3  # an offer may have been withdrawn meanwhile: its number is not used


# --- two takers ---------------------------------------------------------------------------------------------


def test_of_two_takers_the_one_that_is_later_leaves_it(
    taker: TakerRig, ghost: Ghost, tmp_path: Path, drive: Path, looks: list[int]
) -> None:
    train = ghost.had(taker.run(LEAVES_A_MARK))
    ghost.saved(train, 40)
    other = Ghost(tmp_path / "other", drive)
    theirs = Command.from_json({**train.to_json(), "attempt": 2})
    other.run_dir(theirs)
    Store(other.home).mirror(other.home.run(train.run_id))  # it has the lease, and its journal is still on the way
    with other.beating(), taker.daemon():
        wait_until(lambda: taker.journal_has("accepted"), what="the take-over")
        other.had(theirs)
        wait_until(lambda: taker.journal_has("abandoned"), what="its end")
        more_looks(looks, 3)
    assert not (taker.home.payload / "was-here").exists()


def test_an_attempt_whose_lease_another_holds_waits_until_that_one_is_dead(
    taker: TakerRig, ghost: Ghost, looks: list[int]
) -> None:
    """The laptop gave it to us, and meanwhile another VM had taken it over from the store."""
    train = taker.run(RESUMES, attempt=2, former_vm="vm-first", former_gone=True)
    theirs = ghost.had(train)
    ghost.saved(theirs, 40)
    taker.laptop.off.clear()
    with taker.daemon():
        with ghost.beating():
            taker.laptop.queue(train)
            more_looks(looks, 8)
            assert not (taker.dir(train) / names.EXIT).exists()
        assert taker.wait_for_exit(train).attempt == 3
    assert "from 40" in log_of(taker.dir(train))


def test_and_brings_what_that_one_made_when_it_ends(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    train = taker.run(LEAVES_A_MARK, attempt=2, former_vm="vm-first", former_gone=True)
    theirs = ghost.had(train)
    ghost.saved(theirs, 40)
    taker.laptop.off.clear()
    with ghost.beating(), taker.daemon():
        taker.laptop.queue(train)
        more_looks(looks, 3)
        ghost.ended(theirs)
        assert taker.wait_for_exit(train).state is RunState.DONE
    assert not (taker.home.payload / "was-here").exists()


def test_what_was_taken_from_this_vm_comes_back_when_the_taker_dies_unheard(
    taker: TakerRig, ghost: Ghost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "IDLE_LOOKS", 1)
    train = taker.run("true")
    taker.laptop.off.clear()
    journal = Journal(taker.home.journal)
    journal.accept([train])
    journal.abandoned(train)
    theirs = ghost.had(Command.from_json({**train.to_json(), "attempt": 2}))
    ghost.saved(theirs, 40)
    with taker.daemon():
        assert taker.wait_for_exit(train).attempt == 3


# --- killed on the way --------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("appends", range(5))
def test_a_taker_that_dies_at_any_step_of_its_journal_neither_forgets_nor_repeats(
    taker: TakerRig, ghost: Ghost, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    """The daemon dies in the middle of its n-th line; its stage lives on, and the next daemon takes up from there."""
    code = (
        "import os\nopen('began', 'a').write('x')\nwhile not os.path.exists('go'): pass\nopen('ended', 'a').write('x')"
    )
    train = ghost.had(taker.run(python(code)))
    shell = ghost.had(taker.shell(LEAVES_A_MARK))
    real, left = files.append_line, [appends]

    def append(path: Path, text: str, *, durable: bool = True) -> None:
        if path == taker.home.journal:
            if left[0] == 0:
                path.open("ab").write(text.encode()[: len(text) // 2])
                raise _Killed
            left[0] -= 1
        real(path, text, durable=durable)

    monkeypatch.setattr(files, "append_line", append)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with taker.daemon():
        wait_until(lambda: left[0] == 0 or (taker.home.payload / "began").exists(), what="its death")
    monkeypatch.setattr(files, "append_line", real)
    with taker.daemon():
        wait_for_stage(taker.dir(train))
        (taker.home.payload / "go").touch()
        assert taker.wait_for_exit(train).state is RunState.DONE
        taker.laptop.off.clear()
        wait_until(lambda: "unknown" in taker.laptop.answers(shell), what="the word on the shell command")
    assert (taker.home.payload / "began").read_text() == "x" and not (taker.home.payload / "was-here").exists()


# --- resume= ------------------------------------------------------------------------------------------------


def _from(taker: TakerRig, other: Command) -> Command:
    run = taker.run(RESUMES)
    return Command.from_json({**run.to_json(), "spec": {**run.to_json()["spec"], "resume_from": other.run_id}})


def test_a_run_begins_at_the_checkpoint_that_another_one_left_in_the_store(taker: TakerRig, ghost: Ghost) -> None:
    other = taker.run("true")
    ghost.saved(other, 40)
    new = _from(taker, other)
    taker.laptop.off.clear()
    with taker.daemon():
        taker.laptop.queue(new)
        assert taker.wait_for_exit(new).state is RunState.DONE, log_of(taker.dir(new))
    assert f"begins at checkpoint 40 of {other.run_id}" in log_of(taker.dir(new)) and "from 40" in log_of(
        taker.dir(new)
    )
    assert not (taker.home.run(other.run_id)).exists()


def test_it_takes_the_newer_one_of_disk_and_store_and_leaves_a_bad_one_as_it_is(taker: TakerRig, ghost: Ghost) -> None:
    other = taker.run("true")
    ghost.saved(other, 40)
    root = taker.home.run(other.run_id) / names.CHECKPOINTS
    for step in (50, 60):
        with checkpoints.staging(root) as staged:
            (staged / "state.pt").write_bytes(b"state")
            checkpoints.commit(staged, root, step, {})
    (root / "step-00000060/state.pt").write_bytes(b"stale")
    new = _from(taker, other)
    taker.laptop.off.clear()
    with taker.daemon():
        taker.laptop.queue(new)
        assert taker.wait_for_exit(new).state is RunState.DONE
    assert "from 50" in log_of(taker.dir(new))
    assert sorted(path.name for path in root.iterdir()) == ["step-00000050", "step-00000060"]


def test_where_the_other_run_left_no_checkpoint_it_fails_and_does_not_begin_anew(taker: TakerRig, ghost: Ghost) -> None:
    new = _from(taker, taker.run("true"))
    taker.laptop.off.clear()
    with taker.daemon():
        taker.laptop.queue(new)
        ended = taker.wait_for_exit(new)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, None)
    assert "no checkpoint of" in ended.message and "from None" not in log_of(taker.dir(new))


def test_a_commit_that_was_cut_is_passed_over_without_a_step_that_nobody_knows(
    taker: TakerRig, ghost: Ghost, drive: Path
) -> None:
    train = ghost.had(taker.run(RESUMES))
    ghost.saved(train, 40)
    commit = next(drive.rglob(names.SLOT_COMMIT))
    slot = commit.parent.with_name("slot-b" if commit.parent.name == "slot-a" else "slot-a")
    slot.mkdir()
    (slot / names.SLOT_COMMIT).write_bytes(commit.read_bytes()[:50])
    with taker.daemon():
        taker.wait_for_exit(train)
    said = log_of(taker.dir(train))
    assert f"passed over the checkpoint in {slot.name}: " in said and "step -1" not in said and "from 40" in said


# --- what is said -------------------------------------------------------------------------------------------------


def test_a_line_for_each_thing_says_how_it_stood(taker: TakerRig, ghost: Ghost, looks: list[int]) -> None:
    going = ghost.had(taker.run(SLEEP))
    queued = ghost.had(taker.run(SLEEP, stage="tune", inputs={"train": going.run_id}), started=False)
    own = Journal(taker.home.journal)
    peers = Peers(taker.home, lambda: choose(taker.home)).look()
    assert takeover.survey(peers) == [
        f"{ghost.vm_id}: under way: {going.run_id}; queued: {queued.run_id}; 0 ended",
    ]
    found = takeover.find(own, [Peer(ghost.vm_id, PATIENCE_S, peers[0].entries)], PATIENCE_S, "vm-me")
    assert [line.partition(": ")[2] for line in found.lines] == [
        f"was under way on {ghost.vm_id}; taken over as attempt 2",
        f"was queued on {ghost.vm_id}; taken over as attempt 2",
    ]


def test_the_journals_copy_is_signed_with_the_pairings_key(taker: TakerRig, ghost: Ghost) -> None:
    ghost.had(taker.run("true"))
    line = json.loads((ghost.folder / names.VM_JOURNAL).read_text().splitlines()[0])
    key = taker.home.pairing().key
    signing.open_document(key, "command", {"kind": "command", "body": line["command"], "sig": line["sig"]})
    assert Step(line["step"]) is Step.ACCEPTED


def test_a_laptop_that_has_nothing_to_say_is_not_silent(taker: TakerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long poll without news is no silence; while there was no answer yet, polls are short."""
    waits: list[float] = []
    real = taker.laptop.poll

    def poll(after: int, wait_s: float) -> list[Command]:
        waits.append(wait_s)
        return real(after, wait_s)

    monkeypatch.setattr(taker.laptop, "poll", poll)
    with taker.daemon():
        wait_until(lambda: len(waits) >= 2, what="two polls of a laptop that is off")
        taker.laptop.off.clear()
        wait_until(lambda: waits[-1] > 0, what="a long poll")
    assert set(waits[:2]) == {0.0}
