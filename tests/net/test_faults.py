"""A real bridge and real daemons in namespaces of their own, with bad lines between them: everything arrives once.

Packets are lost, doubled, overtaken and slow, cables are pulled, and laptop, relay and the VM's daemons are killed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import net_rig
import pytest
from net_rig import LAPTOP, LAPTOP_HOST, PORT, RELAY, RELAY_HOST, ROOT, VM, Net, Weather

from bridgehead import files, names
from bridgehead.pairing import Pairing
from bridgehead.queue_lines import encode_shell
from support import wait_until
from vm_daemons.home import VmHome

WHY_NOT = net_rig.why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "namespaces"),
    pytest.mark.timeout(400),
]
BLOB_BYTES = 9 * 2**20  # two parts
PATIENCE_S = 120.0
URL = f"http://{RELAY_HOST}:{PORT}"
# Writes lines until the test says that it is enough.
WORK = f"""\
import hashlib, itertools, os, pathlib, time
with open(os.environ["MARKS"], "a") as marks:
    marks.write("started\\n")
for number in itertools.count():
    print(number, hashlib.sha256(str(number).encode()).hexdigest(), flush=True)
    time.sleep(0.02)
    if os.path.exists(os.environ["MARKS"] + "-enough"):
        break
out = pathlib.Path(os.environ["BRIDGEHEAD_RUN_DIR"], "artifacts")
out.mkdir(exist_ok=True)
blob = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range({BLOB_BYTES // 32}))
(out / "blob.bin").write_bytes(blob)
"""
BLOB = hashlib.sha256(
    b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(BLOB_BYTES // 32))
).hexdigest()
FOUL = Weather(delay_s=0.01, jitter_s=0.02, lost=0.03, doubled=0.03)
SLOW = Weather(delay_s=0.05, bytes_per_s=1_500_000)


class Ends:
    """What runs in the namespaces, each end to be killed and started again."""

    def __init__(self, net: Net, root: Path) -> None:
        self.net, self.root = net, root
        self.project, self.logs = root / "project", root / "logs"
        self.marks = root / "marks"
        for folder in (self.project, self.logs):
            folder.mkdir()
        (self.project / "work.py").write_text(WORK)
        (self.project / names.QUEUE_FILE).touch()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("bridge")
        self.start("relay")
        said = wait_until(lambda: files.read_json(self.project / "said.json"), PATIENCE_S, what="the bridge")
        self.home = VmHome(root / "vm")
        self.home.create()
        self.home.save_pairing(Pairing(URL, said["key_id"], bytes.fromhex(said["key"]), said["boot"]))
        self.home.update_record(project="net", ship_sha256=said["boot"])
        self.home.api(said["boot"]).mkdir(parents=True)
        (self.home.api(said["boot"]) / "bridgehead").symlink_to(ROOT / "bridgehead")
        (self.home.payload / "work.py").write_text(WORK)
        for daemon in names.DAEMONS:
            self.start(daemon)

    def start(self, who: str) -> None:
        here = [sys.executable, str(ROOT / "tests/net_ends.py")]
        stages = json.dumps({"work": f"{sys.executable} work.py"})
        argv = {
            "bridge": (LAPTOP, [*here, "bridge", str(self.project), LAPTOP_HOST, str(PORT), URL, stages]),
            "relay": (RELAY, [*here, "relay", RELAY_HOST, str(PORT), LAPTOP_HOST, str(PORT)]),
        }.get(who, (VM, [sys.executable, "-m", f"vm_daemons.{who}"]))
        env = {names.ENV_HOME: str(self.root / "vm"), "MARKS": str(self.marks)}
        self.processes[who] = self.net.start(*argv, self.logs / who, env)

    def restart(self, who: str) -> None:
        self.net.kill(self.processes[who])
        self.start(who)

    def queue(self, *lines: str) -> None:
        with (self.project / names.QUEUE_FILE).open("a") as handle:
            handle.write("".join(line + "\n" for line in lines))

    def lines(self) -> int:
        """How many lines of the run's log the laptop has."""
        found = list((self.project / names.IN_FOLDER).glob(f"work-*/{names.LOG}"))
        return found[0].read_bytes().count(b"\n") if found else 0

    def wait_for_lines(self, count: int) -> None:
        wait_until(lambda: self.lines() >= count, PATIENCE_S, what=f"line {count} on the laptop")

    def states(self) -> list[str]:
        with sqlite3.connect(f"file:{self.project / names.PRIVATE_FOLDER / names.LEDGER_FILE}?mode=ro", uri=True) as db:
            return [state for (state,) in db.execute("SELECT state FROM commands ORDER BY seq")]

    def wait_until_done(self, count: int) -> None:
        wait_until(lambda: self.states() == ["done"] * count, PATIENCE_S, what=f"{count} ended commands")

    def enough(self) -> None:
        """Let the stage make its artefact and end."""
        self.marks.with_name("marks-enough").touch()

    def check(self) -> None:
        """Every line and byte is there, each once, and the stage was started once."""
        (run_dir,) = (self.project / names.IN_FOLDER).glob("work-*")
        log = (run_dir / names.LOG).read_bytes()
        assert log == _run_log(self).read_bytes()
        numbers = [int(line.split()[0]) for line in log.splitlines() if not line.startswith(b"---")]
        assert numbers == list(range(len(numbers)))
        assert files.sha256_file(run_dir / names.ARTIFACTS / "blob.bin") == BLOB
        assert files.read_json(run_dir / names.EXIT)["state"] == "done"
        assert self.marks.read_text() == "started\n"


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with net_rig.net(seed=7) as net:
        yield Ends(net, tmp_path)


def test_everything_arrives_once_over_a_line_that_loses_doubles_and_reorders_while_each_end_is_killed(
    ends: Ends,
) -> None:
    ends.net.wire.weather = FOUL
    ends.queue("run:work")
    ends.wait_for_lines(20)
    for who in ("relay", "bridge", *names.DAEMONS):
        before = ends.lines()
        ends.restart(who)
        ends.wait_for_lines(before + 20)
    ends.enough()
    ends.wait_until_done(1)
    ends.check()
    wire = ends.net.wire
    assert min(wire.dropped, wire.doubled, wire.overtaken) > 0, "the line was better than it should have been"


def test_a_cable_that_is_pulled_and_a_wire_that_is_cut_hold_up_and_lose_nothing(ends: Ends) -> None:
    """Nobody is told: both ends go on to send into a connection that is dead."""
    ends.queue("run:work")
    ends.wait_for_lines(20)
    ends.net.cable(plugged=False)
    held = ends.lines()
    wait_until(lambda: _run_log(ends).read_bytes().count(b"\n") > held + 60, PATIENCE_S, what="the run to go on")
    ends.restart("relay")  # it comes back with a connection that nobody else knows of
    ends.net.cable(plugged=True)
    ends.wait_for_lines(held + 60)
    ends.net.wire.weather = Weather(cut=True)
    held = ends.lines()
    wait_until(lambda: _run_log(ends).read_bytes().count(b"\n") > held + 60, PATIENCE_S, what="the run to go on")
    ends.restart("bridge")
    ends.net.wire.weather = Weather()
    ends.wait_for_lines(held + 60)
    ends.enough()
    ends.wait_until_done(1)
    ends.check()


def test_an_artefact_on_a_slow_line_goes_on_when_the_relay_comes_back(ends: Ends) -> None:
    ends.net.wire.weather = SLOW
    ends.queue("run:work")
    ends.wait_for_lines(60)
    ends.enough()
    wait_until(lambda: list(ends.home.runs.glob("work-*/artifacts/blob.bin")), PATIENCE_S, what="the artefact")
    wait_until(lambda: list(ends.project.glob("in/work-*/artifacts/.tmp-*")), PATIENCE_S, what="its first bytes")
    ends.restart("relay")
    ends.wait_until_done(1)
    ends.check()


def test_shell_lines_run_once_each_while_the_relay_is_killed_again_and_again(ends: Ends) -> None:
    count = 12
    done = ends.root / "done"
    for number in range(count):
        ends.queue(encode_shell(f"echo {number} >> {done}"))
        if number % 3 == 1:
            ends.restart("relay")
        if number == count // 2:
            ends.restart("bridge")
        wait_until(lambda: len(ends.states()) > number, PATIENCE_S, what="the line to be taken")  # noqa: B023
    ends.wait_until_done(count)
    assert sorted(map(int, done.read_text().split())) == list(range(count))


def _run_log(ends: Ends) -> Path:
    (log,) = ends.home.runs.glob(f"work-*/{names.LOG}")
    return log
