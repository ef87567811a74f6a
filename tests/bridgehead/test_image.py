"""What equality bit for bit also depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bridgehead import image

ROOT = Path(__file__).parents[2]


def test_two_looks_at_one_machine_do_not_differ() -> None:
    assert image.differences(image.fingerprint(), image.fingerprint()) == ([], [])


def test_it_is_plain_json_and_does_not_load_torch() -> None:
    code = "import json, sys; from bridgehead import image; facts = image.fingerprint()\n"
    code += "print(json.dumps([facts, 'torch' in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    facts, loaded = json.loads(done.stdout)
    assert not loaded and {"python", "platform", "cpu", "torch", "driver", "gpu_count", "OMP_NUM_THREADS"} <= set(facts)


def test_with_torch_it_knows_threads_and_capability() -> None:
    torch = pytest.importorskip("torch")
    facts = image.fingerprint()
    assert facts["threads"] == torch.get_num_threads() and facts["cpu_capability"]
    assert facts["torch"] == torch.__version__ and {"cuda", "gpu"} <= set(facts)


@pytest.mark.parametrize("key", ["threads", "cpu", "cpu_capability", "torch", "driver", "gpu_count", "MKL_CBWR"])
def test_what_takes_part_in_the_arithmetic_ends_the_promise(key: str) -> None:
    decisive, rest = image.differences({key: "one"}, {key: "other"})
    assert decisive == [f"{key}: 'one' then, 'other' now"] and rest == []


@pytest.mark.parametrize("key", image.INFORMATIVE)
def test_what_does_not_is_only_shown(key: str) -> None:
    decisive, rest = image.differences({key: "one"}, {key: "other"})
    assert decisive == [] and len(rest) == 1


def test_what_only_one_of_them_knows_is_no_difference() -> None:
    assert image.differences({"threads": 1}, {"gpu": None}) == ([], [])


def test_the_driver_is_read_from_the_kernels_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus" / "0000").mkdir(parents=True)
    (tmp_path / "gpus" / "0000" / "information").write_text("Model: \t\t Tesla T4\nIRQ: 5\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug\nGCC\n")
    monkeypatch.setattr(image, "_NVIDIA", tmp_path)
    assert image._driver() == "580.82.07" and image._gpus() == ["Tesla T4"]
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.1  Release\n")
    assert image._driver() == "575.1"
