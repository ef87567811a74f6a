"""Which faults strike in which round, and when: a pure function of (seed, round), so that any round can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class When(StrEnum):
    STEP = "step"  # at a fraction of the steps
    SAVE = "save"  # inside the n-th save
    UPLOAD = "upload"  # while a slot of the store holds files and no commit yet
    ACK = "ack"  # while a VM's answer to the queue is on its way
    RESUME = "resume"  # when the run begins again after the fault before
    AFTER = "after"  # so long after the fault before, recovered or not


@dataclass(frozen=True)
class Strike:
    """One fault and its moment. `value`: a fraction, a number of saves or answers, or seconds."""

    kind: str
    when: When
    value: float
    delay_s: float = 0.0  # from the moment on
    side: str = ""  # of an answer to the queue: the request is held, or the laptop's word on it

    def to_json(self) -> dict[str, Any]:
        at = f"{self.when}:{self.value:g}" + (f":{self.side}" if self.side else "")
        return {"kind": self.kind, "at": at}


@dataclass(frozen=True)
class Plan:
    number: int
    seed: int
    strikes: list[Strike]
    with_dice: bool  # the user's own script runs beside pretraining
    on_drive: bool  # the store is the double of a mounted Drive, not a folder
    tell_the_ledger: bool  # new VMs are made by `up --runtime local`, which reports dead ones, or by `vm start`


@dataclass(frozen=True)
class Kinds:
    """What can strike. `resuming` make the run begin again; `on_drive` need the double of a mounted Drive."""

    all: Sequence[str]
    resuming: frozenset[str]
    on_drive: frozenset[str]


def plan(seed: int, number: int, known: Kinds, *, second: float = 0.6) -> Plan:
    """Round `number` (from 0). `second`: how often two faults strike.

    Each kind comes first once in every len(kinds) rounds.
    """
    kinds = known.all
    cycle, place = divmod(number, len(kinds))
    deck = list(kinds)
    random.Random(f"{seed}:deck:{cycle}").shuffle(deck)
    draw = random.Random(f"{seed}:{number}")
    first = deck[place]
    strikes = [_first(draw, first)]
    if draw.random() < second:
        strikes.append(_second(draw, draw.choice(list(kinds)), after_resume=first in known.resuming))
    needs_drive = any(strike.kind in known.on_drive for strike in strikes)
    on_drive = needs_drive or (draw.random() < 0.3 and bool(known.on_drive & set(kinds)))
    return Plan(number, seed, strikes, number % 4 == 1, on_drive, tell_the_ledger=draw.random() < 0.5)


def _first(draw: random.Random, kind: str) -> Strike:
    when = draw.choice((When.STEP, When.STEP, When.SAVE, When.SAVE, When.UPLOAD, When.ACK))
    if "-block-" in kind:  # there has to be something to damage
        when = When.STEP
        return Strike(kind, when, round(draw.uniform(0.35, 0.8), 3))
    if when is When.STEP:
        return Strike(kind, when, round(draw.uniform(0.0, 0.9), 3), delay_s=round(draw.uniform(0, 0.05), 4))
    if when is When.SAVE:
        return Strike(kind, when, draw.randint(1, 14), delay_s=round(draw.uniform(0, 0.02), 4))
    if when is When.UPLOAD:
        return Strike(kind, when, draw.randint(1, 8), delay_s=round(draw.uniform(0, 0.01), 4))
    return Strike(kind, when, draw.randint(1, 6), side=draw.choice(("request", "answer")))


def _second(draw: random.Random, kind: str, *, after_resume: bool) -> Strike:
    if after_resume and draw.random() < 0.6:
        return Strike(kind, When.RESUME, 1, delay_s=round(draw.uniform(0.0, 2.5), 3))
    return Strike(kind, When.AFTER, round(draw.uniform(0.05, 6.0), 3))
