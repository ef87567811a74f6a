"""No spelling of a path reads or writes anything but the payload and the run's own folder in in/.

Canaries lie everywhere around; whatever is asked, and however it is spelled, their bytes never come back and nothing of
them changes: not content, not time stamps, not the list of files. The caller is paired: a stranger gets 401 anyway.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_client import VM, Answer, Client, LiveBridge, live_bridge, project
from bridgehead import names
from bridgehead.records import VmRules

MARK = b"CANARY"
QUERY = f"vm={VM}&attempt=1"
OUT_OF_REACH = ["canary.txt", "src/canary.txt", "bridgehead.toml", ".bridgehead/keys.json", ".bridgehead/canary.txt",
                ".ssh/id_canary", "queue.txt", "in/pretrain-0001-aaaaaa/canary.txt"]  # fmt: skip
# Ways to write "one folder up" or a separator that some server, proxy or file system has once taken for it.
UPS = [
    "../", "..%2f", "..%2F", "%2e%2e/", "%2E%2E/", "%2e%2e%2f", ".%2e/", "%2e./", "%252e%252e/", "%252e%252e%252f",
    "%25252e%25252e%25252f", "..%252f", "..%255c", "..\\", "..%5c", "%2e%2e%5c", "..%5C..%5c", "..;/", "..;x=1/",
    "..%3b/", ";/../", "..%00/", "%00../", "..%0d/", "..%0a/", "..%09/", "..%20/", "..%20%2f", ".. /", "..//", "..///",
    "/../", "/..%2f", "./../", ".//../", "...//", "..././", "....//", ".../", "..../", "..%c0%af", "%c0%ae%c0%ae/",
    "%c0%ae%c0%ae%c0%af", "%e0%80%ae%e0%80%ae/", "%f0%80%80%ae%f0%80%80%ae/", "..%e0%80%af", "..%c1%9c",
    "%ef%bc%8e%ef%bc%8e/", "..%ef%bc%8f", "%e2%80%a5/", "%e2%80%a4%e2%80%a4/", "..%e2%88%95", "..%e2%81%84",
    "..%ef%bc%bc", "..%e2%a7%b5", "%u002e%u002e/", "..%u2215", "\\..\\", "%5c..%5c", "?/../", "%3f/../", "#/../",
    "data/../../", "data/..%2f..%2f", "data%2f..%2f..%2f", "data/%2e%2e/%2e%2e/", "data\\..\\..\\", "nothing/../../",
    "data/file/../../", "data/./../../",
]  # fmt: skip
ABSOLUTE = [
    "/{root}/canary.txt", "//{root}/canary.txt", "%2f{root}%2fcanary.txt", "file:///{root}/canary.txt",
    "file:{root}/canary.txt", "\\\\127.0.0.1\\c$\\canary.txt", "//127.0.0.1/c$/canary.txt", "%5c%5c127.0.0.1%5cc$%5cx",
    "\\\\?\\C:\\canary.txt", "\\\\.\\pipe\\x", "//./NUL", "C:/canary.txt", "C:\\canary.txt", "c:canary.txt",
    "C%3a/canary.txt", "~/canary.txt", "~root/canary.txt", "$HOME/canary.txt", "%24HOME/canary.txt", "%HOME%/x",
    "/proc/self/root/{root}/canary.txt", "/dev/stdin", "/etc/passwd",
]  # fmt: skip
DEVICES = [
    "con", "CON", "nul", "NUL.txt", "data/nul", "data/NUL.tar.gz", "aux.", "prn", "com1", "COM9.log", "com\u00b9",
    "lpt1", "LPT\u00b2", "conin$", "CONOUT$", "nul:", "nul%20", "con%00", "aux.log", "clock$:", "COM0", "lpt0",
]  # fmt: skip
ODD = [
    "", ".", "..", "...", "....", "/", "//", "./", ".//", "%2e", "%2e%2e", "%2f", "%5c", "%00", "%", "%z", "%zz", "%2",
    "%u0041", "data/", "data//file", "data/.", "data/..", "data/./file", "data/file/", "data/file%00", "file%00.txt",
    "data/file.", "data/file...", "data/file%20", "data/file%20.", "%20data/file", "data/file%09", "data/file%0a",
    "data/file::$DATA", "data/file:stream", "data::$INDEX_ALLOCATION/file", "data/file%3a", ".hidden", "data/.hidden",
    ".git/config", ".bridgehead/keys.json", "-rf", "data/-rf", "data/*", "data/fil?", "data/[f]ile", "data/{file}",
    "data/file|x", "data/file>x", 'data/"file"', "data/caf%c3%a9", "data/cafe%cc%81", "data/%ef%ac%81le",
    "data/fil%c4%93", "data/%e2%84%aa", "data/%c5%bfile", "data/%ff", "data/%e4", "data/%ed%a0%80", "data/%f4%90%80%80",
    "data/\u202efile", "data/file%e2%80%8b", "data/%ef%bb%bffile", "n" * 129, "n" * 5000, "/".join(["n"] * 600),
    "../" * 500 + "etc/passwd",    "%2e%2e%2f" * 300 + "etc/passwd", "%25" * 500 + "2e%2e/x",
]  # fmt: skip
LINKS = [
    "link-file",
    "link-folder/canary.txt",
    "link-up/canary.txt",
    "link-root/etc/passwd",
    "link-loop",
    "link-nowhere",
]


@dataclasses.dataclass
class Ground:
    """A project among canaries."""

    live: LiveBridge
    client: Client
    run_id: str
    top: Path  # the project is a folder of it

    def spellings(self) -> list[str]:
        ups = [up + target for up in UPS for target in ("canary.txt", "src/canary.txt")]
        deep = [up * 3 + "canary.txt" for up in UPS]
        ups += [f"{up}{target}" for up in ("../", "..%2f", "..\\", "%2e%2e/") for target in OUT_OF_REACH]
        root = str(self.top).strip("/")
        return [
            *ups,
            *deep,
            *(text.format(root=root) if "{root}" in text else text for text in ABSOLUTE),
            *DEVICES,
            *ODD,
        ]

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """All that nobody may change: each file and link but those of the bridge's own bookkeeping."""
        private = self.live.root / names.PRIVATE_FOLDER
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.top.rglob("*")):
            own = path.parent == private and path.name not in (names.KEYS_FILE, "canary.txt")
            if own or path == private or path.is_dir() and not path.is_symlink():
                continue
            info = path.lstat()
            content = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (content, info.st_mtime_ns, info.st_mode, info.st_ino, info.st_nlink, info.st_size)
        return found


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    top = tmp_path_factory.mktemp("top")
    root = top / "project"
    for folder in (top, root, root / names.IN_FOLDER):
        for target in OUT_OF_REACH:
            if folder == root and target in ("queue.txt", ".bridgehead/keys.json"):
                continue  # the bridge's own; keys.json is made by it and watched all the same
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(MARK + b" " + str(path).encode())
    (root / "data").mkdir()
    (root / "data/file").write_bytes(b"inside")
    _plant(root / "data", top)
    patient = dataclasses.replace(project(), vm=VmRules(lost_after_s=86_400.0))
    with live_bridge(root, load_project=lambda: patient) as live:
        run_id = live.given_run()
        folder = live.arrivals / run_id
        folder.mkdir()
        _plant(folder, top)
        client = live.client()
        client.get("/serve/manifest.json")
        yield Ground(live, client, run_id, top)


