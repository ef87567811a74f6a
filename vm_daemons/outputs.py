"""Which of a run's outputs can travel, and which are left behind and why."""

from __future__ import annotations

from pathlib import Path

from bridgehead import files, names, paths
from bridgehead.errors import UsageError

SHOWN_MAX = 5


def find(run_dir: Path) -> tuple[list[str], dict[str, str]]:
    """(paths below the run folder that can be sent, name → why it can't) of artifacts/ and bundle/."""
    found: list[str] = []
    left: dict[str, str] = {}
    spelled: dict[str, str] = {}  # case-folded path of a file or folder → as it was first met
    for folder in names.ARTIFACT_FOLDERS:
        for path in sorted((run_dir / folder).rglob("*")):
            relative = path.relative_to(run_dir).as_posix()
            if path.name.startswith(files.TEMP_PREFIX) or (path.is_dir() and not path.is_symlink()):
                continue
            if files.plain_stat(path) is None:
                left[relative[:200]] = "no plain file"
                continue
            try:
                found.append(_check_case(paths.check_relative(relative), spelled))
            except UsageError as error:
                left[relative[:200]] = error.message
    return found, left


def _check_case(relative: str, spelled: dict[str, str]) -> str:
    """Raises UsageError when a laptop with Windows or macOS would take it, or a folder of it, for another one."""
    parts = relative.split("/")
    levels = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for level in levels:
        other = spelled.get(level.casefold(), level)
        if other != level:
            raise UsageError(f"differs from {other!r} only in upper and lower case")
    spelled.update((level.casefold(), level) for level in levels)
    return relative


def told_refused(run_dir: Path, refused: dict[str, str]) -> str:
    """One line for what the laptop would not take, beyond what `find` knew; empty when there is nothing."""
    left = find(run_dir)[1] if refused else {}
    others = {name: why for name, why in refused.items() if name not in left}
    if not others:
        return ""
    some = ", ".join(f"{name!r} ({why})" for name, why in list(others.items())[:SHOWN_MAX])
    more = f" and {len(others) - SHOWN_MAX} more" if len(others) > SHOWN_MAX else ""
    return f"{len(others)} outputs stay on the VM, the laptop refused them: {some}{more}"


def told(left: dict[str, str]) -> str:
    """One line for the run's exit message; empty when nothing is left behind."""
    if not left:
        return ""
    some = ", ".join(repr(name) for name in list(left)[:SHOWN_MAX])
    more = f" and {len(left) - SHOWN_MAX} more" if len(left) > SHOWN_MAX else ""
    return f"{len(left)} outputs stay on the VM, their names can't travel: {some}{more}"
