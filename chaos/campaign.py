"""The whole campaign: its rounds, one JSON line each, and what they come to."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from chaos import cache, game, mounts, reference
from chaos import plan as plans
from chaos.faults import FAULTS, RESUMING
from chaos.game import Outcome
from chaos.mutants import MUTANTS


def run(args: argparse.Namespace) -> int:
    """Play the rounds that `args` ask for; 0 only if all held, 1 if not, 130 when interrupted."""
    if args.list:
        _list()
        return 0
    folder: Path = args.in_snapshot
    kinds = _kinds(args.kinds)
    numbers = [args.only_round] if args.only_round is not None else list(range(args.rounds))
    todo = [plans.plan(args.seed, number, kinds, RESUMING, second=args.second) for number in numbers]
    if mounts.compiler():
        mounts.build_clock(folder / mounts.CLOCK_LIBRARY)
    told, pool = cache.reference_for(folder / "code")
    where = folder / "rounds"
    where.mkdir()
    outcomes: list[Outcome] = []
    try:
        for outcome in _play(todo, folder / "code", pool, told, where, max(1, args.jobs)):
            outcomes.append(outcome)
            print(json.dumps(outcome.to_json()), flush=True)
    except KeyboardInterrupt:
        return 130
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


def _play(todo: list[plans.Plan], code: Path, pool: Path, told: reference.Reference, where: Path, jobs: int) -> Any:
    """Outcomes as they come. An interrupt lets nobody start; rounds under way clean up behind themselves."""
    if jobs == 1:
        for item in todo:
            yield game.play(item, code, pool, told, where=where)
        return
    with ThreadPoolExecutor(jobs) as workers:
        waiting: set[Future[Outcome]] = set()
        left = list(todo)
        while left or waiting:
            while left and len(waiting) < jobs:
                waiting.add(workers.submit(game.play, left.pop(0), code, pool, told, where=where))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _kinds(asked: list[str] | None) -> list[str]:
    """The kinds that can be had here, in a fixed order; what can't be had is said on stderr."""
    kinds = []
    for kind, fault in FAULTS.items():
        why = fault.missing()
        if asked is not None and kind not in asked:
            continue
        if why:
            print(f"skipped: {kind}: {why}", file=sys.stderr)
        else:
            kinds.append(kind)
    unknown = set(asked or ()) - set(FAULTS)
    if unknown or not kinds:
        sys.exit(f"error: no such kind of fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
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
    for name in MUTANTS:
        print(f"mutant  {name}")