def _plant(folder: Path, top: Path) -> None:
    """Links out of a folder that is served or written to."""
    (folder / "link-file").symlink_to(top / "canary.txt")
    (folder / "link-folder").symlink_to(top)
    (folder / "link-up").symlink_to("../..")
    (folder / "link-root").symlink_to("/")
    (folder / "link-loop").symlink_to("link-loop")
    (folder / "link-nowhere").symlink_to(top / "not-there")


@contextlib.contextmanager
def _nothing_changes(ground: Ground) -> Iterator[None]:
    before = ground.snapshot()
    yield
    assert ground.snapshot() == before


def _check(answer: Answer, asked: str) -> None:
    assert MARK not in answer.body, asked
    assert 400 <= answer.status < 500, (asked, answer.status)


def _ask(ground: Ground, method: str, target: str) -> Answer:
    """As text on the wire; what is not ASCII goes as UTF-8, and what would end the request line is left encoded."""
    target = target.replace(" ", "%20")
    headers = {}
    if method in ("PATCH", "POST", "HEAD", "DELETE"):
        headers = {names.HEADER_GENERATION: "1", names.HEADER_COMPLETE: "?0"}
    if method == "PATCH":
        headers |= {names.HEADER_OFFSET: "0", "Content-Type": "application/partial-upload"}
    body = b"evil" if method in ("PUT", "PATCH") else b""
    signed = ground.client.signed(method, target, body, headers)
    return ground.client.send(method, target.encode().decode("latin-1"), body, signed)


