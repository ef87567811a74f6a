"""What a run has cost, as its VM can know it: the rate that it was pinned to, times how long it ran and has to run."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from bridgehead import files, hourly, names
from bridgehead.errors import UsageError
from bridgehead.records import Pins, RunRecord, Status
from vm_daemons import run_meter


def told(pins: Pins, status: Status, now: float) -> dict[str, Any]:
    """For the heartbeat; empty for a run without a price, which is never told as 0.

        {"rate": "1.07 CU", "so_far": "0.31 CU", "to_finish": "0.7 CU" | null, "cap_left_s": 9051.0 | null}

    `rate` is of an hour. `to_finish` is null where no ETA is known, and once it has ended. `cap_left_s`: how long its
    cap still lets it run, in seconds; null without a cap.
    """
    running_s = run_meter.running_s(status, now)
    so_far = hourly.cost(pins.rate, running_s)
    if not so_far:
        return {}
    eta_s = None if status.state in names.ENDED else status.eta_s
    to_finish = (hourly.cost(pins.rate, eta_s) or None) if eta_s is not None else None
    left_s = max(0.0, pins.budget_s - running_s) if pins.budget_s > 0 else None
    return {"rate": pins.rate, "so_far": so_far, "to_finish": to_finish, "cap_left_s": left_s}


def line(run_dir: Path, now: float) -> str:
    """`cost 1.8 CU so far, 2.4 CU to finish`; "" for a run without a price, or with records that can't be read."""
    try:
        pins = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD)).spec.pins
        cost = told(pins, Status.from_json(files.read_json(run_dir / names.STATUS)), now)
    except UsageError:
        return ""
    if not cost:
        return ""
    left = f", {_short(cost['to_finish'])} to finish" if cost["to_finish"] else ""
    return f"cost {_short(cost['so_far'])} so far{left}"


def _short(cost: str) -> str:
    amount, unit = cost.split()
    return f"{hourly.short(Decimal(amount))} {unit}"
