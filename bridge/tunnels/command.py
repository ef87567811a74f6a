"""Any program of yours that leads from the internet to the bridge. Nothing of it is known but how it tells its address:

- `url_pattern`: a regular expression for a line that it prints; the address is its first group, or all of the match.
- `url_file`: a file that it writes the address into; with `url_pattern` as well, the pattern looks into that file.
- `url`: the address is known beforehand. With {port} in it, and a `url_pattern` whose first group is a port, both
  make one.

{port} in `command` is the bridge's port. Examples, none of which was run here:

    ngrok      command = ["ngrok", "http", "{port}", "--log", "stdout", "--log-format", "logfmt"]
               url_pattern = 'msg="started tunnel" .* url=(https://\\S+)'
    frp        command = ["frpc", "-c", "frpc.toml"]       url = "https://bridge.example.org"
    tailscale  command = ["tailscale", "funnel", "{port}"]  url_pattern = 'https://[a-z0-9.-]+\\.ts\\.net(?::\\d+)?'
               (without --bg: in the background it ends at once, and nobody could watch it)
    bore       command = ["bore", "local", "{port}", "--to", "relay.example.org"]
               url = "http://relay.example.org:{port}"     url_pattern = 'listening at \\S+:(\\d+)'
    zrok       command = ["zrok", "share", "public", "http://127.0.0.1:{port}", "--headless"]
               url_pattern = 'https://[a-z0-9]+\\.share\\.zrok\\.io'
    devtunnel  command = ["devtunnel", "host", "-p", "{port}", "--allow-anonymous"]
               url_pattern = 'https://[a-z0-9]+-\\d+\\.[a-z0-9.]*devtunnels\\.ms'

Which match counts. The known trap is an API's address in an error line (`Post "https://api.example.com/tunnel": dial
tcp: lookup …`): it looks like the tunnel's, and it arrives when there is none. So (1) what is cut out of a longer
address is no match, (2) a line that names an error is passed over, and told of when nothing better came, and (3) the
bridge's own address, which many print beside the public one, is none. Of what is left the last counts, in a line and
over a life: a program that lost its name prints the next one in the same words, and then the old one leads nowhere.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bridge.tunnels import public_url, redaction
from bridge.tunnels.base import OnNewUrl
from bridge.tunnels.process import DEFAULT_TIMES, Supervisor, Times, how_it_ended
from bridge.tunnels.spec import TunnelSpec
from bridge.tunnels.ssh import PORT_WORD
from bridgehead.errors import BridgeDownError, UsageError

_FILE_MAX_BYTES = 1 << 16
_SETTLE_S = 1.0  # a program with a fixed address that lives so long is taken to have started
_ERROR = re.compile(
    r"\b(?:err|eror|error|errors|fail|failed|failure|failing|fatal|panic|crit|critical|denied|refused|unreachable"
    r"|timed[ -]out|timeout|unable|cannot|can't|couldn't|could not|not found|invalid|unauthorized|forbidden)\b",
    re.IGNORECASE,
)
_NO_ERROR = re.compile(
    r"\b(?:err|error|errors)[\"']?\s*[=:]\s*(?:nil|null|none|0|\"\")(?!\w)|\b(?:no|0) errors?\b", re.IGNORECASE
)


class CommandTunnel:
    """Raises UsageError for a [tunnel] that can't be meant."""

    name = "command"

    def __init__(self, spec: TunnelSpec, *, on_new_url: OnNewUrl | None = None, times: Times = DEFAULT_TIMES) -> None:
        check(spec)
        self._spec = spec
        self._local_port = 0
        self._supervisor = Supervisor(
            self.name, self._begin, on_new_url=on_new_url, times=times, hide=redaction.in_words(spec.command)
        )

    def start(self, local_port: int) -> None:
        """Start the program. Raises BridgeDownError when it is not here, can't be run, or has a url that can't be."""
        self._local_port = local_port
        fixed = self._spec.url.replace(PORT_WORD, str(local_port))
        if not self._spec.url_pattern and not self._spec.url_file and public_url.leads_here(fixed, local_port):
            raise BridgeDownError(
                f"url of [tunnel] is {fixed}, the bridge's own address: nobody outside can use that",
                hint='write the public address that the program gives; for a VM on this machine: kind = "none"',
            )
        self._supervisor.start()

    def wait_url(self, timeout_s: float) -> str:
        return self._supervisor.wait_url(timeout_s)

    def healthy(self) -> bool:
        """Whether the program runs and has told its address. Whether that leads here the bridge's own probe shows."""
        return self._supervisor.up

    @property
    def pid(self) -> int:
        return self._supervisor.pid

    def trouble(self) -> str:
        """Why it is down, in one line; "" while it is up."""
        return self._supervisor.trouble

    def restart(self) -> None:
        """Begin anew soon, when it says that all is well and nothing gets through. Returns at once."""
        self._supervisor.restart()

    def stop(self) -> None:
        self._supervisor.stop()

    def log_tail(self) -> list[str]:
        return self._supervisor.log_tail()

    def _begin(self) -> _Run:
        return _Run(self._spec, self._local_port)


