"""The whole campaign: its rounds, one JSON line each, and what they come to."""

from __future__ import annotations

import argparse
import functools
import json
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from bridgehead.errors import INTERRUPTED_EXIT_CODE
from chaos import cache, game, mounts, mutants
from chaos import plan as plans
from chaos.faults import FAULTS, ON_DRIVE, RESUMING, stand_still_for
from chaos.game import Outcome


def run(args: argparse.Namespace) -> int:
    """Play the rounds that `args` ask for; 0 only if all held, 1 if not, 130 when interrupted."""
    if args.list:
        _list()
        return 0
    folder: Path = args.in_snapshot
    kinds = plans.Kinds(_kinds(args.kinds, args.tunnel), RESUMING, ON_DRIVE)
    if args.still_s:
        stand_still_for(args.still_s)
    numbers = [args.only_round] if args.only_round is not None else list(range(args.rounds))
    todo = [plans.plan(args.seed, number, kinds, second=args.second) for number in numbers]
    if args.mutant:
        todo = mutants.plans(args.mutant, args.seed)
    if mounts.compiler():
        mounts.build_clock(folder / mounts.CLOCK_LIBRARY)
    told, pool = cache.reference_for(folder / "code")
    where = folder / "rounds"
    where.mkdir()
    stop = threading.Event()
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda *_: stop.set())  # rounds under way clean up behind themselves
    outcomes: list[Outcome] = []
    code, tunnel = folder / "code", args.tunnel
    play = functools.partial(game.play, code=code, pool=pool, reference=told, where=where, stop=stop, tunnel=tunnel)
    for outcome in _play(todo, play, stop, max(1, args.jobs)):
        outcomes.append(outcome)
        print(json.dumps(outcome.to_json()), flush=True)
    if stop.is_set():
        return INTERRUPTED_EXIT_CODE
    for line in _by_kind(outcomes):
        print(line, file=sys.stderr)
    summary = summarise(outcomes)
    print(json.dumps(summary), flush=True)
    return 0 if outcomes and all(outcome.verdict.ok for outcome in outcomes) else 1


def summarise(outcomes: list[Outcome]) -> dict[str, Any]:
    """The line that the campaign ends with."""
    struck = [fault["kind"] for outcome in outcomes for fault in outcome.faults if "missed" not in fault]
    verdicts = [outcome.verdict for outcome in outcomes]
    return {
        "rounds": len(outcomes),
        "faults": len(struck),
        "kinds": len(set(struck)),
        "finished": sum(verdict.finished for verdict in verdicts),
        "bitwise_equal": sum(verdict.finished and verdict.bitwise_equal for verdict in verdicts),
        "commands_lost": sum(verdict.commands_lost for verdict in verdicts),
        "commands_doubled": sum(verdict.commands_doubled for verdict in verdicts),
        "log_bytes_lost": sum(verdict.log_bytes_lost for verdict in verdicts),
        "false_confirmed": sum(verdict.false_confirmed for verdict in verdicts),
        "orphans": sum(verdict.orphans for verdict in verdicts),
    }


def _play(
    todo: list[plans.Plan], play: Callable[[plans.Plan], Outcome], stop: threading.Event, jobs: int
) -> Iterator[Outcome]:
    """Outcomes as they come. Once `stop` is set no round begins, and those under way are not told of."""
    left = list(todo)
    waiting: set[Future[Outcome]] = set()
    with ThreadPoolExecutor(jobs) as workers:
        while (left and not stop.is_set()) or waiting:
            while left and len(waiting) < jobs and not stop.is_set():
                waiting.add(workers.submit(play, left.pop(0)))
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done if not stop.is_set())


def _kinds(asked: list[str] | None, tunnel: str) -> list[str]:
    """The kinds that can be had here, in a fixed order; what can't be had is said on stderr."""
    kinds = []
    for kind, fault in FAULTS.items():
        why = fault.missing()
        if fault.tunnel not in ("", tunnel):
            if asked is None:
                continue
            why = f"needs --tunnel {fault.tunnel}"
        if asked is not None and kind not in asked:
            continue
        if why:
            print(f"skipped: {kind}: {why}", file=sys.stderr)
        else:
            kinds.append(kind)
    unknown = set(asked or ()) - set(FAULTS)
    if unknown or not kinds:
        print(
            f"error: no such kind of fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    return kinds


def _by_kind(outcomes: list[Outcome]) -> list[str]:
    """How often each kind struck, and how long it took to recover from it."""
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for outcome in outcomes:
        struck = [fault["kind"] for fault in outcome.faults if "missed" not in fault]
        for kind in struck:
            counts[kind] = counts.get(kind, 0) + 1
        if struck and outcome.recover_s is not None:
            times.setdefault(struck[-1], []).append(outcome.recover_s)
    lines = []
    for kind in sorted(counts):
        median = f"{statistics.median(times[kind]):.1f} s" if kind in times else "-"
        lines.append(f"{kind:24} {counts[kind]:4} times, median recovery {median}")
    return lines


def _list() -> None:
    for kind, fault in FAULTS.items():
        why = fault.missing()
        print(f"fault   {kind:24} {why}".rstrip())
    for name in mutants.MUTANTS:
        print(f"mutant  {name}")
