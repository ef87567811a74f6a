"""Torch as the image brought it: noted at the first boot, and every move since is told and refused. Real pip."""

from __future__ import annotations

from pathlib import Path

import pytest
from pip_rig import PipImage, wheel

from bridgehead import files, names
from bridgehead.errors import ProjectError
from vm_daemons import image_packages
from vm_run_support import vm_home

# What a boot does about requirements, in a fresh environment.
BOOT = """
import sys
from pathlib import Path
from bridgehead.errors import ProjectError
from vm_daemons import image_packages, requirements
from vm_daemons.home import VmHome
home = VmHome(Path(sys.argv[1]))
home.create()
try:
    image_packages.refuse_moved(home)
    requirements.install(sys.argv[2:], print)
    image_packages.refuse_moved(home)
except ProjectError as error:
    print("REFUSED", error.message, "|", error.hint)
"""
TORCH = {"torch/__init__.py": "import torch.version\n", "torch/version.py": "v = 2\n", "torch/lib/big.so": "x" * 100}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> PipImage:
    made = PipImage(tmp_path_factory.mktemp("image"))
    wheel(made.index, "torch", "2.0", files=TORCH)
    wheel(made.index, "fine", "1.0")
    wheel(made.index, "torch", "3.0", files=TORCH)
    wheel(made.index, "sneaky", "1.0", files={"sneaky.py": "", "torch/__init__.py": "raise ImportError('mine')\n"})
    made.pip_install("torch==2.0")
    return made


def _boot(image: PipImage, home: Path, *lines: str) -> str:
    return image.run(BOOT, str(home), *lines)


def test_a_wheel_that_overwrites_torchs_files_gets_past_pip_and_is_refused_for_good(
    image: PipImage, tmp_path: Path
) -> None:
    """A constraint keeps torch's version; here the version stays and torch no longer imports."""
    home = tmp_path / "vm"
    assert "REFUSED" not in _boot(image, home, "fine")
    said = _boot(image, home, "fine", "sneaky")
    assert "REFUSED" in said and "has other files" in said and "fresh VM" in said
    assert "REFUSED" in _boot(image, home, "fine", "sneaky"), "the cell run again does not take it for the image"
    (home / names.VM_STATE / names.VM_IMAGE_PACKAGES).unlink()
    assert "REFUSED" not in _boot(image, home, "fine", "sneaky"), "what the hint says helps"


def test_a_version_that_came_behind_pips_back_is_told(image: PipImage, tmp_path: Path) -> None:
    home = tmp_path / "vm"
    _boot(image, home)
    image.pip_install("torch==3.0")  # as an sh: line would
    assert "torch 2.0 → 3.0" in _boot(image, home)
    image.pip_install("torch==2.0")


def test_compiling_and_installing_other_things_is_no_move(image: PipImage, tmp_path: Path) -> None:
    home = tmp_path / "vm"
    _boot(image, home)
    (image.site / "torch/__pycache__").mkdir(exist_ok=True)
    (image.site / "torch/__pycache__/version.cpython-1.pyc").write_bytes(b"1")
    assert "REFUSED" not in _boot(image, home, "fine")


def _facts(version: str = "2.0", record: str = "aa", files: str = "bb") -> dict[str, str]:
    return {"version": version, "record": record, "files": files}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({}, "torch 2.0 is gone"),
        ({"torch": _facts(version="2.1")}, "torch 2.0 → 2.1"),
        ({"torch": _facts(record="cc")}, "torch 2.0 was installed anew"),
        ({"torch": _facts(files="cc")}, "torch 2.0 has other files"),
    ],
)
def test_each_way_to_move_has_its_words(now: image_packages.Noted, words: str) -> None:
    assert image_packages.moved({"torch": _facts()}, now) == [words]


def test_a_package_that_came_to_be_is_no_move() -> None:
    assert image_packages.moved({"torch": _facts()}, {"torch": _facts(), "jax": _facts()}) == []


def test_a_note_that_was_made_before_is_what_counts(tmp_path: Path) -> None:
    home = vm_home(tmp_path / "vm")
    files.write_json(home.state / names.VM_IMAGE_PACKAGES, {"packages": {"torch": _facts(version="0.0.1")}})
    with pytest.raises(ProjectError, match=r"torch 0\.0\.1 → "):
        image_packages.refuse_moved(home)


def test_names_are_compared_as_pip_does() -> None:
    assert image_packages.is_fixed(image_packages.canonical("NVIDIA_cublas.cu12"))
    assert not image_packages.is_fixed(image_packages.canonical("torchmetrics"))
