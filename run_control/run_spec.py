"""A run spec: all that decides what a run is, frozen, in one canonical form whose SHA-256 is its id.

It is made from the project file (TOML: its reader is in the standard library, it has one way to write a number and no
surprises such as `no` for false), from a spec file in TOML or YAML that overrides it, and from what is on the disk:
code, data, seeds. Its resolved form travels with the command and lies in the run's
run.json. Two specs with one id give the same bits on the same image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from bridgehead import files, names
from bridgehead.errors import UsageError, VerificationError
from bridgehead.records import StageSpec

SPEC_VERSION = 1
SEED = "seed"
_SHOWN_CHARACTERS = 200


class Frozen(dict[str, Any]):
    """A dict that stays as it is, and so does all inside it."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a run spec is frozen")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def freeze(value: Any) -> Any:
    """Plain JSON as frozen JSON; 2.0 becomes 2 and -0.0 becomes 0, so that equal values have one text."""
    if isinstance(value, Mapping):
        return Frozen({str(key): freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def thaw(value: Any) -> Any:
    """The same as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, list | tuple) else value


FrozenJson = Annotated[dict[str, Any], AfterValidator(freeze), PlainSerializer(thaw)]
Sha256 = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{64})?$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(_Part):
    """The data that a run is of. `fingerprint`: hashes of its sorted clip ids and shards; "" where none is stated."""

    name: str = ""
    fingerprint: Sha256 = ""
    path: str = ""  # in the project folder; "" where it does not travel with the code
    vm_path: str = ""  # where it lies on the VM; "" where the stage makes or finds it by itself
    sets_sha256: Sha256 = ""  # of what trains and what evaluates
    why_unpinned: str = ""


class Code(_Part):
    """`sha256`: of the payload, or of what Bridgehead ships for a shipped stage."""

    sha256: Sha256 = ""
    shipped: bool = False
    commit: str = ""  # of the project's git repository; "" where it is none
    dirty_sha256: Sha256 = ""  # of what differs from that commit; "" for nothing


class Resources(_Part):
    """Money as text with its unit (`1.07 CU`); hours, 10^9 bytes. Empty and 0: not limited."""

    gpu: str = ""
    gpu_memory_gb: float = 0.0
    cpus: float = 1.0
    memory_gb: float = 0.0
    max_price_per_hour: str = ""
    max_hours: float = 0.0
    max_total: str = ""
    unpriced: str = ""  # why it may start although its price is not known


class Saves(_Part):
    """Between checkpoints: epochs, steps, seconds; 0 is not by that."""

    every_epochs: int = 5
    every_steps: int = 0
    every_s: float = 0.0
    keep: int = 3


class RunSpec(_Part):
    """`RunSpec.model_validate` is strict; use `read` for what comes from a file."""

    v: Literal[1] = 1
    project: str
    stage: str
    command: str
    config: FrozenJson = Field(default_factory=dict)
    data: Data = Field(default_factory=Data)
    code: Code = Field(default_factory=Code)
    seeds: FrozenJson = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    saves: Saves = Field(default_factory=Saves)
    parents: tuple[str, ...] = ()  # runs that it comes after or begins at
    resume_from: str = ""
    allow: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def canonical(self) -> bytes:
        """The one text of this spec."""
        return files.canonical_json(self.to_json())

    @property
    def id(self) -> str:
        """Hex SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = freeze(self.model_dump(mode="json"))
        return dict(thaw(plain))

    def with_more(self, **values: Any) -> Self:
        """A copy in which these members differ, checked again."""
        return type(self).model_validate({**dict(self), **values})


def read(data: object, where: str) -> RunSpec:
    """A resolved spec from its JSON. Raises UsageError: another version, a key it has not, a value that can't be."""
    if not isinstance(data, dict):
        raise UsageError(f"{where}: not a run spec")
    version = data.get("v", SPEC_VERSION)
    if version != SPEC_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and not isinstance(version, bool) and version > SPEC_VERSION
        raise UsageError(
            f"{where}: v: a run spec of version {version!r}; this Bridgehead knows {SPEC_VERSION}",
            hint="a newer Bridgehead wrote it: install that one" if newer else "it is no run spec",
        )
    try:
        return RunSpec.model_validate(_tuples(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {key}: {first['msg']}") from None


def digest_checked(data: object, spec_id: str, where: str) -> RunSpec:
    """A spec that was stored under its id. Raises VerificationError when it was edited since."""
    spec = read(data, where)
    if spec.id != spec_id:
        raise VerificationError(
            f"{where} was edited: its id is {spec.id[:16]} and no longer {spec_id[:16]}",
            hint="write a spec file of your own: bridgehead run FILE.toml",
        )
    return spec


def seeds_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The seeds of a config: its integers named `seed` or `…_seed`."""
    return {
        key: value
        for key, value in sorted(config.items())
        if (key == SEED or key.endswith(f"_{SEED}")) and isinstance(value, int) and not isinstance(value, bool)
    }


def of_stage(
    project: str, stage: StageSpec, *, parents: Iterable[str], code: Code, data: Data, resources: Resources
) -> RunSpec:
    """The spec of a resolved stage. `resources` says the limits; what the stage needs comes from the stage."""
    needs = stage.needs
    return RunSpec(
        project=project,
        stage=stage.name,
        command=stage.command,
        config=stage.config,
        data=data,
        code=code,
        seeds=seeds_of(stage.config),
        resources=resources.model_copy(
            update={"gpu_memory_gb": needs.gpu_memory_gb, "cpus": needs.cpus, "memory_gb": needs.memory_gb}
        ),
        saves=Saves(
            every_epochs=stage.checkpoint_every_epochs,
            every_steps=stage.checkpoint_every_steps,
            every_s=stage.checkpoint_every_s,
            keep=stage.keep_checkpoints,
        ),
        parents=tuple(sorted(set(parents) | ({stage.resume_from} - {""}))),
        resume_from=stage.resume_from,
        allow=tuple(stage.allow),
    )


def differences(one: RunSpec, other: RunSpec) -> list[tuple[str, str, str]]:
    """(key, first, second) of each leaf that differs, in the order of the keys; "" where one has it not."""
    flat_one, flat_other = _flat(one.to_json()), _flat(other.to_json())
    keys = [key for key in sorted({*flat_one, *flat_other}) if flat_one.get(key) != flat_other.get(key)]
    return [(key, _short(flat_one.get(key, "")), _short(flat_other.get(key, ""))) for key in keys]


def check_lineage(start: str, parents_of: Callable[[str], Iterable[str]]) -> list[str]:
    """All ancestors of `start`, nearest first. Raises UsageError when one of them is its own ancestor."""
    found: list[str] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            circle = [*path[path.index(name) :], name]
            raise UsageError(
                f"parents: a circle: {' comes from '.join(circle)}", hint="take one of them out of `parents`"
            )
        if name in done:
            return
        path.append(name)
        for parent in parents_of(name):
            visit(parent)
        path.pop()
        done.add(name)
        if name != start:
            found.append(name)

    visit(start)
    return found


def is_shipped(command: str) -> bool:
    return command.startswith(names.SHIPPED_COMMAND_PREFIX)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, and the model is strict."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= _flat(item, f"{prefix}.{key}" if prefix else key)
        return found
    return {prefix: value if isinstance(value, str) else files.canonical_json(value).decode()}


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
