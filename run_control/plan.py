"""What a launch is before it happens: its spec, its price, and every reason against it.

Pure but for reading files, and for asking [money] price_command.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.project import PinRequest
from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.records import Pins, StageSpec, duration
from run_control import code_pin, config_keys, data_pin, history, live_rate, money, paid_vms, pricing, run_spec
from run_control.checks import PASS, REFUSE, WARN, Check
from run_control.history import Before
from run_control.money import Money, Unpriced
from run_control.pricing import Estimate, Quote, Terms, Volume
from run_control.project_file import Whole
from run_control.run_spec import Code, Data, Resources, RunSpec
from run_control.spec_tables import StageLimits, budget_hours

_POOL_WHY = (
    "the VM makes the clips pool from the recordings in seglearn, so there is nothing to hash here; the run's record"
    " holds the pool's fingerprint, and finetune and gate refuse another pool than the stage before them had"
)
_POOL_HINT = "nothing to do; an exact seglearn==… in [vm] requirements keeps the recordings the same"
_UNTIL_CAP = "until its cap stops it"
_ANYWAY = '--unpriced "why" starts it all the same; in a line or in the panel, unpriced=why'
_SAY_WHERE = (
    f'under [money], provider = "colab" and gpu = "T4", or provider = "local" where nobody is billed; {_ANYWAY}'
)


@dataclass(frozen=True)
class Plan:
    """`spec` is None when it could not be made; then a check says why."""

    stage: StageSpec
    spec: RunSpec | None
    estimate: Estimate | None
    budget_s: float = 0.0  # of running; 0: no cap
    stored_gb: float = 0.0  # of all checkpoints that are kept; 0: not known
    unpriced_why: str = ""
    says_money: bool = False  # the project says where it pays, or how much; or a VM is alive that may be paid for
    exact: bool = False
    exports: bool = False
    checks: list[Check] = field(default_factory=list)

    @property
    def refusal(self) -> UsageError | None:
        """The first reason against it."""
        found = [check for check in self.checks if check.state == REFUSE]
        return UsageError(f"{found[0].name}: {found[0].text}", hint=found[0].hint) if found else None

    def pinned(self) -> StageSpec:
        """The stage as it goes into the ledger. Raises UsageError when it must not start."""
        if self.refusal is not None:
            raise self.refusal
        assert self.spec is not None and self.estimate is not None
        quote, total = self.estimate.quote, self.estimate.total
        pins = Pins(
            spec_id=self.spec.id,
            spec=self.spec.to_json(),
            exact=self.exact,
            rate=quote.price.to_json() if isinstance(quote.price, Money) else "",
            unpriced=quote.price.reason if isinstance(quote.price, Unpriced) and self.says_money else "",
            price_from=", ".join(filter(None, (quote.source, quote.as_of, quote.note))),
            estimate=total.to_json() if isinstance(total, Money) else "",
            budget_s=self.budget_s,
            stored_gb=self.stored_gb,
            exports=self.exports,
        )
        return _replaced(self.stage, pins)

    def to_json(self) -> dict[str, Any]:
        """Without the stage, which `run --dry-run` shows beside it."""
        return {
            "id": self.spec.id if self.spec is not None else "",
            "run_spec": self.spec.to_json() if self.spec is not None else None,
            "price": self.estimate.to_json() if self.estimate is not None else None,
            "budget_s": self.budget_s or None,
            "checks": [check.to_json() for check in self.checks],
            "refused": self.refusal.message if self.refusal is not None else "",
        }


def make(
    root: Path,
    whole: Whole,
    request: PinRequest,
    *,
    wanted: RunSpec | None = None,
    own_code: Callable[[], Code] | None = None,
    shipped: Code | None = None,
    elsewhere: str | None = None,
    today: datetime.date | None = None,
) -> Plan:
    """The plan of one run: line. `wanted`: the stored spec that the line names, which the run has to be exactly.

    `own_code`, `shipped`, `elsewhere`: what code_pin and paid_vms give, where they were asked before. Never raises
    for what stands against the run: that is a check of the plan.
    """
    stage = request.spec if wanted is None else stage_of(wanted, request.spec)
    limits = whole.limits.get(stage.name, StageLimits())
    checks: list[Check] = _config_checks(stage)
    ask = (lambda: shipped or code_pin.shipped()) if run_spec.is_shipped(stage.command) else own_code
    code = _code(ask or (lambda: code_pin.own(root)), checks)
    data = _data(root, whole, stage, wanted.data.name if wanted is not None else limits.data, checks)
    unpriced = request.unpriced or (wanted.resources.unpriced if wanted is not None else "")
    earlier = history.before(root / names.IN_FOLDER, stage.name)
    terms, estimate, volume = Terms(), None, Volume()
    elsewhere = paid_vms.elsewhere(root) if elsewhere is None else elsewhere
    try:
        terms = _terms(whole, limits, wanted)
        volume = _volume(whole, stage, limits, terms, earlier)
        estimate = _estimate(root, stage, limits, terms, earlier, volume, today or datetime.date.today())  # noqa: DTZ011
        checks += price_checks(terms, estimate, unpriced, elsewhere)
    except UsageError as error:
        checks.append(Check("price", REFUSE, error.message, error.hint))
    spec = None
    if code is not None and data is not None:
        spec = _spec(whole, stage, limits, request, code, data, terms, unpriced, wanted)
        checks += _against_wanted(spec, wanted)
    return Plan(
        stage,
        spec,
        estimate,
        budget_s=_budget_s(terms, estimate),
        stored_gb=volume.stored_gb or 0.0,
        unpriced_why=unpriced,
        says_money=terms.stated or bool(elsewhere),
        exact=wanted is not None,
        exports=_exports_later(whole.view.stages, stage.name),
        checks=checks,
    )


def price_checks(terms: Terms, estimate: Estimate, unpriced: str, elsewhere: str = "") -> list[Check]:
    """Whether the price is known, and under every cap. Raises UsageError when two units meet.

    `elsewhere`: a VM that is not this machine, for which a project has to say something about money.
    """
    rate, total = estimate.quote.price, estimate.total
    checks = []
    if isinstance(total, Unpriced):
        checks.append(_unpriced_check(terms, total, unpriced, elsewhere))
    else:
        stale = estimate.quote.stale
        text = f"{total} for {estimate.hours:.2f} h ({estimate.hours_from}) at {rate} an hour"
        hint = "state what your account says: [money] price_per_hour" if stale else ""
        checks.append(Check("price", WARN if stale else PASS, f"{text}; {estimate.quote.note}", hint))
    if isinstance(rate, Money) and terms.max_price_per_hour is not None and rate > terms.max_price_per_hour:
        over = f"{rate} an hour is over max_price_per_hour = {terms.max_price_per_hour}"
        checks.append(Check("cap per hour", REFUSE, over, "another GPU, or a higher max_price_per_hour"))
    if estimate.hours is not None and terms.max_hours is not None and estimate.hours > terms.max_hours:
        over = f"{estimate.hours:.2f} h ({estimate.hours_from}) is over max_hours = {terms.max_hours:g}"
        checks.append(Check("cap of hours", REFUSE, over, "less to do, or a higher max_hours"))
    if terms.max_total is not None and estimate.hours == 0:  # a budget of 0 s would stand for none
        text = f"max_total = {terms.max_total} leaves it no time to run"
        checks.append(Check("cap: max_total", REFUSE, text, "a higher max_total; leave it out for no cap"))
    for name, cap in (("max_total", terms.max_total), ("balance", terms.balance)):
        if cap is not None and isinstance(total, Money) and total > cap:
            hint = "less to do, or a higher max_total" if name == "max_total" else "less to do, or more on the account"
            checks.append(Check(f"cap: {name}", REFUSE, f"{total} is over {name} = {cap}", hint))
    return checks


def stage_of(wanted: RunSpec, now: StageSpec) -> StageSpec:
    """The stage as the stored spec has it; how it is watched over (retries, grace) stays the project's."""
    values = wanted.resources
    return _replaced(
        now,
        now.pins,
        command=wanted.command,
        config=run_spec.thaw(wanted.config),
        checkpoint_every_epochs=wanted.saves.every_epochs,
        checkpoint_every_steps=wanted.saves.every_steps,
        checkpoint_every_s=wanted.saves.every_s,
        keep_checkpoints=wanted.saves.keep,
        needs=type(now.needs)(values.gpu_memory_gb, values.cpus, values.memory_gb),
        resume_from=wanted.resume_from,
        allow=list(wanted.allow),
    )


