"""A notebook image for tests of installs: a real environment with real pip, and wheels made on the spot. No network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def wheel(folder: Path, name: str, version: str, *requires: str, files: dict[str, str] | None = None) -> None:
    """A wheel of one empty module of its own name, unless `files` (path in site-packages -> text) says otherwise."""
    stem = name.replace("-", "_")
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in (files or {f"{stem}.py": ""}).items():
            archive.writestr(path, text)
        info = f"{stem}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


class PipImage:
    """An environment of its own; `index` is all that its pip can find."""

    def __init__(self, root: Path) -> None:
        self.index = root / "index"
        self.index.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=100)
        self.python = str(root / "venv/bin/python")
        self.site = next((root / "venv/lib").glob("python3*")) / "site-packages"
        library = Path(pytest.__file__).parents[1]  # pip of the tests' own environment, without its other packages
        for name in ("pip", "packaging"):
            (self.site / name).symlink_to(library / name)
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "PIP_CONFIG_FILE": os.devnull,  # this machine's own settings have no say
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_NO_CACHE_DIR": "1",
        }

    def pip_install(self, *lines: str) -> None:
        self._call("-m", "pip", "install", "-q", *lines)

    def run(self, script: str, *arguments: str) -> str:
        """What the script prints."""
        return self._call("-c", script, *arguments)

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, *arguments], env=self._environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
