"""Which text a run executes: the hash of what goes to the VM, and where that stands in the project's git history."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

from bridge import boot_archive
from bridge.payload import Payload
from bridge.project import ProjectView
from run_control import project_file
from run_control.run_spec import Code

_GIT_TIMEOUT_S = 20.0


def shipped() -> Code:
    """Of a stage that Bridgehead brings: the archive that this process would serve."""
    return Code(sha256=_boot_sha256(), shipped=True)


def own(root: Path) -> Code:
    """Of the project's own files. Raises UsageError when they can't be read, so that nothing can be pinned."""
    manifest = _payload(root).manifest()
    commit, dirty = git_state(root)
    return Code(sha256=str(manifest["payload_sha256"]), commit=commit, dirty_sha256=dirty)


def git_state(root: Path) -> tuple[str, str]:
    """(commit, SHA-256 of what differs from it); empty where there is no repository, no commit yet, or no git.

    What git does not track is in the payload's own hash. Runs git twice.
    """
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return "", ""
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return "", ""
    diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD", "--", ".")
    return commit.decode().strip(), hashlib.sha256(diff).hexdigest() if diff else ""


def _git(root: Path, *words: str) -> bytes | None:
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    argv = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@functools.cache
def _boot_sha256() -> str:
    return boot_archive.build().sha256


@functools.lru_cache(maxsize=8)
def _payload(root: Path) -> Payload:
    """One for each project, so that what has not changed is not hashed again."""

    def load() -> ProjectView:
        return project_file.load(root)

    return Payload(root, load)
