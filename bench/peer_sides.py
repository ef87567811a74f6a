"""What each server of bench/peers.py is asked to do, and by which client: the bridge's own, and curl."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from bench.peer_servers import Peer, Served, served
from bench.serve_bridge import VM_ID, BridgeProcess
from bridgehead import names, signing
from bridgehead.pairing import Pairing
from bridgehead.records import Heartbeat
from vm_daemons import payload
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.upload_pace import UploadPace
from vm_daemons.uploads import GrowingUpload

SMALL_BYTES = 4096
LOG_MB_S, LOG_S = 5, 10
CASE_S = 400  # one case of one server may take so long
_LOG_EVERY_S = 0.1
_PER_FOLDER = 100
_AT_ONCE = 50
_SETTLE_S = 2.2  # only then the laptop remembers what a file hashed to


class Side(Protocol):
    """One server with its client. Each case is told what its second is spent on: `prepare` is not timed."""

    pid: int
    port: int  # that its client is to use

    def prepare(self, case: str, number: int) -> bool:
        """Lay out what the case needs; False when this one can't do it."""

    def run(self, case: str) -> list[float]:
        """Do it; for the log the delays in seconds until what was written had arrived. Raises RuntimeError."""


# --- the files ----------------------------------------------------------------------------------------------------


class Files:
    """What is carried, the same for every server; 1 % of the big one is new in each round."""

    def __init__(self, root: Path, mib: int, count: int) -> None:
        root.mkdir(parents=True)
        self.mib, self.count = mib, count
        self.big, self.small = root / "big.bin", root / "small"
        with self.big.open("wb") as handle:
            for _ in range(mib):
                handle.write(os.urandom(1 << 20))
        for index in range(count):
            path = self.small / small_path(index)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SMALL_BYTES))

    def change(self, path: Path, number: int) -> None:
        """1 % of it, in places of 1 MiB or less that lie apart."""
        places = max(1, self.mib // 100)
        piece_bytes = min(1 << 20, self.mib * 2**20 // 100)
        with path.open("r+b") as handle:
            for place in range(places):
                handle.seek((self.mib << 20) // places * place + number * piece_bytes)
                handle.write(os.urandom(piece_bytes))


def small_path(index: int) -> str:
    return f"d{index // _PER_FOLDER}/f{index}.bin"


# --- the peers ------------------------------------------------------------------------------------------------------


class _Theirs:
    def __init__(self, served: Served, files: Files, scratch: Path, *, takes_uploads: bool) -> None:
        self.pid, self.port = served.pid, served.port
        self._served, self._files, self._scratch, self._takes = served, files, scratch, takes_uploads
        shutil.copyfile(files.big, served.data / "big.bin")
        shutil.copytree(files.small, served.data / "small")
        for folder in files.small.iterdir():  # webdav servers want a folder to be there
            (served.data / "up" / folder.name).mkdir(parents=True)

    def prepare(self, case: str, number: int) -> bool:
        if case in ("PUT", "small files up", "1 % changed, up", "log") and not self._takes:
            return False
        if case == "1 % changed, down":
            self._files.change(self._served.data / "big.bin", number)
        if case == "1 % changed, up":
            self._files.change(self._files.big, number)
        shutil.rmtree(self._scratch, ignore_errors=True)
        for folder in self._files.small.iterdir():
            (self._scratch / folder.name).mkdir(parents=True)
        for path in (self._served.data / "up").rglob("*"):
            if path.is_file():
                path.unlink()
        return True

    def run(self, case: str) -> list[float]:
        url, files = f"http://127.0.0.1:{self.port}", self._files
        if case in ("GET", "1 % changed, down"):
            target = os.devnull if case == "GET" else str(self._scratch / "big.bin")
            curl("-o", target, f"{url}/big.bin")
        elif case in ("PUT", "1 % changed, up"):
            curl("-o", os.devnull, "-T", str(files.big), f"{url}/up/big.bin")
        elif case == "small files down":
            self._many([("url", f"{url}/small/{path}", "output", self._scratch / path) for path in self._listed()])
        elif case == "small files up":
            self._many([("upload-file", files.small / path, "url", f"{url}/up/{path}") for path in self._listed()])
        else:
            return _log_in_pieces(lambda piece, number: curl("-o", os.devnull, "-T", piece, f"{url}/up/log-{number}"))
        return []

    def _listed(self) -> list[str]:
        return [small_path(index) for index in range(self._files.count)]

    def _many(self, each: list[tuple[str, object, str, object]]) -> None:
        config = self._scratch / "curl.conf"
        config.write_text("".join(f'{a}="{b}"\n{c}="{d}"\n' for a, b, c, d in each))
        curl("-Z", "--parallel-max", str(_AT_ONCE), "-K", str(config))


@contextlib.contextmanager
def theirs(root: Path, *, peer: Peer, files: Files) -> Iterator[Side]:
    with served(peer, root) as running:
        yield _Theirs(running, files, root / "scratch", takes_uploads=peer.takes_uploads)


def curl(*arguments: str) -> None:
    """Raises RuntimeError for anything but an answer of 2xx to all."""
    argv = ["curl", "-sS", "--fail", "--max-time", str(CASE_S), *arguments]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=CASE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"curl: {done.stderr.decode(errors='replace').strip()[-150:]}")


def _log_in_pieces(send: Callable[[str, int], None]) -> list[float]:
    """A file for each second; the delay is from its first byte to its being there."""
    delays, start = [], time.perf_counter()
    with tempfile.NamedTemporaryFile() as piece:
        for number in range(LOG_S):
            piece.truncate(0)
            piece.seek(0)
            piece.write(os.urandom(LOG_MB_S * 1_000_000))
            piece.flush()
            time.sleep(max(0.0, start + number + 1 - time.perf_counter()))
            send(piece.name, number)
            delays.append(time.perf_counter() - start - number)
    return delays


# --- the bridge -------------------------------------------------------------------------------------------------------


class _Ours:
    def __init__(self, root: Path, files: Files, bridge: BridgeProcess) -> None:
        self.pid, self.port = bridge.pid, bridge.port
        self._root, self._files, self._bridge = root, files, bridge
        self._home = VmHome(root / "vm")
        self._fresh_vm()
        self._run_dir = self._home.run(bridge.run_id)
        self._artefacts = Artefacts(BridgeClient(self._home), UploadPace())
        self._lives = 0

    def prepare(self, case: str, number: int) -> bool:
        data = self._root / "project" / names.VM_PAYLOAD
        if case in ("small files down", "GET"):
            shutil.rmtree(data)
            data.mkdir()
            if case == "GET":
                shutil.copyfile(self._files.big, data / "big.bin")
            else:
                shutil.copytree(self._files.small, data, dirs_exist_ok=True)
            time.sleep(_SETTLE_S)
            self._fresh_vm()
            BridgeClient(self._home).manifest_document()  # hashed once, and remembered
        elif case == "1 % changed, down":
            shutil.rmtree(data)
            data.mkdir()
            shutil.copyfile(self._files.big, data / "big.bin")
            self._fresh_vm()
            payload.sync(BridgeClient(self._home), self._home)
            self._files.change(data / "big.bin", number)
            time.sleep(_SETTLE_S)
        else:
            self._prepare_upload(case, number)
        return True

    def _prepare_upload(self, case: str, number: int) -> None:
        out = self._run_dir / names.ARTIFACTS
        arrived = self._root / "project" / names.IN_FOLDER / self._bridge.run_id / names.ARTIFACTS
        if case != "1 % changed, up":
            for folder in (out, arrived):
                shutil.rmtree(folder, ignore_errors=True)
            out.mkdir(parents=True)
        if case == "PUT":
            shutil.copyfile(self._files.big, out / "big.bin")
        elif case == "small files up":
            shutil.copytree(self._files.small, out, dirs_exist_ok=True)
        elif case == "1 % changed, up":
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            shutil.copyfile(self._files.big, out / "big.bin")
            self._send()
            self._files.change(out / "big.bin", number)

    def run(self, case: str) -> list[float]:
        self._save_pairing()
        if case == "GET":
            self._curl_big()
        elif case in ("small files down", "1 % changed, down"):
            payload.sync(BridgeClient(self._home), self._home)
        elif case == "log":
            return self._ship_log()
        else:
            self._send()
        return []

    def _curl_big(self) -> None:
        path = f"{names.SERVE_PREFIX}{names.VM_PAYLOAD}/{names.VM_PAYLOAD}/big.bin"
        signed = signing.sign_request(self._bridge.key, self._bridge.key_id, "GET", path, "", {})
        headers = [word for name, value in signed.items() for word in ("-H", f"{name}: {value}")]
        curl(*headers, "-o", os.devnull, f"http://127.0.0.1:{self._bridge.port}{path}")

    def _send(self) -> None:
        out = self._run_dir / names.ARTIFACTS
        listed = [path.relative_to(self._run_dir).as_posix() for path in sorted(out.rglob("*")) if path.is_file()]
        refused = self._artefacts.send(self._run_dir, self._bridge.run_id, 1, listed)
        if refused:
            raise RuntimeError(f"refused: {refused}")

    def _ship_log(self) -> list[float]:
        """As the status daemon does it: whatever is there is sent, again and again. The delay is seen on the disk."""
        self._lives += 1
        log, name = self._run_dir / names.LOG, f"{names.ARTIFACTS}/log-{self._lives}"
        log.unlink(missing_ok=True)
        arrived = self._root / "project" / names.IN_FOLDER / self._bridge.run_id / name
        upload = GrowingUpload(BridgeClient(self._home), self._bridge.run_id, 1, log, name)
        ended = threading.Event()

        def ship() -> None:
            while upload.ship() or not ended.wait(0.02) or upload.pending():
                pass

        shipping = threading.Thread(target=ship)
        delays, waiting, start = list[float](), list[tuple[int, float]](), time.perf_counter()
        with log.open("wb", buffering=0) as handle:
            shipping.start()
            try:
                for number in range(int(LOG_S / _LOG_EVERY_S)):
                    waiting.append((handle.tell(), time.perf_counter()))
                    handle.write(os.urandom(int(LOG_MB_S * 1e6 * _LOG_EVERY_S)))
                    while time.perf_counter() < start + (number + 1) * _LOG_EVERY_S or (
                        number + 1 == int(LOG_S / _LOG_EVERY_S) and waiting
                    ):
                        size = arrived.stat().st_size if arrived.exists() else 0
                        while waiting and waiting[0][0] < size:
                            delays.append(time.perf_counter() - waiting.pop(0)[1])
                        time.sleep(0.005)
            finally:
                ended.set()
                shipping.join(60)
        return delays

    def _fresh_vm(self) -> None:
        for folder in (self._home.payload, self._home.state):
            shutil.rmtree(folder, ignore_errors=True)
        self._home.create()
        self._save_pairing()
        self._home.update_record(vm_id=VM_ID)

    def _save_pairing(self) -> None:
        """With the port that is to be used now."""
        url = f"http://127.0.0.1:{self.port}"
        self._home.save_pairing(Pairing(url, self._bridge.key_id, self._bridge.key, "0" * 64))


@contextlib.contextmanager
def ours(root: Path, files: Files) -> Iterator[Side]:
    (root / "project" / names.VM_PAYLOAD).mkdir(parents=True)
    stop = threading.Event()
    with BridgeProcess(root / "project") as bridge:
        side = _Ours(root, files, bridge)
        beating = threading.Thread(target=_beat, args=(root / "beats", bridge, stop), daemon=True)
        beating.start()
        try:
            yield side
        finally:
            stop.set()
            beating.join(20)


def _beat(root: Path, bridge: BridgeProcess, stop: threading.Event) -> None:
    """Else the run would be taken from its VM while the peers are measured."""
    home = VmHome(root)
    home.create()
    home.save_pairing(Pairing(f"http://127.0.0.1:{bridge.port}", bridge.key_id, bridge.key, "0" * 64))
    home.update_record(vm_id=VM_ID)
    client = BridgeClient(home)
    while not stop.wait(10):
        with contextlib.suppress(Exception):
            client.heartbeat(Heartbeat(VM_ID, "bench", time.time()))
