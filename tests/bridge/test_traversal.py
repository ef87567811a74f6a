"""No spelling of a path leads out of the folder that is served or written to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bridge.addresses import read_address
from bridge_client import VM, Client, LiveBridge, live_bridge
from bridgehead import names
from bridgehead.errors import UsageError

SECRET = b"outside the root"
QUERY = f"?vm={VM}&attempt=1"

SPELLINGS = [
    "../secret",
    "data/../../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "%252e%252e%252fsecret",
    "%c0%ae%c0%ae/secret",
    "..\\secret",
    "..%5csecret",
    "data\\..\\..\\secret",
    "/secret",
    "//secret",
    "%2fsecret",
    "data//file",
    "./data/file",
    "data/./file",
    "data/.",
    "data/..",
    "data/",
    ".hidden",
    "data/.hidden",
    "file%00.txt",
    "C:/secret",
    "c:secret",
    "file::$DATA",
    "con",
    "data/NUL",
    "data/com1.txt",
    "LPT9",
    "trailing.",
    "space%20name",
    "-rf",
    "~root",
    "data/%",
    "data/%zz",
    "data/%E4",
    "n" * 5000,
    "/".join(["n"] * 3000),
    "",
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    root = tmp_path_factory.mktemp("outside") / "project"
    (root / "data").mkdir(parents=True)
    (root / "data/file").write_bytes(b"inside")
    (root.parent / "secret").write_bytes(SECRET)
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def client(live: LiveBridge) -> Client:
    return live.client()


@pytest.fixture(scope="module")
def run_id(live: LiveBridge) -> str:
    return live.given_run()


def tree(live: LiveBridge) -> list[str]:
    private = live.root / names.PRIVATE_FOLDER
    return sorted(str(path) for path in live.root.parent.rglob("*") if private not in path.parents)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_download_stays_inside(client: Client, method: str, spelling: str) -> None:
    answer = client.ask(method, "/serve/payload/" + spelling)
    assert answer.status in (400, 404)
    assert SECRET not in answer.body


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_an_upload_stays_inside(client: Client, live: LiveBridge, run_id: str, method: str, spelling: str) -> None:
    before = tree(live)
    headers = {
        names.HEADER_GENERATION: "1",
        names.HEADER_OFFSET: "0",
        names.HEADER_COMPLETE: "?0",
        "Content-Type": "application/partial-upload",
    }
    body = b"" if method in ("POST", "DELETE") else b"evil"
    answer = client.ask(method, f"/in/{run_id}/{spelling}{QUERY}", body, headers)
    assert answer.status == 400
    assert tree(live) == before


@pytest.mark.parametrize(
    "path", ["", "x", "x/y", "../x", "pretrain-0001-zzzzzz/x", "{run}", "{run}/", "../in/{run}/x", "{run}/../{run}/x"]
)
def test_an_upload_names_a_file_of_a_run(client: Client, live: LiveBridge, run_id: str, path: str) -> None:
    before = tree(live)
    assert client.ask("PUT", "/in/" + path.format(run=run_id) + QUERY, b"evil").status == 400
    assert tree(live) == before


def test_the_plain_spelling_works(client: Client, live: LiveBridge, run_id: str) -> None:
    assert client.get("/serve/payload/data/file").body == b"inside"
    assert client.ask("PUT", f"/in/{run_id}/a+b=c@d.txt{QUERY}", b"x").status == 201
    assert client.ask("PUT", f"/in/{run_id}/a%2Bb%3dc%40d.txt{QUERY}", b"y").status == 204
    assert (live.arrivals / run_id / "a+b=c@d.txt").read_bytes() == b"y"


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_out_of_the_root_is_not_served(client: Client, live: LiveBridge, link: str) -> None:
    os.symlink(live.root.parent / ("secret" if link == "file" else "."), live.root / "data" / f"link-{link}")
    client.get("/serve/manifest.json")
    target = "link-file" if link == "file" else "link-folder/secret"
    answer = client.get(f"/serve/payload/data/{target}")
    assert answer.status == 404 and SECRET not in answer.body


def test_a_file_replaced_by_a_link_after_the_manifest_is_not_served(client: Client, live: LiveBridge) -> None:
    path = live.root / "data/swapped"
    path.write_bytes(b"inside")
    client.get("/serve/manifest.json")
    path.unlink()
    path.symlink_to(live.root.parent / "secret")
    answer = client.get("/serve/payload/data/swapped")
    assert answer.status == 404 and SECRET not in answer.body


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
@pytest.mark.parametrize("link", ["file", "folder"])
def test_an_upload_goes_through_no_link(client: Client, live: LiveBridge, run_id: str, method: str, link: str) -> None:
    folder = live.arrivals / run_id
    folder.mkdir(exist_ok=True)
    name = f"link-{link}-{method}"
    os.symlink(live.root.parent / ("secret" if link == "file" else "."), folder / name)
    path = name if link == "file" else f"{name}/secret"
    headers = {
        names.HEADER_GENERATION: "1",
        names.HEADER_OFFSET: "0",
        names.HEADER_COMPLETE: "?0",
        "Content-Type": "application/partial-upload",
    }
    answer = client.ask(method, f"/in/{run_id}/{path}{QUERY}", b"" if method == "POST" else b"evil", headers)
    assert answer.status in (400, 404)
    assert (live.root.parent / "secret").read_bytes() == SECRET


def test_a_log_that_became_a_link_is_not_followed(client: Client, live: LiveBridge, run_id: str) -> None:
    headers = {names.HEADER_GENERATION: "1", names.HEADER_COMPLETE: "?0"}
    assert client.ask("POST", f"/in/{run_id}/log{QUERY}", b"", headers).status == 201
    (live.arrivals / run_id / "log").symlink_to(live.root.parent / "secret")
    headers |= {names.HEADER_OFFSET: str(len(SECRET)), "Content-Type": "application/partial-upload"}
    assert client.ask("PATCH", f"/in/{run_id}/log{QUERY}", b"evil", headers).status == 400
    assert (live.root.parent / "secret").read_bytes() == SECRET


def test_a_folder_is_not_overwritten(client: Client, live: LiveBridge, run_id: str) -> None:
    (live.arrivals / run_id / "bundle").mkdir(parents=True)
    assert client.ask("PUT", f"/in/{run_id}/bundle{QUERY}", b"x").status == 400
    assert client.ask("PUT", f"/in/{run_id}/flat{QUERY}", b"x").status == 201
    assert client.ask("PUT", f"/in/{run_id}/flat/below{QUERY}", b"x").status == 400


@pytest.mark.parametrize(
    "raw", ["", "x", "http://host/queue", "*", "/a%2fb", "/a%5Cb", "/a%00", "/a\\b", "/%ff", "/q?a=1&a=2", "/q?a", "/%"]
)
def test_an_address_that_hides_something_is_refused(raw: str) -> None:
    with pytest.raises(UsageError):
        read_address(raw)
