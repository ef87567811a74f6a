"""Where Debian's Chromium is and how tests start it; imports no Playwright, so that a suite can say what it lacks."""

from __future__ import annotations

import shutil

from bridgehead.errors import NotFoundError

NAMES = ("chromium", "chromium-browser")
# No sandbox as root, nothing sent home, and no /dev/shm: containers have too little of it.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def chromium() -> str:
    """Its path. Raises NotFoundError without one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise NotFoundError("no chromium here", hint="apt-get install chromium")
    return path