def test_the_canaries_would_be_seen(ground: Ground) -> None:
    """The plain spelling works, so the refusals below are about the spelling."""
    assert _ask(ground, "GET", "/serve/payload/data/file").body == b"inside"
    with pytest.raises(AssertionError), _nothing_changes(ground):
        assert _ask(ground, "PUT", f"/in/{ground.run_id}/fine?{QUERY}").status == 201
    (ground.live.arrivals / ground.run_id / "fine").unlink()
    touched = ground.top / "canary.txt"
    stamp = touched.stat().st_mtime_ns
    with pytest.raises(AssertionError), _nothing_changes(ground):
        os.utime(touched)
    os.utime(touched, ns=(stamp, stamp))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("prefix", ["/serve/payload/", "/serve/"])
def test_no_download_leaves_the_payload(ground: Ground, method: str, prefix: str) -> None:
    with _nothing_changes(ground):
        for spelling in [*ground.spellings(), *(f"data/{link}" for link in LINKS)]:
            _check(_ask(ground, method, prefix + spelling), spelling)


def test_nothing_else_is_a_route(ground: Ground) -> None:
    with _nothing_changes(ground):
        for spelling in ground.spellings():
            if spelling:
                _check(_ask(ground, "GET", "/" + spelling), spelling)


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE", "HEAD"])
def test_no_upload_leaves_the_runs_folder(ground: Ground, method: str) -> None:
    with _nothing_changes(ground):
        for spelling in [*ground.spellings(), *LINKS]:
            if method == "POST" and spelling == "":
                continue  # the address of a batch, which is empty here
            _check(_ask(ground, method, f"/in/{ground.run_id}/{spelling}?{QUERY}"), spelling)


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE", "HEAD"])
def test_no_upload_names_another_run_by_a_spelling(ground: Ground, method: str) -> None:
    run = ground.run_id
    upper = [run.upper(), run.title(), run[:-1], run + ".", run + "%20", run + "%00", run.replace("-", "%2d%2d")]
    runs = ["pretrain-0001-aaaaaa", *upper, *(spelling + run for spelling in ("./", "../in/", "%2e/", "//", "x/../"))]
    with _nothing_changes(ground):
        for spelling in [*runs, *ground.spellings()]:
            _check(_ask(ground, method, f"/in/{spelling}/canary.txt?{QUERY}"), spelling)


