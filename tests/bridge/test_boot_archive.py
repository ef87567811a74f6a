"""The boot archive: the same bytes each time, our own packages, nothing else, and no torch on the way."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bridge import boot_archive
from bridgehead import names, paths
from bridgehead.errors import VerificationError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for the shipped packages, first on the path of a search that knows no others."""
    for package in names.SHIPPED_PACKAGES:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text(f'"""{package}"""\n')

    def find(name: str) -> object:
        folder = tmp_path / name
        return type("Spec", (), {"submodule_search_locations": [str(folder)]}) if folder.is_dir() else None

    monkeypatch.setattr("importlib.util.find_spec", find)
    return tmp_path


def test_two_builds_are_the_same_bytes_whatever_the_clock_says(packages: Path) -> None:
    first = boot_archive.build()
    os.utime(packages / names.SHIPPED_PACKAGES[0] / "__init__.py", (1, 1))
    assert boot_archive.build() == first
    assert first.sha256 == hashlib.sha256(first.data).hexdigest()


def test_a_changed_file_changes_the_hash(packages: Path) -> None:
    first = boot_archive.build()
    (packages / names.SHIPPED_PACKAGES[-1] / "__init__.py").write_text("x = 1\n")
    assert boot_archive.build().sha256 != first.sha256


def test_it_holds_modules_and_package_data_and_no_leftovers(packages: Path) -> None:
    home = packages / "stages"
    (home / "deep").mkdir()
    (home / "deep" / "module.py").write_text("")
    (home / "table.json").write_text("{}")
    (home / "__pycache__").mkdir()
    (home / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"x")
    for leftover in (".module.py.swp", "module.py~", "old.pyc"):
        (home / leftover).write_text("x")
    with zipfile.ZipFile(io.BytesIO(boot_archive.build().data)) as archive:
        found = archive.namelist()
        assert archive.testzip() is None
    assert found == sorted([f"{name}/__init__.py" for name in names.SHIPPED_PACKAGES] + [
        "stages/deep/module.py", "stages/table.json",
    ])  # fmt: skip


def test_the_real_one_ships_all_packages_under_safe_names() -> None:
    with zipfile.ZipFile(io.BytesIO(boot_archive.build().data)) as archive:
        found = archive.namelist()
    assert {name.partition("/")[0] for name in found} == set(names.SHIPPED_PACKAGES)
    assert all(paths.check_relative(name) for name in found)


def test_building_it_imports_none_of_what_it_ships_beyond_the_contract() -> None:
    code = "import sys; from bridge import boot_archive; boot_archive.build()\n"
    code += "sys.exit(','.join({'torch', 'stages', 'export', 'vm_daemons'} & set(sys.modules)) or 0)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_another_package_of_the_same_name_is_refused(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (packages / "export").rename(tmp_path_factory.mktemp("elsewhere") / "export")
    with pytest.raises(VerificationError, match="'export'"):
        boot_archive.build()
