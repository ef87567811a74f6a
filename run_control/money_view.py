"""What the project as a whole has cost and costs now, for status and the panel: by its VMs, idle time included."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bridge.ledger_rows import VmState
from bridgehead.errors import BridgeheadError, UsageError
from run_control import pricing, project_file
from run_control.money import Money
from run_control.project import Project

if TYPE_CHECKING:
    from run_control.views import RunView

_SECONDS_AN_HOUR = Decimal(3600)


def cost(
    project: Project, runs: Iterable[RunView], vms: Sequence[Mapping[str, Any]], now: float
) -> dict[str, Any] | None:
    """The panel's Cost; None where no price of an hour is known.

        {"balance", "unit", "burn_per_h", "spent", "finish": [lo, hi] | null, "dry_at", "as_of"}

    A VM is paid for from its first boot to its last word, whether a stage ran on it or not; VMs on this machine are
    not. Amounts are numbers in `unit`, for show: what decides is counted in decimals. `finish` is what the runs that
    go will have cost from now on, the longest of them alone and one after the other. `dry_at`: when the stated balance
    is used up at the present rate.
    """
    try:
        terms = project_file.load_whole(project.root).money.terms()
        rate = _rate(project, terms)
    except BridgeheadError:
        return None
    if rate is None:
        return None
    local = {path.name for path in project.vms.iterdir()} if project.vms.is_dir() else set()
    paid = [vm for vm in vms if vm["vm_id"] not in local]
    live = [vm for vm in paid if vm["state"] in (VmState.LIVE, VmState.SILENT)]
    spent = sum((_hours(vm) for vm in paid), Decimal(0)) * rate.amount
    burn = rate.amount * len(live)
    left = [Decimal(str(view.eta_s)) / _SECONDS_AN_HOUR for view in runs if not view.ended and view.eta_s is not None]
    finish = [float(max(left) * rate.amount), float(sum(left) * rate.amount)] if left else None
    balance = terms.balance.amount if terms.balance is not None else None
    dry_at = now + float((balance - spent) / burn * _SECONDS_AN_HOUR) if balance is not None and burn else None
    return {
        "balance": float(balance) if balance is not None else None,
        "unit": rate.unit,
        "burn_per_h": float(burn),
        "spent": round(float(spent), 4),
        "finish": finish,
        "dry_at": dry_at,
        "as_of": now,
    }


def in_words(told: Mapping[str, Any] | None) -> str:
    """`2 USD an hour now, 4 USD so far, 0.5 to 0.9 USD to finish, of a balance of 10 USD`; "" without a price."""
    if told is None:
        return ""
    unit = told["unit"]
    parts = [f"{_amount(told['burn_per_h'])} {unit} an hour now", f"{_amount(told['spent'])} {unit} so far"]
    least, most = (_amount(value) for value in told["finish"] or (0.0, 0.0))
    if told["finish"]:
        parts.append(f"{least if least == most else f'{least} to {most}'} {unit} to finish")
    if told["balance"] is not None:
        parts.append(f"of a balance of {_amount(told['balance'])} {unit}")
        if told["finish"] and told["spent"] + told["finish"][1] > told["balance"]:
            parts.append("which does not last to the end of all that goes")
    return ", ".join(parts)


def _amount(value: float) -> str:
    return str(Money(Decimal(str(value)), "")).strip()


def _rate(project: Project, terms: pricing.Terms) -> Money | None:
    if not terms.stated:
        return None
    today = datetime.date.today()  # noqa: DTZ011 - a person's own calendar
    price = pricing.quote(terms, pricing.catalogue(project.root), today=today).price
    if not isinstance(price, Money):
        return None
    if terms.balance is not None and terms.balance.unit != price.unit:
        raise UsageError("balance and price are in two units", hint="state them in one")
    return price


def _hours(vm: Mapping[str, Any]) -> Decimal:
    """From its first boot by us, or the first that was heard of it, to its last word."""
    started = vm["heartbeat"].get("started") or vm["first_seen"]
    return Decimal(str(max(0.0, float(vm["last_seen"]) - float(started)))) / _SECONDS_AN_HOUR
