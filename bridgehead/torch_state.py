"""All of a training run's state, so that killed-and-resumed equals uninterrupted bit for bit.

Measured on torch 2.13 (CPU): equality holds when *all* of model, optimizer, EMA, the python, numpy and torch RNGs and
the position are restored, and breaks when any one is left out. RNG states are stored as tensors, so that loading
works with `weights_only=True`, and are restored last, because building or loading a model draws from them.
Torch is imported inside the functions: the laptop imports this package and has no torch.
"""

from __future__ import annotations

import copy
import errno
import os
import pickle
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.async_save import memory_available_bytes
from bridgehead.checkpoints import Checkpoint, CheckpointRefused

STATE_FILE = "state.pt"
_ROOM_FACTOR = 1.25  # of the copies' size: pinned memory comes in rounded pieces


def save(folder: Path, parts: Mapping[str, Any], *, position: int) -> None:
    """Write state.pt: `parts` (anything with state_dict()), the RNG states and the global sample position.

    Raises OSError, for a full disk too.
    """
    _write(_state(parts, position), folder)


def load(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> int:
    """Restore every part and then the RNGs from a verified checkpoint; return the position.

    Raises CheckpointRefused when the checkpoint holds other parts than asked for, or of another shape.
    """
    state = _read(checkpoint)
    if set(state["parts"]) != set(parts):
        raise CheckpointRefused(
            f"checkpoint {checkpoint.step} holds {sorted(state['parts'])}, the run needs {sorted(parts)}",
            hint="the script has changed since; queue a new run",
        )
    for name, part in parts.items():
        _restore_part(name, part, state["parts"][name], checkpoint.step)
    _restore_rng(state["rng"])
    return int(state["position"])


class Snapshot:
    """Copies of a training state in host memory, in buffers that are used again: for Run.checkpoint_async.

    The step is held while `take` copies and no longer. From a GPU the copies go to pinned memory and are complete
    when `take` returns, so nothing that the next step changes can reach them.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts
        self._buffers: dict[tuple[object, ...], Any] = {}

    @property
    def size_bytes(self) -> int:
        """Host memory that the copies take."""
        return sum(tensor.nbytes for tensor in _tensors({name: part.state_dict() for name, part in self.parts.items()}))

    def has_room(self) -> bool:
        """Whether host memory holds the copies; else save with `save`, which needs none."""
        available = memory_available_bytes()
        return bool(self._buffers) or available is None or self.size_bytes * _ROOM_FACTOR < available

    def take(self, *, position: int) -> Callable[[Path], None]:
        """Copy everything now; the function returned writes the copies to state.pt in a folder.

        It must have done so, or be given up, before `take` is called again: the buffers are the same.
        """
        state = self._copied(_state(self.parts, position), (), {})
        _wait_for_devices()
        return lambda folder: _write(state, folder)

    def _copied(self, value: Any, place: tuple[object, ...], seen: dict[object, Any]) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return self._copied_tensor(value, place, seen)
        if isinstance(value, Mapping):
            copied: Any = OrderedDict() if isinstance(value, OrderedDict) else {}
            copied.update((key, self._copied(item, (*place, key), seen)) for key, item in value.items())
            if hasattr(value, "_metadata"):  # of a module: which version of its state this is
                copied._metadata = copy.deepcopy(value._metadata)
            return copied
        if isinstance(value, (list, tuple)):
            items = [self._copied(item, (*place, number), seen) for number, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        return copy.deepcopy(value)

    def _copied_tensor(self, tensor: Any, place: tuple[object, ...], seen: dict[object, Any]) -> Any:
        """Into the buffer of this place. Weights that two names share stay one in the file."""
        import torch

        if tensor.layout is not torch.strided:
            return tensor.detach().cpu().clone()
        whose = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and whose in seen:
            return seen[whose]
        buffer = self._buffers.get(place)
        if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
            self._buffers[place] = buffer
        buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        seen[whose] = buffer
        return buffer


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


def _state(parts: Mapping[str, Any], position: int) -> dict[str, Any]:
    return {
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "position": position,
        "rng": _rng_state(),
    }


def _write(state: Mapping[str, Any], folder: Path) -> None:
    """Raises OSError. torch has a RuntimeError for a full disk; half a file would keep it full."""
    import torch

    path = folder / STATE_FILE
    try:
        torch.save(state, path)
    except (OSError, RuntimeError) as error:
        full = files.is_full(folder)
        path.unlink(missing_ok=True)
        if full and not isinstance(error, OSError):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def _read(checkpoint: Checkpoint) -> dict[str, Any]:
    """Its bytes have been checked; what can still be wrong is that another program wrote them."""
    import torch

    try:
        state = torch.load(checkpoint.path(STATE_FILE), map_location="cpu", weights_only=True)
        if isinstance(state, dict) and {"parts", "position", "rng"} <= set(state):
            return state
        why = "it holds something else"
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
    raise CheckpointRefused(f"{STATE_FILE} of checkpoint {checkpoint.step} can't be read: {why}")


def _wait_for_devices() -> None:
    """Copies to pinned memory are under way until their stream says otherwise."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            torch.cuda.current_stream(number).synchronize()


def _tensors(value: Any) -> list[Any]:
    """All tensors in a nested state, each storage once."""
    import torch

    found: dict[tuple[object, int], Any] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            found[item.device, item.data_ptr() if item.layout is torch.strided else id(item)] = item
        elif isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, (list, tuple)):
            waiting += item
    return list(found.values())


# --- what is restored, one thing a function: a test breaks each in turn and sees that it shows ---------------


def _restore_part(name: str, part: Any, state: Any, step: int) -> None:
    try:
        part.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:300]
        raise CheckpointRefused(f"{name} of checkpoint {step} does not fit the one of this run: {why}") from None


def _restore_rng(state: Mapping[str, Any]) -> None:
    _restore_torch_rng(state)
    _restore_python_rng(state)
    _restore_numpy_rng(state)
    _restore_cuda_rng(state)


def _restore_torch_rng(state: Mapping[str, Any]) -> None:
    import torch

    torch.set_rng_state(state["torch"])


def _restore_python_rng(state: Mapping[str, Any]) -> None:
    random.setstate((state["python_version"], tuple(state["python"].tolist()), state["python_gauss"]))


def _restore_numpy_rng(state: Mapping[str, Any]) -> None:
    if "numpy" in state:
        import numpy

        name, position, has_gauss, cached = state["numpy_rest"]
        keys = state["numpy"].numpy().astype("uint32")
        numpy.random.set_state((name, keys, position, has_gauss, cached))


def _restore_cuda_rng(state: Mapping[str, Any]) -> None:
    """On as many GPUs as both machines have; that their number differs is told as drift."""
    import torch

    if "cuda" in state and torch.cuda.is_available():
        for number, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, number)


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
