"""Install what a project asks for without ever moving torch.

A notebook image brings torch, CUDA and numpy that fit each other; pip would gladly replace them and break all three.
So what is installed becomes a constraint, pip is asked first what it would do, and a plan that moves one of them is
refused. image_packages looks afterwards whether that held.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bridgehead.errors import ProjectError
from vm_daemons import image_packages

try:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
except ImportError:  # an image without it still has pip's own copy
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement  # type: ignore[no-redef]
    from pip._vendor.packaging.utils import canonicalize_name  # type: ignore[no-redef]

_PIP_TIMEOUT_S = 1800.0
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (\S+)")
_WANTED = re.compile(r"^ +(.* depends on .*|The user requested (?!\(constraint\)).*)$", re.M)
_CREDENTIALS = re.compile(r"(\w+://)[^/\s@]+@")


def install(requirements: list[str], log: Callable[[str], None]) -> None:
    """Make all `requirements` hold. Raises ProjectError in plain words; nothing has been installed then.

    pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, …) apply as usual.
    """
    missing = [line for line in requirements if not _is_satisfied(_parse(line))]
    if not missing:
        log(f"requirements: all {len(requirements)} are there" if requirements else "requirements: none")
        return
    log(f"requirements: installing {', '.join(redact(line) for line in missing)}")
    fixed = fixed_packages()
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(fixed.items())))
        report = Path(scratch) / "report.json"
        # The lines go in by file: an index URL with a password must not be in argv, where any process can read it.
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text("\n".join(missing) + "\n")
        common = ["-r", str(wanted), "-c", str(constraints)]
        _pip(["install", "--dry-run", "--report", str(report), *common])
        _refuse_moves(_planned(report), fixed)
        _pip(["install", *common])
    log("requirements: done")


def fixed_packages() -> dict[str, str]:
    """Installed packages that must keep their version, name → version."""
    installed: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"]
        if name:
            installed.setdefault(canonicalize_name(name), found.version)
    fixed = {name: version for name, version in installed.items() if image_packages.is_fixed(name)}
    if "torch" in fixed and "numpy" in installed:
        fixed["numpy"] = installed["numpy"]
    return fixed


def redact(text: str) -> str:
    """Without the user and password of any URL in it."""
    return _CREDENTIALS.sub(r"\1…@", text)


def _parse(line: str) -> Requirement:
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise ProjectError(
            f"not a requirement: {redact(line)!r} ({redact(why)})", hint='write it as in pip: "onnx>=1.19"'
        ) from None


def _is_satisfied(wanted: Requirement) -> bool:
    """Name, version, extras and marker; a direct URL is only known to hold by asking pip."""
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    if wanted.url is not None:
        return False
    try:
        found = importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    if not wanted.specifier.contains(found.version, prereleases=True):
        return False
    needed = (Requirement(line) for line in found.requires or [] if wanted.extras)
    return all(_is_satisfied(part) for part in needed if _asked_by_extra(part, wanted.extras))


def _asked_by_extra(part: Requirement, extras: Iterable[str]) -> bool:
    """Whether a dependency is there only because of one of these extras."""
    if part.marker is None or part.marker.evaluate({"extra": ""}):
        return False
    if not any(part.marker.evaluate({"extra": extra}) for extra in extras):
        return False
    part.marker = None
    return True


def _planned(report: Path) -> dict[str, str]:
    """What pip would install, name → version."""
    items: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return {canonicalize_name(item["metadata"]["name"]): item["metadata"]["version"] for item in items}


def _refuse_moves(planned: dict[str, str], fixed: dict[str, str]) -> None:
    moved = [f"{name} {fixed[name]} → {planned[name]}" for name in sorted(fixed) if name in planned]
    if moved:
        raise ProjectError(
            f"the requirements would replace what the VM's image brings: {', '.join(moved)}",
            hint="loosen the version in [vm] requirements so that the installed one fits",
        )


def _pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProjectError(f"pip did not finish within {_PIP_TIMEOUT_S / 60:.0f} minutes") from None
    if done.returncode != 0:
        raise _explain(redact(done.stdout), redact(done.stderr))


def _explain(stdout: str, stderr: str) -> ProjectError:
    """In plain words when a constraint is what stood in the way, which pip tells on stdout; else pip's own."""
    clash = sorted(set(_CONSTRAINT.findall(stdout)))
    if clash:
        wanted = "; ".join(_WANTED.findall(stdout)) or "they"
        return ProjectError(
            f"the requirements would move what the VM's image brings, {', '.join(clash)}: {wanted}",
            hint=f"ask for versions that work with {', '.join(clash)}",
        )
    lines = [line.removeprefix("ERROR: ").strip() for line in stderr.splitlines() if line.startswith("ERROR: ")]
    said = " · ".join(lines or stderr.strip().splitlines()[-1:])[:600] or "it gave no reason"
    return ProjectError(f"pip can't install the requirements: {said}", hint="correct [vm] requirements")
