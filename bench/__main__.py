"""`make bench`: one JSON line per number. `BENCH_ARGS="--only idle transfer --mib 256"` for a part of it."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import (
    checkpoints,
    daemons,
    down,
    latency,
    load,
    panel,
    peers,
    recovery,
    runner,
    small_outputs,
    store_cost,
    transfer,
    up,
)
from bench.project import bench_project

Row = dict[str, Any]
IN_PROJECT: dict[str, Callable[..., Iterator[Row]]] = {
    "queue": latency.queue_line_to_process,
    "log": latency.log_line_to_laptop,
    "boot": daemons.boot,
    "idle": daemons.idle,
    "recovery": recovery.after_a_vms_death,
}


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when every number holds its goal, 1 when one does not, with the rows on stdout either way.

    A row with "gated": false is told and does not count.
    """
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument(
        "--only", nargs="*", default=[*IN_PROJECT, "runner", "checkpoints", "store", "transfer", "down", "up", "panel"]
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the transferred file")
    parser.add_argument("--files", type=int, default=10_000, help="how many small files are transferred")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the load lasts, for each of two servers")
    parser.add_argument("--vms", type=int, default=50, help="how many VMs the load has")
    parser.add_argument("--markdown", action="store_true", help="after the rows, the table of the peers for the README")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    held, rows = True, []
    for row in _rows(args):
        rows.append(row)
        print(json.dumps(row), flush=True)
        held &= row.get("holds", True) or not row.get("gated", True)
    if args.markdown:
        print(peers.markdown(rows))
    return 0 if held else 1


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    wanted = [name for name in IN_PROJECT if name in args.only]
    if wanted:
        with bench_project() as project:
            for name in wanted:
                yield from IN_PROJECT[name](project)
    if "runner" in args.only:
        yield from runner.speed()
    if "checkpoints" in args.only:
        yield from checkpoints.costs()
    if "store" in args.only:
        yield from store_cost.costs()
    if "outputs" in args.only:
        yield from small_outputs.rows(args.files)
    if "transfer" in args.only:
        if shutil.which("nginx") is None and not Path("/usr/sbin/nginx").exists():
            print("transfer: nginx is not here; on Debian: apt-get install nginx-light", file=sys.stderr)
        else:
            yield from transfer.against_nginx(args.mib)
    if "peers" in args.only:
        yield from peers.against_peers(args.mib, args.files)
    if "load" in args.only:
        yield from load.under_load(load.Load(args.minutes, args.vms))
    if "down" in args.only and down.can_run():
        yield from down.against_nginx(args.files, args.mib)
    if "up" in args.only:
        yield from up.rows(args.files)
    if "panel" in args.only:
        yield from panel.rows()


if __name__ == "__main__":
    sys.exit(main())
