"""Stands in for cloudflared: replays its real output lines and serves its metrics endpoints.

The test copies this file to a folder on PATH, with a first line that names the interpreter. $STUB_FOLDER/mode says
how it behaves; it writes there what it was started with. While $STUB_FOLDER/down exists it has no connection.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["STUB_FOLDER"])
STAMP = "2026-11-29T10:00:00Z"
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
REGISTERED = "INF Registered tunnel connection connIndex=0 connection=f00 event=0 ip=198.41.0.1 protocol=http2"
# mode -> (lines on stderr, exit code)
FAILURES = {
    "no-network": (
        [
            'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: lookup'
            " api.trycloudflare.com on 127.0.0.11:53: no such host"
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
    "crash": (["panic: runtime error"], 2),
}


def main() -> None:
    arguments = sys.argv[1:]
    life = len(list(FOLDER.glob("start-*"))) + 1
    record = {"arguments": arguments, "environment": sorted(key for key in os.environ if key.startswith("TUNNEL_"))}
    (FOLDER / f"start-{life}").write_text(json.dumps(record))
    mode = (FOLDER / "mode").read_text()
    if mode == "unknown-flag":
        print("Incorrect Usage. flag provided but not defined: -no-autoupdate", flush=True)
        sys.exit(0)
    if mode == "silent":
        serve(arguments, host="")
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
    else:
        say(REGISTERED)
    serve(arguments, host=host)


def serve(arguments: list[str], *, host: str) -> None:
    options = dict(zip(arguments[1:], arguments[2:], strict=False))
    target = "http://127.0.0.1:9999" if (FOLDER / "mode").read_text() == "hijacked" else options["--url"]

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = not (FOLDER / "down").exists()
            answers: dict[str, tuple[int, object]] = {
                "/quicktunnel": (200, {"hostname": host}),
                "/ready": (200 if ready else 503, {"status": 200 if ready else 503, "readyConnections": int(ready)}),
                "/config": (200, {"version": -1, "config": {"ingress": [{"service": target}]}}),
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
