"""A post-mortem's record as a page of Markdown."""

from __future__ import annotations

import time
from typing import Any

_GIB = 2**30


def page(record: dict[str, Any]) -> str:
    """Never raises: what is missing in the record is left out, and what can't be shown is named."""
    try:
        return _page(record)
    except Exception as error:  # noqa: BLE001 - a page that can't be made must not cost the record
        why = f"This page could not be made ({type(error).__name__}); the record beside it holds it all."
        return f"# Post-mortem\n\n{why}\n"


def retry_words(retry: dict[str, Any]) -> str:
    by_itself = str(retry.get("by_itself") or "")
    if not retry.get("allowed"):
        return f"no; {_safe(by_itself)}" if by_itself else "no"
    where = {"other": ", on another machine", "bigger": ", on a bigger machine"}.get(str(retry.get("where")), "")
    budget = int(retry.get("budget") or 0)
    return ("once" if budget == 1 else f"up to {budget} times" if budget < 100 else "yes") + where


def _page(record: dict[str, Any]) -> str:
    run, end, verdict = record["run"], record["end"], record["verdict"]
    title = (
        f"# {run.get('run_id', 'a run')}, attempt {end.get('attempt') or run.get('attempt') or '?'}: {verdict['class']}"
    )
    lines = [title, "", f"{verdict['meaning']} ({verdict['confidence']} confidence).", ""]
    lines += [f"- **Do next:** {verdict['next_step']}", f"- **Try again:** {retry_words(record['retry'])}"]
    lines += [f"- **{name.capitalize()}:** {_safe(verdict[name])}" for name in ("detail", "hint") if verdict.get(name)]
    lines += ["", "## How it ended", "", *_end(end)]
    lines += ["", "## Evidence, in order", "", *_evidence(verdict)]
    lines += ["", "## What is left", "", *_left(record)]
    lines += ["", "## Log", "", *_log(record["log"])]
    return "\n".join([*lines, "", f"Written by the {record['written_by']} at {_utc(record['at'])}.", ""])


def _end(end: dict[str, Any]) -> list[str]:
    if "error" in end:
        return [f"not known: {end['error']}"]
    shown = [("state", end.get("state")), ("exit", end.get("exit_means")), ("recorded", end.get("failure_class"))]
    shown += [
        ("message", end.get("message")),
        ("took", _seconds(end.get("duration_s"))),
        ("retries", end.get("retries")),
    ]
    shown += [("outlived it", ", ".join(map(str, end.get("leftovers") or [])))]
    return [f"- {name}: {_safe(value)}" for name, value in shown if value not in (None, "", 0)]


def _evidence(verdict: dict[str, Any]) -> list[str]:
    found = []
    for number, item in enumerate(verdict.get("evidence") or [], 1):
        mark = "**decides** " if item.get("decides") else ""
        found.append(f"{number}. {mark}{item['level']} → `{item['class']}`: {_safe(item['text'])}")
    return found or ["none"]


def _left(record: dict[str, Any]) -> list[str]:
    metrics, kept, cost = record["metrics"], record["checkpoint"], record["cost"]
    lines = []
    if metrics.get("step") is not None:
        values = ", ".join(f"{name} {value}" for name, value in (metrics.get("metrics") or {}).items())
        lines.append(
            f"- last progress: step {metrics['step']} of {metrics.get('total_steps') or '?'} {_safe(values)}".rstrip()
        )
    levels = kept.get("levels") or {}
    told = ", ".join(f"step {item.get('step')} {level}" for level, item in levels.items())
    lines.append(f"- checkpoint: {told or ', '.join(kept.get('on_disk') or []) or 'none'}")
    money = cost.get("money")
    price = f"{money}" if money else f"not known ({cost.get('why') or cost.get('error') or 'no price'})"
    lines.append(f"- cost: {_seconds(cost.get('duration_s')) or '?'}, money {price}")
    return lines + _resources(record["resources"])


def _resources(resources: dict[str, Any]) -> list[str]:
    lines = []
    memory = resources.get("memory") or {}
    if memory.get("total_bytes"):
        lines.append(f"- memory: {memory['free_bytes'] / _GIB:.1f} of {memory['total_bytes'] / _GIB:.1f} GiB free")
    for name, disk in (resources.get("disks") or {}).items():
        free, total = disk["free_bytes"] / _GIB, disk["total_bytes"] / _GIB
        lines.append(f"- {name} ({_safe(disk['path'])}): {free:.1f} of {total:.1f} GiB free")
    for gpu in resources.get("gpus") or []:
        lines.append(
            f"- GPU {_safe(gpu.get('name'))}: {gpu.get('memory_used_mb')} of {gpu.get('memory_total_mb')} MB used"
        )
    return lines


def _log(log: dict[str, Any]) -> list[str]:
    if "error" in log:
        return [f"could not be read: {_safe(log['error'])}"]
    head, tail = log.get("head") or [], log.get("tail") or []
    if not tail:
        return ["empty"]
    lines = [f"{log.get('size_bytes', 0)} bytes; its end:", "", *(f"    {line}" for line in tail)]
    if log.get("unread_bytes"):
        lines += ["", f"{log['unread_bytes']} bytes of its middle were not looked at: time was up."]
    return lines if head == tail[: len(head)] else ["Its beginning:", "", *(f"    {line}" for line in head), "", *lines]


def _safe(value: object) -> str:
    """One line, and nothing that Markdown or a terminal acts on."""
    text = " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())
    return text.replace("`", "'").replace("<", "&lt;")[:600]


def _seconds(value: object) -> str:
    return f"{value:.0f} s" if isinstance(value, int | float) else ""


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
