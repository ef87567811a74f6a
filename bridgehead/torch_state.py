"""All of a training run's state, so that killed-and-resumed equals uninterrupted bit for bit.

Measured on torch 2.13 (CPU): equality holds when *all* of model, optimizer, EMA, the python, numpy and torch RNGs and
the position are restored, and breaks when any one is left out. RNG states are stored as tensors, so that loading
works with `weights_only=True`, and are restored last, because building or loading a model draws from them.
Torch is imported inside the functions: the laptop imports this package and has no torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridgehead.checkpoints import Checkpoint
from bridgehead.errors import VerificationError

STATE_FILE = "state.pt"


def save(folder: Path, parts: Mapping[str, Any], *, position: int) -> None:
    """Write state.pt: `parts` (anything with state_dict()), the RNG states and the global sample position."""
    import torch

    state = {
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "position": position,
        "rng": _rng_state(),
    }
    torch.save(state, folder / STATE_FILE)


def load(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> int:
    """Restore every part and then the RNGs from a verified checkpoint; return the position.

    Raises VerificationError when the checkpoint holds other parts than asked for: nothing is restored by halves.
    """
    import torch

    state = torch.load(checkpoint.path(STATE_FILE), map_location="cpu", weights_only=True)
    if set(state["parts"]) != set(parts):
        raise VerificationError(
            f"checkpoint {checkpoint.step} holds {sorted(state['parts'])}, the run needs {sorted(parts)}",
            hint="the script has changed since; queue a new run",
        )
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    _restore_rng(state["rng"])
    return int(state["position"])


def fingerprint() -> dict[str, object]:
    """What bitwise equality also depends on (measured): threads, CPU capability, versions, device."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda if cuda else None,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
    }


def fingerprint_drift(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """What differs, in words; empty means that the bitwise promise holds."""
    keys = sorted(set(old) | set(new))
    return [f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in keys if old.get(key) != new.get(key)]


def tensors_sha256(state: Mapping[str, Any]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of a state dict: equal exactly when bitwise equal."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rng_state() -> dict[str, Any]:
    import torch

    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(internal, dtype=torch.int64),
        "python_version": version,
        "python_gauss": gauss,
    }
    if "numpy" in sys.modules:
        import numpy

        legacy = numpy.random.get_state(legacy=False)
        state["numpy"] = torch.tensor(legacy["state"]["key"].astype("int64"))
        rest = (legacy["bit_generator"], legacy["state"]["pos"], legacy["has_gauss"], legacy["gauss"])
        state["numpy_rest"] = [str(rest[0]), int(rest[1]), int(rest[2]), float(rest[3])]
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _restore_rng(state: Mapping[str, Any]) -> None:
    import torch

    torch.set_rng_state(state["torch"])
    random.setstate((state["python_version"], tuple(state["python"].tolist()), state["python_gauss"]))
    if "numpy" in state:
        import numpy

        name, position, has_gauss, cached = state["numpy_rest"]
        keys = state["numpy"].numpy().astype("uint32")
        numpy.random.set_state((name, keys, position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