# --- parts of a plan --------------------------------------------------------------------------------------


def _config_checks(stage: StageSpec) -> list[Check]:
    """None where its keys are right, or the affair of the user's own command."""
    wrong = config_keys.misspelt(stage.command, stage.config)
    if wrong is not None:
        key, hint = wrong
        return [Check("config", REFUSE, f"stage {stage.name} has no key {key!r}", hint)]
    mistyped = config_keys.mistyped(stage.command, stage.config)
    if mistyped is not None:
        key, what = mistyped
        return [Check("config", REFUSE, f"{key} of stage {stage.name}: {what}", config_keys.OF_THAT_KIND)]
    return []


def _code(ask: Callable[[], Code], checks: list[Check]) -> Code | None:
    try:
        found = ask()
    except UsageError as error:
        checks.append(Check("code", REFUSE, f"it can't be pinned: {error.message}", error.hint))
        return None
    where = "shipped with Bridgehead" if found.shipped else f"commit {found.commit[:12]}" if found.commit else "payload"
    dirty = ", and changes on top of it" if found.dirty_sha256 else ""
    checks.append(Check("code", PASS, f"{found.sha256[:16]} ({where}{dirty})"))
    return found


def _data(root: Path, whole: Whole, stage: StageSpec, name: str, checks: list[Check]) -> Data | None:
    try:
        found = data_pin.pin(root, whole, stage, name)
    except UsageError as error:
        checks.append(Check("data", REFUSE, error.message, error.hint))
        return None
    if found.fingerprint:
        checks.append(Check("data", PASS, f"{found.name}: {found.fingerprint[:16]}"))
    elif run_spec.is_shipped(stage.command) and not found.name:
        checks.append(Check("data", WARN, f"not pinned before the run: {_POOL_WHY}", _POOL_HINT))
    else:
        hint = "[data.NAME] with its fingerprint, and data = NAME in the stage"
        checks.append(Check("data", WARN, f"not pinned: {found.why_unpinned}", hint))
    return found


