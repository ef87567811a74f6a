"""Stands in for cloudflared: replays its real output lines, serves its metrics endpoints, and forwards for real.

The test copies this file to a folder on PATH, with a first line that names the interpreter. $STUB_FOLDER/mode says
how it behaves; it writes there what it was started with. While $STUB_FOLDER/down exists it has no connection. What
Cloudflare's edge would send it comes in at the port that it writes to $STUB_FOLDER/public-<host>: `cloudflare_edge.py`
is that edge. A named tunnel gets its routes from $STUB_FOLDER/dashboard.json.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(os.environ["STUB_FOLDER"])
STAMP = "2026-11-29T10:00:00Z"
UNCONFIGURED = [{"service": "http_status:503"}]
START = [
    "INF Thank you for trying Cloudflare Tunnel. Doing so, without a Cloudflare account, is a quick way to experiment",
    "INF Requesting new quick Tunnel on trycloudflare.com...",
]
BOX = [
    "INF +----------------------------------------------------------------------------------------+",
    "INF |  Your quick Tunnel has been created! Visit it at (it may take some time to be reachable):  |",
    "INF |  https://{host}                                                                            |",
    "INF +----------------------------------------------------------------------------------------+",
    "INF Settings: map[ha-connections:1 no-autoupdate:true protocol:http2 url:http://127.0.0.1:8766]",
]
NAMED = [
    "INF Starting tunnel tunnelID=f174e90a-fafe-4643-bbbc-4a0ed4fc8415",
    "INF Version 2026.8.2",
    "INF Settings: map[no-autoupdate:true token:*****]",
    "INF Generated Connector ID: 0b4bd6b5-9d0a-4a9c-a8f0-f9b6b8f2f6a5",
    "INF Initial protocol http2",
]
REGISTERED = "INF Registered tunnel connection connIndex=0 connection=f00 event=0 ip=198.41.0.1 protocol=http2"
CHECKS = "INF |  {line}  |"
BLOCKED = [
    "COMPONENT         TARGET                     STATUS  DETAILS",
    "DNS Resolution    region1.v2.argotunnel.com  PASS    DNS Resolved successfully",
    "UDP Connectivity  Port 7844 (QUIC)           FAIL    Handshake failed",
    "TCP Connectivity  Port 7844 (HTTP/2)         FAIL    Blocked or unreachable",
    "ERROR: Allow outbound QUIC and/or TCP on port 7844 to the Cloudflare edge.",
    "SUMMARY: Environment has critical failures. cloudflared may not be able to establish a tunnel.",
]
QUIC = [
    'ERR Failed to dial a quic connection error="failed to dial to edge with quic: timeout: no recent network'
    ' activity"',
    "WRN If this log occurs persistently, and cloudflared is unable to connect to Cloudflare Network with `quic`"
    " protocol, then most likely your machine/network is getting its egress UDP to port 7844 (or others) blocked",
]
# mode -> (lines on stderr, exit code)
FAILURES = {
    "no-network": (
        [
            'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: lookup'
            " api.trycloudflare.com on 127.0.0.11:53: no such host"
        ],
        1,
    ),
    "api-refuses": (
        [
            'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp 104.16.0.1:443:'
            " connect: connection refused"
        ],
        1,
    ),
    "rate-limited": (
        [
            "ERR Error unmarshaling QuickTunnel response: error code: 1015 error=\"invalid character 'e' looking for"
            ' beginning of value" status_code="429 Too Many Requests"',
            "failed to unmarshal quick Tunnel: invalid character 'e' looking for beginning of value",
        ],
        1,
    ),
    "error-page": (["failed to unmarshal quick Tunnel: invalid character '<' looking for beginning of value"], 1),
    "refused": (["failed to parse quick Tunnel ID: invalid UUID length: 0"], 1),
    "edge-dns": (
        [
            *BOX,
            "ERR edge discovery: error looking up Cloudflare edge IPs: the DNS query failed"
            ' error="lookup _v2-origintunneld._tcp.argotunnel.com: no such host"',
        ],
        1,
    ),
    "metrics-taken": (
        [*BOX, "Error opening metrics server listener: failed to bind to address (127.0.0.1:20241) for metrics server"],
        1,
    ),
    "bad-yaml": (["error parsing YAML in config file at /home/u/.cloudflared/config.yml: yaml: line 1"], 1),
    "bad-token": (["Provided Tunnel token is not valid.", "See 'cloudflared tunnel run --help'."], 255),
    "deleted": (
        [
            *NAMED,
            'ERR Register tunnel error from server side error="Unauthorized: Tunnel not found" connIndex=0 event=0',
            'ERR Serve tunnel error error="Unauthorized: Tunnel not found" connIndex=0 event=0',
            'ERR initial tunnel connection failed error="Unauthorized: Tunnel not found"',
            "Unauthorized: Tunnel not found",
        ],
        1,
    ),
    "crash": (["panic: runtime error"], 2),
}


def main() -> None:
    arguments = sys.argv[1:]
    life = len(list(FOLDER.glob("start-*"))) + 1
    record = {
        "pid": os.getpid(),
        "arguments": arguments,
        "environment": sorted(key for key in os.environ if key.startswith("TUNNEL_")),
    }
    (FOLDER / f"start-{life}").write_text(json.dumps(record))
    mode = (FOLDER / "mode").read_text()
    if mode == "unknown-flag":
        usage_ends("-no-autoupdate")
    if mode == "silent":
        serve(arguments, host="")
    if mode == "metrics-taken-once":
        mode = "metrics-taken" if life == 1 else "good"
    if "run" in arguments:
        run_named(arguments, mode)
    else:
        run_quick(arguments, mode, life)


def run_quick(arguments: list[str], mode: str, life: int) -> None:
    say(*START)
    host = f"alpha-beta-gamma-{life}.trycloudflare.com"
    if mode in FAILURES:
        lines, code = FAILURES[mode]
        say(*(line.replace("{host}", host) for line in lines))
        sys.exit(code)
    say(*(line.replace("{host}", host) for line in BOX))
    if mode == "edge-refused":
        (FOLDER / "down").touch()
        threading.Thread(target=complain_for_ever, daemon=True).start()
    elif mode in ("blocked", "quic-blocked"):
        (FOLDER / "down").touch()
        say(*(CHECKS.format(line=line) for line in BLOCKED) if mode == "blocked" else QUIC)
    else:
        say(REGISTERED)
    serve(arguments, host=host)


def run_named(arguments: list[str], mode: str) -> None:
    """`tunnel … run --token-file F`, or the token in TUNNEL_TOKEN; the routes come once it is connected."""
    options = options_of(arguments)
    if mode == "old" and "--token-file" in options:
        usage_ends("-token-file")
    token = os.environ.get("TUNNEL_TOKEN") or Path(options["--token-file"]).read_text().strip()
    assert set(json.loads(base64.b64decode(token))) == {"a", "t", "s"}
    if mode in FAILURES:
        lines, code = FAILURES[mode]
        say(*lines)
        sys.exit(code)
    say(*NAMED, REGISTERED)
    if mode == "careless":
        say(f"DBG token is {token}")
    rules = routes(arguments)
    if rules is not UNCONFIGURED:
        say(f"INF Updated to new configuration config={json.dumps(json.dumps({'ingress': rules}))} version=3")
    serve(arguments, host="", public="bridge.example.com")


def options_of(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments[1:], arguments[2:], strict=False))


def usage_ends(option: str) -> None:
    print(f"Incorrect Usage. flag provided but not defined: {option}", flush=True)
    sys.exit(0)


def routes(arguments: list[str]) -> list[dict[str, object]]:
    """The ingress rules as they are now."""
    if "run" in arguments:
        dashboard = FOLDER / "dashboard.json"
        return json.loads(dashboard.read_text()) if dashboard.exists() else UNCONFIGURED
    hijacked = (FOLDER / "mode").read_text() == "hijacked"
    return [{"service": "http://127.0.0.1:9999" if hijacked else options_of(arguments)["--url"]}]


def serve(arguments: list[str], *, host: str, public: str = "") -> None:
    options = options_of(arguments)
    forward_from_edge(arguments, public or host)

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = not (FOLDER / "down").exists()
            rules = routes(arguments)
            version = 3 if "run" in arguments and rules is not UNCONFIGURED else -1
            answers: dict[str, tuple[int, object]] = {
                "/quicktunnel": (200, {"hostname": host}),
                "/ready": (200 if ready else 503, {"status": 200 if ready else 503, "readyConnections": int(ready)}),
                "/config": (200, {"version": version, "config": {"ingress": rules, "warp-routing": {}}}),
            }
            status, body = answers.get(self.path, (404, {}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    address, _, port = options["--metrics"].rpartition(":")
    server = ThreadingHTTPServer((address, int(port)), Metrics)
    asked: list[int] = []

    def on_term(*_: object) -> None:
        asked.append(1)
        say("INF Initiating graceful shutdown due to signal terminated ...")
        if len(asked) == 2 or (FOLDER / "mode").read_text() not in ("patient", "stubborn"):
            os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if (FOLDER / "mode").read_text() == "stubborn" else on_term)
    server.serve_forever()


def forward_from_edge(arguments: list[str], public: str) -> None:
    """Take what the edge has for the host `public` and pass it on to where the first rule leads."""
    listener = socket.create_server(("127.0.0.1", 0))
    if public:
        (FOLDER / f"public-{public}").write_text(str(listener.getsockname()[1]))

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=forward, args=(client,), daemon=True).start()

    def forward(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            service = urlsplit(str(routes(arguments)[0]["service"]))
            with socket.create_connection((service.hostname or "", service.port or 80)) as origin:
                back = threading.Thread(target=pump, args=(origin, client), daemon=True)
                back.start()
                pump(client, origin)
                back.join()

    threading.Thread(target=accept, daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def complain_for_ever() -> None:
    while True:
        say('ERR Unable to establish connection with Cloudflare edge error="DialContext error: connection refused"')
        say("INF Retrying connection in up to 1m4s " + "x" * 2000)
        time.sleep(0.0005)


def say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"{STAMP} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
