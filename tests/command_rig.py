"""A command daemon between a VM home and a laptop that the test controls."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import TransferError
from bridgehead.names import Ack
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, ExitRecord, Needs, StageSpec
from support import wait_until
from vm_daemons.capacity import Capacity
from vm_daemons.command_daemon import CommandDaemon
from vm_daemons.storage.store import Store
from vm_run_support import exit_of, kill_tagged, python, vm_home

SLEEP = python("import time; print('up', flush=True); time.sleep(60)")
WAITS = python(
    "import os, time\nprint('up', flush=True)\n"
    "while not os.path.exists(os.environ['BRIDGEHEAD_HOME'] + '/payload/go'): time.sleep(0.02)"
)
SAVES = python(
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    "print('up', flush=True); time.sleep(60)"
)
SAVES_UNTIL_TOLD = python(
    "import os, signal, sys, time\n"
    "def save(*_):\n"
    "    print('saving', flush=True)\n"
    "    while not os.path.exists('go'): time.sleep(0.02)\n"
    "    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\n"
    "while True: time.sleep(0.05)"
)
DEAF = python(
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True); time.sleep(60)"
)
ENV = python("import os, json; print(json.dumps(dict(os.environ)))")


class Laptop:
    """What the daemon sees of the bridge."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, AckRecord]] = []
        self.refuse: Callable[[str, AckRecord], Exception | None] = lambda _id, _record: None
        self._commands: list[Command] = []
        self._news = threading.Condition()

    def queue(self, *commands: Command) -> None:
        with self._news:
            self._commands += commands
            self._news.notify_all()

    def poll(self, after: int, wait_s: float) -> list[Command]:
        with self._news:
            self._news.wait_for(lambda: self._newer(after), min(wait_s, 0.2))
            return self._newer(after)

    def ack(self, command_id: str, record: AckRecord) -> None:
        error = self.refuse(command_id, record)
        if error is not None:
            raise error
        self.acks.append((command_id, record))

    def manifest_document(self) -> dict[str, object]:
        raise TransferError("this laptop serves no payload")

    def answers(self, command: Command) -> list[str]:
        return [str(record.ack) for command_id, record in self.acks if command_id == command.id]

    def finished(self, command: Command) -> AckRecord:
        def find() -> AckRecord | None:
            found = [record for command_id, record in self.acks if command_id == command.id]
            return next((record for record in found if record.ack is Ack.FINISHED), None)

        return wait_until(find, what=f"the end of {command.run_id or command.verb}")

    def _newer(self, after: int) -> list[Command]:
        return [command for command in self._commands if command.delivery > after]


class Rig:
    """A VM home, a laptop, and one daemon at a time between them."""

    def __init__(self, root: Path, drive: Path | None = None) -> None:
        self.home = vm_home(root, store=drive)
        self.laptop = Laptop()
        self._deliveries = 0

    @contextlib.contextmanager
    def daemon(self, capacity: Capacity | None = None) -> Iterator[CommandDaemon]:
        store = Store(self.home)
        machine = capacity or Capacity(8.0, 64.0, 0.0)
        daemon = CommandDaemon(self.home, self.laptop, store, capacity=machine)  # type: ignore[arg-type]
        thread = threading.Thread(target=daemon.run, name="daemon under test")
        thread.start()
        try:
            yield daemon
        finally:
            daemon.stop()
            thread.join(100)

    def run(self, command: str, *, stage: str = "train", attempt: int = 1, **given: object) -> Command:
        needs = given.pop("needs", Needs())
        spec = StageSpec(stage, command, needs=needs, stop_grace_s=30.0)  # type: ignore[arg-type]
        return self.command(Verb.RUN, stage, spec=spec, attempt=attempt, **given)

    def shell(self, text: str) -> Command:
        return self.command(Verb.SH, text, spec=StageSpec("sh", text))

    def command(self, verb: str, argument: str, **given: object) -> Command:
        self._deliveries += 1
        identity = str(given.pop("id", uuid.uuid4().hex))
        stage = argument if verb == Verb.RUN else verb
        run_id = given.pop("run_id", f"{stage}-{self._deliveries:04d}-{identity[:6]}")
        return Command(
            id=identity,
            seq=self._deliveries,
            delivery=self._deliveries,
            vm_id=str(self.home.record()["vm_id"]),
            verb=verb,
            argument=argument,
            created=0.0,
            run_id=str(run_id) if verb in (Verb.RUN, Verb.SH) else "",
            **given,  # type: ignore[arg-type]
        )

    def dir(self, command: Command) -> Path:
        return self.home.run(command.run_id)

    def mirror(self, command: Command) -> None:
        files.write_json(self.dir(command) / names.MIRRORED, {"v": 1, "attempt": command.attempt})

    def wait_for_exit(self, command: Command) -> ExitRecord:
        wait_until((self.dir(command) / names.EXIT).exists, 40, what=f"the end of {command.run_id}")
        return exit_of(self.dir(command))

    def again(self, command: Command, *, attempt: int | None = None) -> Command:
        """The same command in a new delivery."""
        self._deliveries += 1
        record = {**command.to_json(), "delivery": self._deliveries, "attempt": attempt or command.attempt}
        return Command.from_json(record)

    def journal_has(self, step: str) -> bool:
        return any(json.loads(line)["step"] == step for line in self.home.journal.read_text().splitlines())

    def clean(self) -> None:
        for run_dir in self.home.runs.iterdir():
            kill_tagged(run_dir)
