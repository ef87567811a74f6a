"""`make chaos`: `python -m chaos --rounds 20 --seed 0`. One JSON line per round, one for the whole; 0 when all held."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos import mutants, snapshot

_ROOT = Path(__file__).parents[1]
_INSIDE = "--in-snapshot"


def main(argv: list[str] | None = None) -> int:
    """Copy the packages, then run the campaign from the copy."""
    words = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(words)
    if args.in_snapshot:
        from chaos import campaign  # here, so that the packages are those of the copy

        return campaign.run(args)
    if args.mutants:
        return _all_mutants(args.seed, max(1, args.jobs))
    folder = Path(tempfile.mkdtemp(prefix="bridgehead-chaos-"))
    keep = False
    try:
        patches = mutants.patches(args.mutant) if args.mutant else ()
        snapshot.copy(_ROOT, folder / "code", patches)
        code = _inside([*words, _INSIDE, str(folder)], folder / "code")
        keep = any(folder.glob("rounds/*")) and not args.mutant
        return code
    except (snapshot.PatchError, mutants.NoSuchMutant) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-round", type=int, metavar="K", help="play this round of the seed's campaign alone")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="rounds at a time")
    parser.add_argument("--kinds", nargs="*", help="only these kinds of faults")
    parser.add_argument("--tunnel", choices=("none", "ssh"), default="none", help="ssh: through a real sshd")
    parser.add_argument("--second", type=float, default=0.6, help="how often a second fault strikes, 0 to 1")
    parser.add_argument("--still-s", type=float, help="how long what is stopped or frozen stands still; 60: a minute")
    parser.add_argument("--mutant", help="break one part of the copy on purpose: the campaign has to fail")
    parser.add_argument("--mutants", action="store_true", help="break each part in turn; 0 when each was noticed")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults and the mutants")
    parser.add_argument(_INSIDE, type=Path, help=argparse.SUPPRESS)
    return parser


def _all_mutants(seed: int, jobs: int) -> int:
    """One campaign for each, each with its own broken copy. Prints one JSON line per mutant."""
    with ThreadPoolExecutor(jobs) as workers:
        caught = list(workers.map(lambda name: _is_caught(name, seed), mutants.MUTANTS))
    return 0 if all(caught) else 1


def _is_caught(name: str, seed: int) -> bool:
    argv = [sys.executable, "-m", "chaos", "--mutant", name, "--seed", str(seed)]
    result = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True)
    rounds = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"round":')]
    why = "; ".join(line["why"] for line in rounds) or result.stderr[-300:]
    caught = result.returncode == 1 and bool(rounds)
    print(json.dumps({"mutant": name, "noticed": caught, "why": why}), flush=True)
    return caught


def _inside(words: list[str], code: Path) -> int:
    """The campaign as a process that imports the copy. Ctrl-C reaches it too: it cleans up, we wait."""
    process = subprocess.Popen([sys.executable, "-m", "chaos", *words], env=snapshot.environment(code), cwd=code)
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda *_: process.send_signal(signal.SIGTERM))
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
