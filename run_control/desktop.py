"""Showing a folder in this machine's file manager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def open_folder(folder: Path) -> bool:
    """Open a folder, never a file: what came from a VM is not run here. False where there is no desktop to show it."""
    if not folder.is_dir():
        return False
    if sys.platform == "win32":
        os.startfile(folder)
        return True
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    has_screen = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if opener is None or not has_screen:
        return False
    subprocess.Popen(
        [opener, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True
