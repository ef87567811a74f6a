"""The one thing that a person does now, from what the panel shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from bridgehead import names
from bridgehead.names import RunState
from control_panel.shapes import Artifact, Run, Vm

_GONE_WRONG = (RunState.FAILED, RunState.STOPPED)
HERE_ONLY = (
    "The bridge has no tunnel, so only a notebook on this machine can reach it. For Colab: bridgehead down, then"
    " bridgehead up --tunnel cloudflared. To try it here: bridgehead up --runtime local."
)


def next_step(
    bridge: Mapping[str, str],
    vms: Sequence[Vm],
    runs: Sequence[Run],
    stages: Sequence[Mapping[str, Any]],
    artifacts: Sequence[Artifact],
    mistake: str = "",
) -> dict[str, str]:
    """{"text", "action"}: an action is a verb, perhaps with its argument; "" when there is nothing to press.

    `runs` oldest first; `mistake`: in the project file, with its place.
    """
    if mistake:
        return _told(f"Mend the project file: {mistake}")
    if not stages:
        return _told(f"Describe a stage in {names.PROJECT_FILE}: bridgehead init shows how.")
    if bridge["state"] != "up":
        return _told("Start the bridge in a terminal: bridgehead up")
    if not any(vm.state in ("live", "silent") for vm in vms):
        text = "Pair a VM: copy the cell into a notebook, for example on Colab, and run it."
        return _told(f"Pair a VM. {HERE_ONLY}" if is_loopback(bridge.get("url", "")) else text, "pair")
    if any(run.state not in (*map(str, names.ENDED), "rejected") for run in runs):
        return _told("")
    newest = {run.stage: run for run in runs if run.state != "rejected"}
    done = {stage for stage, run in newest.items() if run.state == RunState.DONE}
    left = [stage for stage in stages if stage["name"] not in done and set(stage["after"]) <= done]
    if left:
        return _run(left[0], newest, list(runs))
    if any(item.kind == "bundle" and item.hash_state == "unchecked" for item in artifacts):
        return _told("Verify the bundle: every hash, and its sample clips through onnxruntime.", "verify")
    return _told("")


def is_loopback(url: str) -> bool:
    """Whether only this machine gets to that address."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _run(stage: Mapping[str, Any], newest: Mapping[str, Run], runs: list[Run]) -> dict[str, str]:
    """Run it; where it went wrong, and nothing that it comes after was made anew since, something must change first."""
    name, before = stage["name"], newest.get(stage["name"])
    sources = [newest[earlier] for earlier in stage["after"] if earlier in newest]
    changed = before is not None and any(runs.index(one) > runs.index(before) for one in sources)
    if before is None or before.state not in _GONE_WRONG or changed:
        return _told(f"Run {name}.", f"run {name}")
    if before.verdict and before.verdict != "pass":
        first = stage["after"][0] if stage["after"] else name
        why = f": {before.verdict_why.rstrip('.')}" if before.verdict_why else ""
        again = f"{first}, then {name}" if first != name else name
        text = f"The gate said {before.verdict} ({before.id}){why}. The same run says the same: train longer or change"
        return _told(f"{text} something, then run {again} again.", f"run {first}")
    if before.state == RunState.STOPPED:
        saved = any((before.checkpoint or {}).values())
        way = f"resume it from its checkpoint, or run {name} anew" if saved else f"run {name} anew"
        return _told(f"{before.id} was stopped: {way}.", f"run {name}")
    why = f" ({before.failure})" if before.failure else ""
    step = f"{before.next.rstrip('.')}; then" if before.next else "see its log; then"
    return _told(f"{before.id} failed{why}: {step} run {name} again.", f"run {name}")


def _told(text: str, action: str = "") -> dict[str, str]:
    return {"text": text, "action": action}
