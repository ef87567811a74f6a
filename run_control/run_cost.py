"""What a run has cost so far, what it will have cost at its end, and whether it has stalled: from status and pins."""

from __future__ import annotations

import functools
import json
from typing import Any

from bridgehead import hourly, names
from bridgehead.errors import UsageError
from bridgehead.names import RunState
from bridgehead.records import Pins, Status, duration
from run_control import money
from run_control.money import Money

STALLED_AFTER = 10  # times the usual interval between two words of progress
STALLED_AT_LEAST_S = 120.0  # clocks of two machines may differ by so much
_GOING = (RunState.RUNNING, RunState.SAVING)


def of(spec_text: str, state: str, status: Status | None, eta_s: float | None, now: float) -> dict[str, Any] | None:
    """The cost of a run as JSON; None for one whose project says nothing about money.

        {"rate": "1.07 CU", "so_far": "0.31 CU", "to_finish": "0.7 CU" | null, "total": "1.01 CU" | null,
         "estimate": "1.1 CU", "cap": "3 CU", "over_cap": false, "running_s": 1042.0, "budget_s": 10093.0,
         "unpriced": ""}

    `spec_text`: the ledger's JSON of the stage. Only time that it ran counts: neither the queue, nor the time between
    two VMs. `rate` is "" and `unpriced` says why where no price is known.
    """
    pins = pins_of(spec_text)
    if pins is None or not (pins.rate or pins.unpriced):
        return None
    running_s = seconds(state, status, now)
    cost: dict[str, Any] = {"rate": pins.rate, "unpriced": pins.unpriced, "running_s": round(running_s, 1)}
    cost |= {"estimate": pins.estimate, "budget_s": pins.budget_s or None, "so_far": "", "to_finish": None}
    resources = pins.spec.get("resources")
    cap = str(resources.get("max_total") or "") if isinstance(resources, dict) else ""
    cost |= {"cap": cap, "total": None, "over_cap": False}
    if not pins.rate:
        return cost
    rate = money.parse(pins.rate)
    so_far = _for(rate, running_s)
    cost["so_far"] = so_far.to_json()
    if eta_s is not None and eta_s <= hourly.MOST_S and state not in names.ENDED:
        to_finish = _for(rate, eta_s)
        total = so_far + to_finish
        over = bool(cap) and total > money.parse(cap)
        cost |= {"to_finish": to_finish.to_json(), "total": total.to_json(), "over_cap": over}
    return cost


def of_lost(cost: dict[str, Any] | None, lost_s: float) -> str:
    """What so much lost work cost at the run's own rate, such as `0.02 CU`; "" without a rate or a loss."""
    rate = cost["rate"] if cost is not None else ""
    return _for(money.parse(rate), lost_s).to_json() if rate and lost_s > 0 else ""


def seconds(state: str, status: Status | None, now: float) -> float:
    """How long it ran, over all attempts. Of a VM that is silent only up to its last word."""
    if status is None:
        return 0.0
    if status.started <= 0:
        return status.earlier_s
    until = status.ended or (now if state in _GOING and now - status.updated < STALLED_AT_LEAST_S else status.updated)
    return status.earlier_s + max(0.0, until - status.started)


def stalled_s(state: str, status: Status | None, now: float) -> float | None:
    """How long it has made no progress, when that is many times its own usual interval; None when it goes on."""
    if status is None or state not in _GOING or status.interval_s <= 0 or status.progress_at <= 0:
        return None
    silent_s = now - status.progress_at
    return round(silent_s, 1) if silent_s > max(STALLED_AT_LEAST_S, STALLED_AFTER * status.interval_s) else None


def stalled_words(run_id: str, interval_s: float) -> str:
    """Without the age, so that it changes seldom."""
    usual = f"{interval_s:.1f}s" if interval_s < 10 else duration(interval_s)
    return (
        f"stalled: no progress for more than {STALLED_AFTER} times its usual {usual}; its process lives."
        f" next: bridgehead logs {run_id}, or bridgehead stop {run_id}"
    )


def in_words(cost: dict[str, Any] | None, *, ended: bool) -> str:
    """`0.31 CU, 1.01 CU at its end`, for a table."""
    if cost is None:
        return ""
    if not cost["rate"]:
        return f"unpriced: {cost['unpriced']}"
    told = str(money.parse(cost["so_far"]))
    if cost["total"] and not ended:
        told += f", {money.parse(cost['total'])} at its end"
    return told + (f" (over its cap of {cost['cap']})" if cost["over_cap"] else "")


@functools.lru_cache(maxsize=256)  # the panel asks at each look, and a spec never changes
def pins_of(spec_text: str) -> Pins | None:
    """What a run was pinned to; None for one that was not."""
    if '"rate"' not in spec_text:
        return None
    try:
        spec = json.loads(spec_text)
        return Pins.from_json(spec.get("pins"))
    except (ValueError, AttributeError, UsageError):
        return None


def _for(rate: Money, running_s: float) -> Money:
    return Money(hourly.for_time(rate.amount, running_s), rate.unit)