@pytest.mark.parametrize("ask", [False, True])
def test_no_batch_leaves_the_runs_folder(ground: Ground, ask: bool) -> None:
    """Its paths are JSON: nothing is decoded, so they come as they would be after a decoding too."""
    texts = {*ground.spellings(), *LINKS}
    texts |= {text.replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\").replace("%00", "\0") for text in texts}
    sha256 = hashlib.sha256(b"evil").hexdigest()
    with _nothing_changes(ground):
        for text in sorted(texts):
            index = json.dumps([[text, 4, sha256]]).encode() + b"\n" + (b"" if ask else b"evil")
            target = f"/in/{ground.run_id}/?{QUERY}" + ("&ask=1" if ask else "")
            answer = ground.client.ask("POST", target, index, {"Content-Type": names.BATCH_TYPE})
            assert MARK not in answer.body, text
            if answer.status == 200:
                refused = answer.json["have"] == [False] if ask else answer.json["files"][0] is not None
                assert refused, (text, answer.body)


def test_no_address_of_a_vm_or_a_command_is_a_path(ground: Ground) -> None:
    with _nothing_changes(ground):
        for spelling in ground.spellings():
            _check(_ask(ground, "POST", f"/vms/{spelling}/heartbeat"), spelling)
            _check(_ask(ground, "POST", f"/queue/{spelling}/ack"), spelling)


def test_a_vm_id_is_no_path(ground: Ground) -> None:
    with _nothing_changes(ground):
        for vm in (
            "../x",
            "..%2fx",
            "%2e%2e",
            "a/b",
            "a%5cb",
            "a%00",
            "",
            ".",
            "%c0%ae",
            "vm-%E2%80%A5",
            "a" * 65,
            "-x",
        ):
            _check(_ask(ground, "GET", f"/queue?vm={vm}&after=0&wait=0"), vm)
            _check(_ask(ground, "PUT", f"/in/{ground.run_id}/x?vm={vm}&attempt=1"), vm)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_request_line_with_a_whole_url_is_not_served(ground: Ground, method: str) -> None:
    port, run = ground.client.port, ground.run_id
    with _nothing_changes(ground):
        for authority in (f"127.0.0.1:{port}", "localhost", "evil.example.com", "user:pw@127.0.0.1", ""):
            for path in ("/serve/payload/data/file", f"/in/{run}/x?{QUERY}", "/../canary.txt"):
                for scheme in ("http", "https", "file", "HTTP"):
                    _check(_ask(ground, method, f"{scheme}://{authority}{path}"), f"{scheme}://{authority}{path}")


@pytest.mark.parametrize("slashes", ["//", "///", "/./", "/;/", "/%2f", "\\", "/\\"])
def test_more_slashes_are_not_one(ground: Ground, slashes: str) -> None:
    with _nothing_changes(ground):
        for path in (f"serve{slashes}payload/data/file", f"serve/payload{slashes}data/file"):
            _check(_ask(ground, "GET", "/" + path), path)
            _check(_ask(ground, "GET", slashes + path), slashes + path)
        for path in (f"in{slashes}{ground.run_id}/x", f"in/{ground.run_id}{slashes}x"):
            _check(_ask(ground, "PUT", f"/{path}?{QUERY}"), path)


def test_two_normal_forms_of_a_name_are_not_taken_for_one(ground: Ground) -> None:
    """Names that are not ASCII are refused in either form, so no file system has to say whether they are the same."""
    with _nothing_changes(ground):
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            for text in ("caf\u00e9", "\ufb01le", "\u212b", "\u0130", "\u2126"):
                name = unicodedata.normalize(form, text)
                if not name.isascii():
                    _check(_ask(ground, "PUT", f"/in/{ground.run_id}/{name}?{QUERY}"), name)


def test_a_name_in_another_case_is_not_a_second_file(ground: Ground) -> None:
    assert _ask(ground, "PUT", f"/in/{ground.run_id}/Model.bin?{QUERY}").status == 201
    with _nothing_changes(ground):
        for name in ("model.bin", "MODEL.BIN", "mODEL.bin"):
            _check(_ask(ground, "PUT", f"/in/{ground.run_id}/{name}?{QUERY}"), name)


# --- links that somebody planted -------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "batch", "PATCH"])
def test_nothing_is_written_through_a_hard_link(ground: Ground, method: str) -> None:
    name = f"hard-{method}"
    outside, inside = ground.top / name, ground.live.arrivals / ground.run_id / name
    if method == "PATCH":
        assert _ask(ground, "POST", f"/in/{ground.run_id}/{name}?{QUERY}").status == 201
        inside.touch()
        os.link(inside, outside)
    else:
        outside.write_bytes(MARK)
        os.link(outside, inside)
    stamp, content = outside.stat().st_mtime_ns, outside.read_bytes()
    if method == "batch":
        index = json.dumps([[name, 4, hashlib.sha256(b"evil").hexdigest()]]).encode() + b"\nevil"
        target = f"/in/{ground.run_id}/?{QUERY}"
        answer = ground.client.ask("POST", target, index, {"Content-Type": names.BATCH_TYPE})
    else:
        answer = _ask(ground, method, f"/in/{ground.run_id}/{name}?{QUERY}")
    assert answer.status in (200, 201, 204)
    assert inside.read_bytes() == b"evil"
    assert (outside.read_bytes(), outside.stat().st_mtime_ns) == (content, stamp)