def _terms(whole: Whole, limits: StageLimits, wanted: RunSpec | None) -> Terms:
    """A stored spec brings its own caps; where it pays is the project's."""
    if wanted is None:
        return whole.money.terms(limits)
    own = wanted.resources
    capped = StageLimits(
        gpu=own.gpu or None,
        max_price_per_hour=own.max_price_per_hour or None,
        max_hours=own.max_hours or None,
        max_total=own.max_total or None,
    )
    return whole.money.terms(capped)


def _estimate(
    root: Path,
    stage: StageSpec,
    limits: StageLimits,
    terms: Terms,
    earlier: Before,
    volume: Volume,
    today: datetime.date,
) -> Estimate:
    quote = pricing.quote(
        terms,
        pricing.catalogue(root),
        gpu_memory_gb=stage.needs.gpu_memory_gb,
        today=today,
        live=live_rate.of(root, terms),
    )
    hours, source = _hours(limits, terms, earlier, quote)
    found = pricing.estimate(terms, quote, hours, source, volume)
    return _at_most_its_cap(found, terms.max_total) if source == _UNTIL_CAP else found


def _at_most_its_cap(found: Estimate, cap: Money | None) -> Estimate:
    """It runs until its cap stops it, and what it stores and sends comes out of that; those alone may still be over."""
    fixed = money.total([part for part in (found.storage, found.egress) if isinstance(part, Money)])
    over = cap is not None and isinstance(found.total, Money) and found.total > cap
    if cap is None or not over or (isinstance(fixed, Money) and not cap > fixed):
        return found
    return dataclasses.replace(found, total=cap)


def _volume(whole: Whole, stage: StageSpec, limits: StageLimits, terms: Terms, earlier: Before) -> Volume:
    """As much as the project says, else as much as the stage's last run left."""
    checkpoint_gb = limits.checkpoint_gb if limits.checkpoint_gb is not None else earlier.checkpoint_gb
    stored_gb = None if checkpoint_gb is None else checkpoint_gb * stage.keep_checkpoints
    metered = terms.stated and whole.view.store.kind == names.StoreKind.S3
    return Volume(stored_gb, limits.output_gb, metered=metered)


