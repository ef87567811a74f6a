"""Measures what a full-pool load costs in memory, mapped and read, each in a process of its own.

`python -m stages.pool_memory <pool folder> <mapped|read>` prints one JSON object. RSS counts mapped pages that the
kernel may drop at any time; `anonymous_bytes` is what can't be dropped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bridgehead.errors import RunFailed
from stages import clips_pool

WAYS = ("mapped", "read")
_TIMEOUT_S = 300.0
_FIELDS = {"Rss": "rss_bytes", "Pss": "pss_bytes", "Anonymous": "anonymous_bytes"}


def measure(pool_folder: Path) -> dict[str, Any]:
    """Both ways: memory before, with the pool open, and after every clip was touched. Raises RunFailed."""
    measured: dict[str, Any] = {"pool_bytes": sum(path.stat().st_size for path in clips_pool.shard_paths(pool_folder))}
    for way in WAYS:
        command = [sys.executable, "-m", "stages.pool_memory", str(pool_folder), way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise RunFailed(f"measuring the pool's memory failed: {last}")
        measured[way] = json.loads(done.stdout)
    return measured


def current() -> dict[str, int]:
    """This process's memory now, from /proc; empty where there is none."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(rest.split()[0]) * 1024
    return found


def main(argv: list[str]) -> int:
    folder, way = Path(argv[0]), argv[1]
    before = current()
    if way == "mapped":
        shards = clips_pool.open_made_pool(folder).shards
    else:
        shards = [np.load(path, allow_pickle=False) for path in clips_pool.shard_paths(folder)]
    opened = current()
    clips, total = 0, 0.0
    for shard in shards:
        clips += len(shard)
        total += float(shard.sum(dtype=np.float64))
    print(json.dumps({"clips": clips, "before": before, "opened": opened, "touched": current(), "sum": total}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