class _Run:
    """One life of the program."""

    def __init__(self, spec: TunnelSpec, local_port: int) -> None:
        self._spec = spec
        self._local_port = local_port
        self._told = ""  # the address that it told last
        self._passed_over = ""  # a line that matched and named an error
        self._own = ""  # the bridge's own address, which leads nobody here from outside
        self._file = Path(spec.url_file).expanduser() if spec.url_file else None
        self._file_before = _mark(self._file)  # what lies there from an earlier life says nothing of this one
        self._began = time.monotonic()

    def arguments(self) -> list[str]:
        words = [word.replace(PORT_WORD, str(self._local_port)) for word in self._spec.command]
        return [program(self._spec), *words[1:]]

    def read(self, line: str) -> bool:
        if self._spec.url_pattern and self._file is None:
            self._look_at(line)
        return True

    def address(self) -> str:
        if self._file is not None:
            self._told = self._in_file() or self._told
        if self._file is not None or self._spec.url_pattern:
            return self._told
        fixed = self._not_own([public_url.check(self._fixed(), "url")])
        return fixed[0] if fixed and time.monotonic() - self._began > _SETTLE_S else ""

    def why_ended(self, code: int, lines: Sequence[str]) -> BridgeDownError:
        return BridgeDownError(
            how_it_ended(Path(self._spec.command[0]).name, code, lines),
            hint="run the command of [tunnel] by hand; it has to stay in the foreground",
        )

    def why_silent(self, waited_s: float, lines: Sequence[str]) -> BridgeDownError:
        name = Path(self._spec.command[0]).name
        if self._own and not self._passed_over:
            what = f"has told no address but {self._own}, which is this bridge's own: nobody outside can use that"
            hint = "the address has to be the public one; run the command by hand to see which that is"
        elif self._file is not None:
            what, hint = f"has written no address into {self._file}", "check url_file in [tunnel]"
        elif self._passed_over:
            what = f"has told an address only in a line that names an error: {self._passed_over[:200]}"
            hint = "run it by hand; when that line is a good one, write url_pattern for another, or use url_file"
        else:
            what = "has printed no address that url_pattern matches" + (f"; last: {lines[-1][:200]}" if lines else "")
            hint = "the pattern has to match a whole http or https address; run the command by hand to see its lines"
        return BridgeDownError(f"after {waited_s:g} s {name} {what}", hint=hint)

    def _look_at(self, text: str) -> None:
        """Remember the last address in a line."""
        for found in self._found_in(text):
            rest = _NO_ERROR.sub("", text.replace(found, ""))
            if _ERROR.search(rest):
                self._passed_over = text
            else:
                self._told = found

    def _found_in(self, line: str) -> list[str]:
        """The addresses that the pattern picks, without those that can't be the tunnel's."""
        found = []
        for match in re.finditer(self._spec.url_pattern, line):
            group = 1 if match.re.groups else 0
            if match[group] is None:
                continue
            if PORT_WORD in self._spec.url:
                port = match[group]
                good = port.isascii() and port.isdigit() and 0 < int(port) < 65536
                found.append(public_url.check(self._spec.url.replace(PORT_WORD, port), "url") if good else "")
            else:
                found.append(public_url.whole_in(line, *match.span(group)))
        return self._not_own([url for url in found if url])

    def _not_own(self, found: list[str]) -> list[str]:
        """Those that are not the bridge's own address, which programs print beside the public one."""
        own = [url for url in found if public_url.leads_here(url, self._local_port)]
        self._own = own[-1] if own else self._own
        return [url for url in found if url not in own]

    def _in_file(self) -> str:
        """What stands in the file now. One that is half written holds none."""
        assert self._file is not None
        if _mark(self._file) == self._file_before:
            return ""
        try:
            with self._file.open("rb") as stream:
                text = stream.read(_FILE_MAX_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""
        if not self._spec.url_pattern:
            told = [public_url.check(text, "url_file")] if public_url.is_address(text) else []
            return "".join(self._not_own(told))
        found = [url for line in text.splitlines() for url in self._found_in(line)]
        return found[-1] if found else ""

    def _fixed(self) -> str:
        return self._spec.url.replace(PORT_WORD, str(self._local_port))


def check(spec: TunnelSpec) -> None:
    """Raises UsageError for a command without a program, a way to the address, or a pattern that can be read."""
    if not spec.command or not spec.command[0].strip():
        raise UsageError(
            "the command tunnel needs a program to run",
            hint='[tunnel] command = ["ngrok", "http", "{port}"]: a list, one word each',
        )
    if not (spec.url or spec.url_pattern or spec.url_file):
        raise UsageError(
            "the command tunnel does not say how to learn the address",
            hint="[tunnel] url_pattern (a regular expression for what it prints), url_file, or a fixed url",
        )
    if spec.url:
        public_url.check(spec.url.replace(PORT_WORD, "1"), "url")
    try:
        re.compile(spec.url_pattern)
    except re.error as error:
        raise UsageError(f"url_pattern is no regular expression: {error}", hint="Python's `re` reads it") from None


def program(spec: TunnelSpec) -> str:
    """Where the program is. Raises BridgeDownError."""
    name = spec.command[0]
    found = shutil.which(str(Path(name).expanduser()))
    if found is None:
        raise BridgeDownError(
            f"{name} is not on your PATH", hint="install it, or write its whole path into command of [tunnel]"
        )
    return found


def _mark(path: Path | None) -> tuple[int, int, int] | None:
    """Changes with each writing."""
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
