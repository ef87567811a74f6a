"""Requirements are installed, and torch is never moved. Real pip, wheels made on the spot, no network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pip_rig import PipImage, wheel

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


Install = Callable[..., str]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A notebook image: an environment with torch 2.0 and numpy 1.0 (empty wheels), and an index of newer ones."""
    made = PipImage(tmp_path_factory.mktemp("image"))
    for version in ("2.0", "3.0"):
        wheel(made.index, "torch", version)
        wheel(made.index, "numpy", version.replace("2", "1").replace("3", "2"))
    wheel(made.index, "fine", "1.0", "numpy>=1.0")
    wheel(made.index, "greedy", "1.0", "torch>=3")
    wheel(made.index, "loose", "1.0", "torch")
    made.pip_install("torch==2.0", "numpy==1.0")
    return lambda *lines: made.run(SCRIPT, *lines)


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