def _hours(limits: StageLimits, terms: Terms, earlier: Before, quote: Quote) -> tuple[float | None, str]:
    if limits.expected_hours is not None:
        return limits.expected_hours, "expected_hours"
    if earlier.hours is not None:
        return earlier.hours, f"as {earlier.run_id} took"
    rate = quote.price if isinstance(quote.price, Money) else None
    capped = budget_hours(terms, rate, None)
    return (float(capped), _UNTIL_CAP) if capped is not None else (None, "")


def _unpriced_check(terms: Terms, total: Unpriced, unpriced: str, elsewhere: str) -> Check:
    unasked = bool(elsewhere) and not terms.stated
    if unasked:
        total = Unpriced(f"{total.reason}, and {elsewhere} is not this machine")
    if unpriced:
        return Check("price", WARN, f"{total}; started all the same: {unpriced}")
    if unasked:
        return Check("price", REFUSE, str(total), _SAY_WHERE)
    if not terms.stated or total.settled:
        return Check("price", PASS, str(total))
    return Check("price", REFUSE, str(total), _ANYWAY)


def _spec(
    whole: Whole,
    stage: StageSpec,
    limits: StageLimits,
    request: PinRequest,
    code: Code,
    data: Data,
    terms: Terms,
    unpriced: str,
    wanted: RunSpec | None,
) -> RunSpec:
    limit = Resources(
        gpu=terms.gpu,
        max_price_per_hour=_text(terms.max_price_per_hour),
        max_hours=terms.max_hours or 0.0,
        max_total=_text(terms.max_total),
        unpriced=unpriced,
    )
    parents: Iterable[str] = request.inputs.values() if wanted is None else wanted.parents
    made = run_spec.of_stage(whole.view.name, stage, parents=parents, code=code, data=data, resources=limit)
    tags = tuple(sorted(set(limits.tags))) if wanted is None else wanted.tags
    return made.with_more(tags=tags)


def _against_wanted(spec: RunSpec, wanted: RunSpec | None) -> list[Check]:
    """One check for what is not as the stored spec has it; where it pays may differ."""
    if wanted is None or spec.id == wanted.id:
        return []
    changed = [f"{key} {old or '(none)'} → {new or '(none)'}" for key, old, new in run_spec.differences(wanted, spec)]
    return [
        Check("spec", REFUSE, f"it is not what it was: {'; '.join(changed)}", "give back what it was, or run it anew")
    ]


def _budget_s(terms: Terms, estimate: Estimate | None) -> float:
    if estimate is None:
        return 0.0
    rate = estimate.quote.price if isinstance(estimate.quote.price, Money) else None
    parts = [part for part in (estimate.storage, estimate.egress) if isinstance(part, Money)]
    fixed = money.total(parts) if parts else None
    hours = budget_hours(terms, rate, fixed if isinstance(fixed, Money) else None)
    return float(hours) * 3600.0 if hours is not None else 0.0


def _exports_later(stages: dict[str, StageSpec], name: str) -> bool:
    """Whether a shipped export comes after it, at any distance, or is it."""
    shipped_export = f"{names.SHIPPED_COMMAND_PREFIX}{names.EXPORT}"
    reached, fresh = {name}, {name}
    while fresh:
        fresh = {other for other, spec in stages.items() if fresh & set(spec.after)} - reached
        reached |= fresh
    return any(stages[other].command == shipped_export for other in reached if other in stages)


def _text(amount: Money | None) -> str:
    return amount.to_json() if amount is not None else ""


def _replaced(stage: StageSpec, pins: Pins, **values: Any) -> StageSpec:
    return dataclasses.replace(stage, pins=pins, **values)


def lines(plan: Plan) -> list[str]:
    """The plan for a person: one line for each thing that it will be or cost."""
    told = [f"spec: {plan.spec.id}"] if plan.spec is not None else []
    if plan.estimate is not None:
        parts = (("time", plan.estimate.time), ("storage", plan.estimate.storage), ("egress", plan.estimate.egress))
        told += [f"rate: {plan.estimate.quote.price}" + (" an hour" if plan.estimate.quote.source else "")]
        told += [f"{name}: {part}" for name, part in parts]
        told.append(f"total: {plan.estimate.total}")
    if plan.budget_s:
        told.append(f"stopped after: {duration(plan.budget_s)} of running, saved before")
    return told
