"""The house rules: who may import whom, names written once, the layout, and what each file keeps to."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bridgehead import errors, names

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "bridgehead", "bridge", "vm_daemons", "stages", "export", "compute_backends", "run_control", "control_panel",
    "chaos",
)  # fmt: skip
FIRST_PARTY = {
    "bridgehead": set(),
    "bridge": {"bridgehead"},
    "vm_daemons": {"bridgehead"},
    "stages": {"bridgehead"},
    "export": {"bridgehead"},
    "compute_backends": {"bridgehead"},
    "run_control": {"bridgehead", "bridge", "compute_backends"},
    "control_panel": {"bridgehead", "run_control"},
    "chaos": {"bridgehead", "bridge", "compute_backends", "run_control"},
}
THIRD_PARTY = {
    "bridgehead": set(),
    "bridge": {"aiohttp", "watchdog"},
    "vm_daemons": {"requests", "watchdog", "google", "kaggle_secrets", "packaging", "pip"},
    "stages": {"torch", "numpy"},
    "export": {"torch", "onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "cryptography"},
    "compute_backends": {"jupyter_client"},
    "run_control": {"pydantic", "typer", "rich", "mlflow", "wandb", "yaml"},
    "control_panel": {"ipywidgets", "anywidget", "traitlets", "IPython"},
    "chaos": set(),
}
# One file may import what its package may not.
ALSO = {
    "stages/export.py": {"export"},
    "run_control": {
        "export.bundle",
        "export.signature",
        "vm_daemons.storage",
        "stages.cells",
        "stages.config",
        "stages.judging",
    },
    "bridgehead/torch_state.py": {"torch", "numpy"},
    "bridgehead/image.py": {"torch"},
}
INSIDE_FUNCTIONS_ONLY = {
    "bridgehead": {"torch", "numpy"},
    "export/bundle.py": {"onnxruntime", "numpy"},
    "export/signature.py": {"cryptography"},
    "run_control": {"mlflow", "wandb", "yaml", "stages"},
    "vm_daemons": {"watchdog", "google", "kaggle_secrets"},
}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_house_allows(package: str) -> None:
    allowed = {package} | FIRST_PARTY[package] | THIRD_PARTY[package] | set(sys.stdlib_module_names)
    for path in _files(package):
        relative = path.relative_to(ROOT).as_posix()
        extra = ALSO.get(relative, set()) | ALSO.get(package, set())
        for module in _imports(ast.parse(path.read_text())):
            permitted = _top(module) in allowed | extra or any(
                module == name or module.startswith(name + ".") or name.startswith(module + ".") or name == module
                for name in extra
            )
            assert permitted, f"{relative} imports {module}"


@pytest.mark.parametrize("place", INSIDE_FUNCTIONS_ONLY)
def test_optional_and_heavy_modules_are_imported_inside_functions(place: str) -> None:
    paths = [ROOT / place] if place.endswith(".py") else _files(place)
    for path in paths:
        top_level = ast.Module([node for node in ast.parse(path.read_text()).body if not _defines(node)], [])
        bad = {_top(module) for module in _imports(top_level)} & INSIDE_FUNCTIONS_ONLY[place]
        assert not bad, f"{path.relative_to(ROOT)} imports {bad} at the top"


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def test_the_laptop_never_loads_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("bridgehead", "bridge", "compute_backends", "run_control", "control_panel")
        for path in _files(package)
        if path.stem != "__main__"
    ]
    code = f"import importlib, sys\nfor name in {modules + ['export.bundle']!r}: importlib.import_module(name)\n"
    code += "sys.exit(','.join(m for m in ('torch', 'onnx', 'onnxruntime') if m in sys.modules) or 0)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", [*PACKAGES, "notebooks"])
def test_each_package_resolves_inside_the_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT), "the index holds other packages of these names"


LITERALS = {
    name: value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and len(value) > 3 and name not in ("LOG", "EXPORT", "GATE", "BUNDLE")
}


@pytest.mark.parametrize("package", PACKAGES)
def test_shared_names_are_written_once(package: str) -> None:
    """File, stage and environment names come from bridgehead/names.py; prose may use them, code may not."""
    values = {value: name for name, value in LITERALS.items() if "." in value or value.startswith(("BRIDGEHEAD_", "/"))}
    values |= {stage: stage.upper() for stage in (names.PRETRAIN, names.FINETUNE)}
    for path in _files(package):
        if path.name == "names.py" and package == "bridgehead":
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in values:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                raise AssertionError(f"{place} spells {node.value!r}: use names.{values[node.value]}")


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_readable(package: str) -> None:
    for path in _files(package):
        text = path.read_text()
        place = path.relative_to(ROOT)
        assert len(text.splitlines()) <= 600, f"{place} is over 600 lines"
        tree = ast.parse(text)
        assert ast.get_docstring(tree), f"{place} has no docstring"
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{place}:{node.lineno} {node.name} has {length} lines"


def test_each_error_has_a_code_of_its_own_and_is_in_the_tree_picture() -> None:
    classes = [cls for cls in errors.all_errors() if cls.__module__ == errors.__name__]
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    for cls in classes:
        assert cls.__name__ in (errors.__doc__ or ""), f"{cls.__name__} is missing in the picture"
        assert 1 <= cls.exit_code < 126
