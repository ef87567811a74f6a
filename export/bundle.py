"""Opens and verifies a ship bundle with onnxruntime and numpy alone; `bridgehead bundle verify` runs this.

A bundle is a folder, a .tar of it, or a run folder that holds bundle/. Nothing in it is trusted: every file is hashed
against the manifest before it is parsed, files that the manifest does not name are refused, and arrays are loaded
without pickle.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bridgehead import files, names, paths
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from export import archive, signature

SCHEMA: Final = 1
PREPROCESS: Final = "preprocess.json"
LABELS: Final = "labels.json"
PARITY: Final = "parity.json"
GATE: Final = "gate.json"
SAMPLES: Final = "samples"
ENV_LOCK: Final = "env.lock"
LICENSE: Final = "LICENSE"
NOTICE: Final = "NOTICE"
MODEL_CARD: Final = "MODEL_CARD.md"
REQUIRED: Final = (
    names.MODEL_ONNX, names.BUNDLE_RECORD, PREPROCESS, LABELS, PARITY, GATE, ENV_LOCK, LICENSE, NOTICE, MODEL_CARD,
)  # fmt: skip
EXPECTED_PREFIX: Final = "expected_"  # arrays of a samples file: one input, and expected_<output> for each output

# Another CPU sums in another order, so this is wider than the parity check on the building machine (1e-5).
ATOL: Final = 1e-4
RTOL: Final = 1e-4
_MANIFEST_MAX_BYTES = 1 << 20
_SAMPLES_MAX_BYTES = 256 * 2**20
_JSON_MAX_BYTES = 4 * 2**20
_MANIFEST_LINE = re.compile(r"([0-9a-f]{64})  (\S+)\Z")
_SHOWN = 3


@dataclass(frozen=True)
class BundleReport:
    """What verify() found; it raises instead of returning a report that is not ok."""

    ok: bool
    name: str
    run_id: str
    files: int
    samples: int
    parity_max_abs: float
    tolerance: float
    gate: str
    manifest_sha256: str
    signed_by: str = ""  # id of the key, as the signature says; empty: not signed
    signature: str = "none"  # valid, once a key was given that it fits; else "not checked"
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"v": names.RECORD_VERSION, **asdict(self)}


class Bundle:
    """An open bundle; a context manager, because one from an archive lives in a temp folder until closed."""

    def __init__(
        self, folder: Path, temp: tempfile.TemporaryDirectory[str] | None = None, beside: Path | None = None
    ) -> None:
        self.folder = folder
        self.signature_file = beside or folder / names.BUNDLE_SIGNATURE
        self._temp = temp

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._temp is not None:
            self._temp.cleanup()

    def manifest(self) -> dict[str, str]:
        """Path → SHA-256. Raises VerificationError."""
        path = self.folder / names.BUNDLE_MANIFEST
        if not path.is_file() or path.is_symlink():
            raise VerificationError(f"no {names.BUNDLE_MANIFEST}: this is no bundle, or not all of it")
        if path.stat().st_size > _MANIFEST_MAX_BYTES:
            raise VerificationError(f"{names.BUNDLE_MANIFEST} is too long")
        listed: dict[str, str] = {}
        for number, line in enumerate(path.read_text("ascii", "replace").splitlines(), 1):
            match = _MANIFEST_LINE.match(line)
            if match is None or match[2] in listed:
                raise VerificationError(f"{names.BUNDLE_MANIFEST}, line {number}, can't be read")
            try:
                listed[paths.check_relative(match[2])] = match[1]
            except UsageError as error:
                raise VerificationError(f"{names.BUNDLE_MANIFEST}, line {number}: {error.message}") from None
        return listed

    def record(self, name: str) -> dict[str, Any]:
        """One of the bundle's JSON files. Call verify's file check first. Raises VerificationError."""
        path = self.folder / name
        value = files.read_json(path) if path.stat().st_size <= _JSON_MAX_BYTES else None
        if not isinstance(value, dict):
            raise VerificationError(f"{name} is not a JSON object")
        return value

    def check_files(self) -> dict[str, str]:
        """Every file against the manifest; return the manifest. Raises VerificationError that lists what is wrong."""
        listed = self.manifest()
        found = [path for path in self.folder.rglob("*") if not _is_folder(path)]
        there = {path.relative_to(self.folder).as_posix(): path for path in found}
        for name in (names.BUNDLE_MANIFEST, names.BUNDLE_SIGNATURE):
            there.pop(name, None)
        problems = [f"{name} is missing" for name in sorted({*listed, *REQUIRED} - set(there))]
        problems += [f"{name} is not in the manifest" for name in sorted(set(there) - set(listed))]
        for name in sorted(set(there) & set(listed)):
            if there[name].is_symlink() or not there[name].is_file():
                problems.append(f"{name} is no plain file")
            elif files.sha256_file(there[name]) != listed[name]:
                problems.append(f"{name} has another hash than the manifest says")
        if problems:
            more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
            raise VerificationError("; ".join(problems[:_SHOWN]) + more, hint="fetch the bundle again")
        return listed


def open_bundle(path: Path) -> Bundle:
    """A bundle from a folder, an archive, or a run folder that holds bundle/.

    Raises NotFoundError when there is nothing, VerificationError for an archive that is not ours.
    """
    if path.is_dir():
        if (path / names.BUNDLE_MANIFEST).exists() or not (path / names.BUNDLE).is_dir():
            return Bundle(path)
        return Bundle(path / names.BUNDLE)
    if not path.is_file():
        raise NotFoundError(f"no bundle at {path}", hint=f"bundles arrive in {names.IN_FOLDER}/<run>/{names.BUNDLE}")
    temp = tempfile.TemporaryDirectory(prefix="bridgehead-bundle-")
    try:
        archive.extract_archive(path, Path(temp.name))
    except BaseException:
        temp.cleanup()
        raise
    beside = path.with_name(path.name + signature.SUFFIX)
    return Bundle(Path(temp.name), temp, beside if beside.is_file() else None)


def verify(path: Path, public_key: Path | None = None) -> BundleReport:
    """Check every hash, load the model, run the sample clips and compare; with a key, the signature before all that.

    Raises VerificationError, NotFoundError, and UsageError for a key that is none.
    """
    with open_bundle(path) as bundle:
        signed_by = _check_signature(bundle, public_key)
        listed = bundle.check_files()
        record = bundle.record(names.BUNDLE_RECORD)
        if record.get("schema") != SCHEMA:
            raise VerificationError(f"{names.BUNDLE_RECORD} is of schema {record.get('schema')!r}; this reads {SCHEMA}")
        model = record.get("model")
        if not isinstance(model, dict) or model.get("sha256") != listed[names.MODEL_ONNX]:
            raise VerificationError(f"{names.MODEL_ONNX} is not the model that {names.BUNDLE_RECORD} names")
        gate = str(bundle.record(GATE).get("verdict"))
        if gate != "pass" or bundle.record(PARITY).get("ok") is not True:
            raise VerificationError(f"the bundle's own gate says {gate!r} or its parity check failed: it must not ship")
        samples, max_abs = _run_samples(bundle, listed)
        return BundleReport(
            ok=True,
            name=str(record.get("name")),
            run_id=str(record.get("run_id")),
            files=len(listed),
            samples=samples,
            parity_max_abs=max_abs,
            tolerance=ATOL,
            gate=gate,
            manifest_sha256=files.sha256_file(bundle.folder / names.BUNDLE_MANIFEST),
            signed_by=signed_by,
            signature="none" if not signed_by else "valid" if public_key else "not checked",
        )


def _check_signature(bundle: Bundle, public_key: Path | None) -> str:
    """The id of the key that the bundle says it is signed with; checked when there is a key to check with."""
    if public_key is None:
        return signature.key_id_of(bundle.signature_file)
    bundle.manifest()  # there, and of a size that can be read
    return signature.check(bundle.folder / names.BUNDLE_MANIFEST, bundle.signature_file, public_key)


def _run_samples(bundle: Bundle, listed: dict[str, str]) -> tuple[int, float]:
    """How many sample clips ran, and the largest difference to what the bundle expects."""
    session = _session(bundle.folder / names.MODEL_ONNX)
    input_name = session.get_inputs()[0].name
    outputs = [output.name for output in session.get_outputs()]
    count, worst = 0, 0.0
    for name in sorted(name for name in listed if name.startswith(f"{SAMPLES}/")):
        arrays = _arrays(bundle.folder / name)
        missing = {input_name, *(EXPECTED_PREFIX + output for output in outputs)} - set(arrays)
        if missing:
            raise VerificationError(f"{name} lacks {', '.join(sorted(missing))}")
        got = _infer(session, outputs, {input_name: arrays[input_name]}, name)
        for output, values in zip(outputs, got, strict=True):
            worst = max(worst, _compare(values, arrays[EXPECTED_PREFIX + output], f"{name}: {output}"))
        count += len(arrays[input_name])
    if count == 0:
        raise VerificationError("the bundle holds no sample clips, so nothing shows that the model works")
    return count, worst


def _session(model: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's own exceptions share no base class
        raise VerificationError(f"onnxruntime can't load {model.name}: {_first_line(error)}") from None


def _infer(session: Any, outputs: list[str], feed: dict[str, Any], name: str) -> list[Any]:
    try:
        return list(session.run(outputs, feed))
    except Exception as error:  # noqa: BLE001 - as above
        raise VerificationError(f"the model does not run on {name}: {_first_line(error)}") from None


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with zipfile.ZipFile(path) as packed:
            if sum(item.file_size for item in packed.infolist()) > _SAMPLES_MAX_BYTES:
                raise VerificationError(f"{path.name} unpacks to more than {_SAMPLES_MAX_BYTES} bytes")
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except VerificationError:
        raise
    except (Exception, MemoryError) as error:  # noqa: BLE001 - numpy and zipfile raise a dozen kinds for a hostile file
        raise VerificationError(f"{path.name} can't be read: {_first_line(error)}") from None
    odd = [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]
    if odd:
        raise VerificationError(f"{path.name} holds {odd[0]!r}, which is no array of real numbers")
    return arrays


def _compare(got: Any, wanted: Any, what: str) -> float:
    import numpy as np

    if got.shape != wanted.shape or not np.isfinite(got).all():
        raise VerificationError(f"{what} has shape {got.shape}, expected {wanted.shape}, or is not finite")
    gap = float(np.abs(got - wanted).max(initial=0.0))
    if not np.allclose(got, wanted, atol=ATOL, rtol=RTOL):
        raise VerificationError(f"{what} differs from the expected output by {gap:.2e}; allowed is {ATOL}")
    return gap


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
