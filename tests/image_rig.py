"""A Python like this one from which modules are hidden, as on a notebook image that does not bring them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_HOOK = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Hide())
"""


def python_without(folder: Path, *hidden: str) -> str:
    """The path of an interpreter that finds all that this one finds, but for `hidden`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    (site / "hide_modules.py").write_text(_HOOK.format(hidden=set(hidden)))
    paths = [path for path in sys.path if path and Path(path).is_dir()]
    (site / "hide_modules.pth").write_text("\n".join([*paths, "import hide_modules"]) + "\n")
    return str(folder / "bin" / "python")
