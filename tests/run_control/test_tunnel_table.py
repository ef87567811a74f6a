"""[tunnel] of bridgehead.toml: what it becomes, what it refuses and how that is told, and what --tunnel changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.tunnels.spec import TunnelSpec
from bridgehead import names
from bridgehead.errors import ProjectError, UsageError
from run_control import project_file, tunnel_table

HEAD = '[project]\nname = "watch"\n\n[tunnel]\n'


def load(folder: Path, table: str) -> TunnelSpec:
    (folder / names.PROJECT_FILE).write_text(HEAD + table)
    return project_file.load(folder).tunnel


def refused(folder: Path, table: str) -> str:
    with pytest.raises(ProjectError) as caught:
        load(folder, table)
    return f"{caught.value.message} | {caught.value.hint}"


def test_without_a_table_there_is_no_tunnel(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text('[project]\nname = "watch"\n')
    assert project_file.load(tmp_path).tunnel == TunnelSpec()


def test_a_named_tunnel_is_read_and_its_token_found_from_the_project_folder(tmp_path: Path) -> None:
    table = (
        'kind = "cloudflared"\nhostname = "bridge.example.com"\ntoken_file = ".bridgehead/token"\nprotocol = "auto"\n'
    )
    assert load(tmp_path, table) == TunnelSpec(
        "cloudflared",
        hostname="bridge.example.com",
        token_file=str(tmp_path / ".bridgehead" / "token"),
        protocol="auto",
    )


def test_the_token_may_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    spec = load(project, 'kind = "cloudflared"\nhostname = "a.example.com"\ntoken_file = "~/.cloudflared/token"\n')
    assert spec.token_file == str(home / ".cloudflared" / "token")


def test_the_other_kinds_are_read(tmp_path: Path) -> None:
    ssh = 'kind = "ssh"\nhost = "me@relay"\nurl = "http://relay.example.com:{port}"\n'
    ssh += 'remote_port = 8080\nbind = "0.0.0.0"\n'
    assert load(tmp_path, ssh + 'options = ["Port=2222"]\n') == TunnelSpec(
        "ssh", url="http://relay.example.com:{port}", host="me@relay", remote_port=8080, bind="0.0.0.0",
        options=("Port=2222",),
    )  # fmt: skip
    command = 'kind = "command"\ncommand = "ngrok http {port}"\nurl_pattern = "url=(https://\\\\S+)"\n'
    assert load(tmp_path, command).command == ("ngrok", "http", "{port}")
    assert load(tmp_path, 'url = "http://192.168.1.20:8766/"\n').url == "http://192.168.1.20:8766"


MISTAKES = {
    "an unknown kind": (
        'kind = "cloudflare"\n',
        ":5: tunnel.kind: no tunnel of kind 'cloudflare'; did you mean cloudflared",
    ),
    "a misspelt key": ('hostnam = "a.b"\n', ":5: tunnel.hostnam: unknown key | did you mean hostname?"),
    "a protocol": ('protocol = "http3"\n', ":5: tunnel.protocol: no protocol 'http3'; did you mean http2?"),
    "no token": (
        'kind = "cloudflared"\nhostname = "a.example.com"\n',
        ":4: tunnel: a named tunnel needs hostname and token_file; token_file is missing",
    ),
    "no host name": (
        'kind = "cloudflared"\ntoken_file = "/t"\n',
        ":4: tunnel: a named tunnel needs hostname and token_file; hostname is missing",
    ),
    "a host name with a scheme": ('hostname = "https://a.example.com"\n', ":5: tunnel.hostname: a host name alone"),
    "a token in the project folder": (
        'hostname = "a.example.com"\ntoken_file = "token.txt"\n',
        ":6: tunnel.token_file: it lies in the project folder",
    ),
    "the token itself": ('hostname = "a.example.com"\ntoken = "eyJ"\n', "tunnel.token: unknown key"),
    "no address": ('url = "bridge.example.com"\n', ":5: tunnel.url: an address such as https://"),
    "another scheme": ('url = "ftp://bridge.example.com"\n', ":5: tunnel.url: an address such as https://"),
    "an address with a path": ('url = "https://example.com/bridge"\n', ":5: tunnel.url: an address such as https://"),
    "an address with a password": ('url = "https://me:secret@example.com"\n', ":5: tunnel.url: an address"),
    "an address of no port": ('url = "https://example.com:99999"\n', ":5: tunnel.url: an address"),
    "ssh without a host": ('kind = "ssh"\n', ':4: tunnel: kind = "ssh" needs host'),
    "an option as a host": ('host = "-oProxyCommand=x"\n', ":5: tunnel.host: user@host"),
    "an option that is none": ('options = ["-v"]\n', ":5: tunnel.options.0: one option of ssh_config"),
    "a port": ("remote_port = 70000\n", ":5: tunnel.remote_port: should be less than or equal to 65535"),
    "no command": ('kind = "command"\nurl = "https://a.example.com"\n', ':4: tunnel: kind = "command" needs command'),
    "no way to the address": (
        'kind = "command"\ncommand = ["x"]\n',
        ':4: tunnel: kind = "command" needs url, url_pattern or url_file',
    ),
    "a pattern": ('url_pattern = "("\n', ":5: tunnel.url_pattern: a regular expression"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_line_key_and_what_is_allowed(tmp_path: Path, case: str) -> None:
    table, expected = MISTAKES[case]
    told = refused(tmp_path, table)
    assert told.startswith(f"{names.PROJECT_FILE}:") and expected in told
    assert "secret" not in told and "eyJ" not in told


def test_another_kind_for_once_leaves_the_rest_of_the_table(tmp_path: Path) -> None:
    spec = load(tmp_path, 'kind = "ssh"\nhost = "me@relay"\nurl = "https://a.example.com"\nprotocol = "quic"\n')
    assert tunnel_table.with_kind(spec, "") is spec
    changed = tunnel_table.with_kind(spec, "cloudflared")
    assert (changed.kind, changed.protocol, changed.host) == ("cloudflared", "quic", "me@relay")


@pytest.mark.parametrize(
    ("kind", "words"), [("ssh", 'kind = "ssh" needs host'), ("sssh", "unknown tunnel"), ("command", "needs command")]
)
def test_another_kind_that_lacks_something_is_refused(kind: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        tunnel_table.with_kind(TunnelSpec(), kind)
    assert caught.value.hint
