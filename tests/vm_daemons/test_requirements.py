"""Requirements are installed, and torch is never moved. Real pip, wheels made on the spot, no network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bridgehead.errors import ProjectError
from vm_daemons import requirements

# What runs in a fresh environment: it prints what was logged, and the error in one line.
SCRIPT = """
import sys
from bridgehead.errors import ProjectError
from vm_daemons import requirements
try:
    requirements.install(sys.argv[1:], print)
except ProjectError as error:
    print("REFUSED", error.message, "|", error.hint)
"""


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    stem = name.replace("-", "_")
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.py", "")
        info = f"{stem}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


Install = Callable[..., str]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A notebook image: an environment with torch 2.0 and numpy 1.0 (empty wheels), and an index of newer ones."""
    root = tmp_path_factory.mktemp("image")
    index = root / "index"
    index.mkdir()
    for version in ("2.0", "3.0"):
        wheel(index, "torch", version)
        wheel(index, "numpy", version.replace("2", "1").replace("3", "2"))
    wheel(index, "fine", "1.0", "numpy>=1.0")
    wheel(index, "greedy", "1.0", "torch>=3")
    wheel(index, "loose", "1.0", "torch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=60)
    python = str(root / "venv/bin/python")
    library = Path(pytest.__file__).parents[1]  # pip of the tests' own environment, without its other packages
    site = next((root / "venv/lib").glob("python3*")) / "site-packages"
    for name in ("pip", "packaging"):
        (site / name).symlink_to(library / name)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_NO_CACHE_DIR": "1",
    }

    def run(*lines: str) -> str:
        done = subprocess.run(
            [python, "-c", SCRIPT, *lines], env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    subprocess.run(
        [python, "-m", "pip", "install", "-q", "torch==2.0", "numpy==1.0"], env=environment, check=True, timeout=90
    )
    return run


def test_what_is_missing_is_installed_and_then_skipped(image: Install) -> None:
    assert "installing fine" in image("fine>=1")
    assert "all 1 are there" in image("fine>=1")


def test_what_only_needs_torch_takes_the_one_that_is_there(image: Install) -> None:
    assert "done" in image("loose")
    assert "all 1 are there" in image("torch==2.0")


@pytest.mark.parametrize("line", ["torch==3.0", "greedy", "numpy>=2"])
def test_a_requirement_that_would_move_torch_is_refused(image: Install, line: str) -> None:
    said = image(line)
    assert "REFUSED" in said and "the VM's image brings" in said
    assert "all 2 are there" in image("torch==2.0", "numpy==1.0")


def test_what_does_not_exist_is_said_plainly(image: Install) -> None:
    said = image("no-such-package-here")
    assert "REFUSED" in said and "no-such-package-here" in said and "Traceback" not in said


@pytest.mark.parametrize("line", ["one two", "-r other.txt", "x==", "--extra-index-url https://me:secret@host/"])
def test_what_is_no_requirement_is_refused_without_its_secrets(line: str) -> None:
    with pytest.raises(ProjectError) as caught:
        requirements.install([line], lambda _: None)
    assert "secret" not in caught.value.message


def test_secrets_in_urls_are_not_logged() -> None:
    assert requirements.redact("a @ https://me:tok@host/x.whl") == "a @ https://…@host/x.whl"


def test_markers_and_extras_are_understood() -> None:
    said: list[str] = []
    requirements.install(["pip; python_version > '3'", "nothing-at-all; python_version < '3'"], said.append)
    assert said == ["requirements: all 2 are there"]
