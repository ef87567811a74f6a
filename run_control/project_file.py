"""bridgehead.toml, read and checked. Each mistake names file, line and key, what is allowed, and the nearest name."""

from __future__ import annotations

import graphlib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridge.project import LoadProject, PinRun, ProjectView
from bridgehead import names
from bridgehead.errors import ProjectError, UsageError
from bridgehead.queue_lines import STAGE_NAME, nearest
from bridgehead.records import Needs, StageSpec, StoreSpec, VmRules
from run_control import config_keys, notify_table, plain_file, toml_lines, tunnel_table
from run_control.command_words import split_words
from run_control.notify_spec import NotifySpec
from run_control.notify_table import NotifyTable
from run_control.spec_tables import DataTable, MoneyTable, StageLimits, places, plain_config
from run_control.tracking.spec import TrackingSpec
from run_control.tracking.table import TrackingTable
from run_control.tunnel_table import TunnelTable

SHELL_STAGE = "sh"  # the stage name that sh: lines run under
_PROJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SIZE_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Whole:
    """All of the file: what the bridge has to know, and what is run_control's own."""

    view: ProjectView
    money: MoneyTable = field(default_factory=MoneyTable)
    data: dict[str, DataTable] = field(default_factory=dict)
    limits: dict[str, StageLimits] = field(default_factory=dict)  # by stage


def load(root: Path) -> ProjectView:
    """Read <root>/bridgehead.toml. Raises ProjectError."""
    return load_whole(root).view


def load_whole(root: Path) -> Whole:
    """The same with what runs may cost and what data they are of. Raises ProjectError."""
    path = root / names.PROJECT_FILE
    text, parsed = _parsed(path)
    _check_notify(path.name, text, parsed.notify.spec(root), root)
    _check_vm(path.name, text, parsed.vm)
    _check_stages(path.name, text, parsed.stages)
    _check_configs(path.name, text, parsed.stages)
    _check_limits(path.name, text, parsed)
    tunnel = parsed.tunnel.spec(root)
    unsafe = tunnel_table.unsafe_token(tunnel, root)
    if unsafe:
        line = toml_lines.line_of(text, ["tunnel", "token_file"])
        raise ProjectError(f"{path.name}:{line}: tunnel.token_file: {unsafe}")
    limits = {
        name: StageLimits(**stage.model_dump(include=set(StageLimits.model_fields)))
        for name, stage in parsed.stages.items()
    }
    view = ProjectView(
        name=parsed.project.name,
        stages={name: stage.spec(name) for name, stage in parsed.stages.items()},
        payload_include=parsed.payload.include,
        payload_exclude=parsed.payload.exclude,
        down_mb_s=parsed.payload.down_mb_s,
        requirements=parsed.vm.requirements,
        store=StoreSpec(**parsed.store.model_dump(exclude={"kind", "laptop_path"}), kind=str(parsed.store.kind)),
        laptop_store=parsed.store.laptop_path,
        vm=parsed.vm.rules(parsed.project),
        tunnel=tunnel,
        allow_sh=parsed.project.allow_sh,
        prepare_pin=lambda shipped_sha256: _pinner(root, whole, shipped_sha256),
    )
    whole = Whole(view, parsed.money, parsed.data, limits)
    return whole


def _pinner(root: Path, whole: Whole, shipped_sha256: str) -> PinRun:
    from run_control import pinning  # it needs this module

    return pinning.prepare(root, whole, shipped_sha256)


def notify(root: Path) -> NotifySpec:
    """[notify] of <root>/bridgehead.toml. Raises ProjectError."""
    path = root / names.PROJECT_FILE
    text, parsed = _parsed(path)
    spec = parsed.notify.spec(root)
    _check_notify(path.name, text, spec, root)
    return spec


def tracking(root: Path) -> tuple[str, TrackingSpec]:
    """The project's name, and [tracking] of <root>/bridgehead.toml. Raises ProjectError."""
    _, parsed = _parsed(root / names.PROJECT_FILE)
    return parsed.project.name, parsed.tracking.spec(root, parsed.project.name)


def loader(root: Path) -> LoadProject:
    """What the bridge calls whenever it needs the project: the file, read anew."""
    return lambda: load(root)


def _project_name(value: str) -> str:
    if not _PROJECT_NAME.match(value):
        raise ValueError("1 to 64 letters, digits and ._- are allowed; it names a folder in the durable store")
    return value


def _glob(value: str) -> str:
    if not value.strip() or value.startswith("/") or "\\" in value or ".." in value.split("/"):
        raise ValueError('a glob inside the project folder, such as "*.py" or "src/**"')
    return value


def _command(value: str) -> str:
    if not split_words(value):
        raise ValueError('a command line, such as "python train.py", or "bridgehead:pretrain"')
    if value.startswith(names.SHIPPED_COMMAND_PREFIX):
        shipped = value.removeprefix(names.SHIPPED_COMMAND_PREFIX)
        if shipped not in names.SHIPPED_STAGES:
            raise ValueError(f"no shipped stage {shipped!r}; {nearest(shipped, names.SHIPPED_STAGES)}")
    return value


def _requirement(value: str) -> str:
    if not value.strip() or value.lstrip().startswith("-") or "\n" in value:
        raise ValueError('one requirement, such as "seglearn==1.2.5"; pip options are not allowed here')
    return value


def _store_kind(value: str) -> str:
    if value not in set(names.StoreKind):
        raise ValueError(f"no store of kind {value!r}; {nearest(value, names.StoreKind)}")
    return value


def _store_path(value: str) -> str:
    if ".." in value.split("/") or "\\" in value or not value.isprintable():
        raise ValueError("a path with / and without ..")
    return value


def _laptop_path(value: str) -> str:
    if value and not (value.isprintable() and (value.startswith("~") or Path(value).is_absolute())):
        raise ValueError("the store's folder as this laptop sees it: an absolute path, or one that begins with ~")
    return value


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:
        loopback = False
    if value and not loopback and not value.startswith("https://"):
        raise ValueError("an https:// address")
    return value.rstrip("/")


def _upload_limit(value: float) -> float:
    if value != 0 and not 0.1 <= value <= 100_000:
        raise ValueError("MB a second, at least 0.1; 0 is no limit")
    return value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Project(_Table):
    name: Annotated[str, AfterValidator(_project_name)]
    allow_sh: bool = True
    log_max_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 1024


class _Payload(_Table):
    include: list[Annotated[str, AfterValidator(_glob)]] = Field(default_factory=list)
    exclude: list[Annotated[str, AfterValidator(_glob)]] = Field(default_factory=list)
    down_mb_s: Annotated[float, Field(ge=0, le=100_000)] = 0.0


class _Vm(_Table):
    requirements: list[Annotated[str, AfterValidator(_requirement)]] = Field(default_factory=list)
    lost_after_s: Annotated[float, Field(ge=5, le=86_400)] = 60.0
    cap_h: Annotated[float, Field(gt=0, le=10_000)] | None = None
    save_before_cap_s: Annotated[float, Field(ge=10, le=36_000)] = 1200.0
    release_after_s: Annotated[float, Field(ge=10, le=864_000)] | None = None
    upload_mb_s: Annotated[float, AfterValidator(_upload_limit)] = 0.0

    def rules(self, project: _Project) -> VmRules:
        return VmRules(
            lost_after_s=self.lost_after_s,
            cap_h=self.cap_h or 0.0,
            save_before_cap_s=self.save_before_cap_s,
            release_after_s=self.release_after_s or 0.0,
            upload_mb_s=self.upload_mb_s,
            log_max_mb=project.log_max_mb,
        )


class _Store(_Table):
    kind: Annotated[str, AfterValidator(_store_kind)] = names.StoreKind.MOUNT
    path: Annotated[str, AfterValidator(_store_path)] = ""
    laptop_path: Annotated[str, AfterValidator(_laptop_path)] = ""
    bucket: str = ""
    prefix: Annotated[str, AfterValidator(_store_path)] = ""
    endpoint: Annotated[str, AfterValidator(_endpoint)] = ""
    region: str = ""
    confirm: bool = True
    quota_gb: Annotated[float, Field(ge=0, le=1_000_000)] = 0.0
    upload_mb_s: Annotated[float, Field(ge=0, le=100_000)] = 0.0

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.kind == names.StoreKind.S3 and not self.bucket:
            raise ValueError('kind = "s3" needs a bucket')
        if self.kind == names.StoreKind.FOLDER and not self.path:
            raise ValueError('kind = "folder" needs a path on a disk that outlives the VM')
        relative = bool(self.path) and not self.path.startswith("/")
        if self.kind == names.StoreKind.FOLDER and relative:
            raise ValueError('kind = "folder" needs an absolute path on a disk that outlives the VM')
        if self.kind == names.StoreKind.MOUNT and relative:
            example = f"/content/drive/MyDrive/{self.path}"
            raise ValueError(f'kind = "mount" needs an absolute path on the VM, such as {example}, or none')
        return self


class _Stage(StageLimits):
    command: Annotated[str, AfterValidator(_command)]
    after: list[str] = Field(default_factory=list)
    gpu_memory_gb: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    cpus: Annotated[float, Field(ge=0, le=4096)] = 1.0
    memory_gb: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    checkpoint_every_epochs: Annotated[int, Field(ge=1)] = 5
    checkpoint_every_steps: Annotated[int, Field(ge=1)] | None = None
    checkpoint_every_s: Annotated[float, Field(ge=1)] | None = None
    keep_checkpoints: Annotated[int, Field(ge=2, le=1000)] = 3
    stop_grace_s: Annotated[float, Field(ge=0, le=3600)] = 60.0
    retries: Annotated[int, Field(ge=0, le=100)] = 2
    config: Annotated[dict[str, Any], AfterValidator(plain_config)] = Field(default_factory=dict)

    def spec(self, name: str) -> StageSpec:
        return StageSpec(
            name=name,
            command=self.command,
            after=self.after,
            needs=Needs(gpu_memory_gb=self.gpu_memory_gb, cpus=self.cpus, memory_gb=self.memory_gb),
            config=self.config,
            checkpoint_every_epochs=self.checkpoint_every_epochs,
            checkpoint_every_steps=self.checkpoint_every_steps or 0,
            checkpoint_every_s=self.checkpoint_every_s or 0.0,
            keep_checkpoints=self.keep_checkpoints,
            stop_grace_s=self.stop_grace_s,
            retries=self.retries,
        )


class _File(_Table):
    project: _Project
    payload: _Payload = Field(default_factory=_Payload)
    vm: _Vm = Field(default_factory=_Vm)
    store: _Store = Field(default_factory=_Store)
    tunnel: TunnelTable = Field(default_factory=TunnelTable)
    money: MoneyTable = Field(default_factory=MoneyTable)
    data: dict[str, DataTable] = Field(default_factory=dict)
    notify: NotifyTable = Field(default_factory=NotifyTable)
    tracking: TrackingTable = Field(default_factory=TrackingTable)
    stages: dict[str, _Stage] = Field(default_factory=dict)


def _parsed(path: Path) -> tuple[str, _File]:
    """The file's text, and what it says. Raises ProjectError."""
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProjectError(f"{path.name}:{toml_lines.syntax_line(error)}: not TOML: {error}") from None
    try:
        return text, _File.model_validate(data)
    except ValidationError as error:
        raise _mistake(path.name, text, error) from None


def _read(path: Path) -> str:
    try:
        if plain_file.size_bytes(path) > _SIZE_MAX_BYTES:
            raise ProjectError(f"{path.name} is over {_SIZE_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ProjectError(f"no {path.name} in {path.parent}", hint="bridgehead init makes one") from None
    except UnicodeDecodeError as error:
        raise ProjectError(f"{path.name} is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from None
    except OSError as error:
        raise ProjectError(f"{path.name} can't be read: {error.strerror}") from None


def _mistake(file_name: str, text: str, error: ValidationError) -> ProjectError:
    """The first mistake in the order of the file, in words."""
    found = []
    for item in error.errors(include_url=False, include_context=True, include_input=False):
        keys = places(dict(item))
        found.append((toml_lines.line_of(text, keys), keys, item))
    # A misspelt key comes before the missing one that it was meant to be.
    line, keys, item = min(found, key=lambda entry: (entry[2]["type"] == "missing", entry[0]))
    key = ".".join(keys)
    more = f" ({len(found) - 1} more after this one)" if len(found) > 1 else ""
    message, hint = _words(keys, dict(item))
    return ProjectError(f"{file_name}:{line}: {key}: {message}{more}", hint=hint)


def _words(keys: list[str], item: dict[str, Any]) -> tuple[str, str]:
    kind = item["type"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(keys[:-1])
        guess = nearest(keys[-1], allowed)
        listed = f"allowed: {', '.join(allowed)}"
        return "unknown key", listed if guess.startswith("known") else f"{guess} {listed}"
    if kind == "missing":
        return "missing", _EXAMPLES.get(keys[-1], f"add {keys[-1]}")
    if kind in ("model_type", "dict_type"):
        return "should be a table", f"[{'.'.join(keys)}] with its keys below, or {keys[-1]} = {{ … }}"
    text = str(item["msg"]).removeprefix("Value error, ")
    return text.replace("Input should be", "should be"), ""


_EXAMPLES = {
    "project": '[project] with name = "my-project"',
    "name": 'name = "my-project"',
    "command": 'command = "python train.py"',
}


def _allowed_keys(table: list[str]) -> list[str]:
    models: dict[str, type[BaseModel]] = {
        "project": _Project,
        "payload": _Payload,
        "vm": _Vm,
        "store": _Store,
        "tunnel": TunnelTable,
        "money": MoneyTable,
        "data": DataTable,
        "notify": NotifyTable,
        "tracking": TrackingTable,
        "stages": _Stage,
    }
    model = models.get(table[0], _File) if table else _File
    return list(model.model_fields)


def _check_vm(file_name: str, text: str, vm: _Vm) -> None:
    """A VM that is near its end from its first second would start no run and give itself away at once."""
    if vm.cap_h is None or vm.save_before_cap_s < vm.cap_h * 3600:
        return
    given = "save_before_cap_s" in vm.model_fields_set
    cap_s, line = vm.cap_h * 3600, toml_lines.line_of(text, ["vm", "save_before_cap_s" if given else "cap_h"])
    raise ProjectError(
        f"{file_name}:{line}: vm.{'save_before_cap_s' if given else 'cap_h'}: a VM that lives {cap_s:g} s can't save"
        f" {vm.save_before_cap_s:g} s before its end{'' if given else ' (the default of save_before_cap_s)'}",
        hint=f"a larger cap_h (hours), or save_before_cap_s of at most half of that life: {cap_s / 2:g}",
    )


def _check_limits(file_name: str, text: str, parsed: _File) -> None:
    """Units are one for a stage and the project, and a stage's data is a table that is there."""
    for name, stage in parsed.stages.items():
        if stage.data and stage.data not in parsed.data:
            line = toml_lines.line_of(text, ["stages", name, "data"])
            raise ProjectError(
                f"{file_name}:{line}: stages.{name}.data: no [data.{stage.data}]", hint=nearest(stage.data, parsed.data)
            )
        try:
            parsed.money.terms(stage)
        except UsageError as error:
            line = toml_lines.line_of(text, ["stages", name, "max_total" if stage.max_total else "max_price_per_hour"])
            raise ProjectError(f"{file_name}:{line}: stages.{name}: {error.message}", hint=error.hint) from None


def _check_notify(file_name: str, text: str, spec: NotifySpec, root: Path) -> None:
    key, why = notify_table.unsafe_file(spec, root)
    if key:
        raise ProjectError(f"{file_name}:{toml_lines.line_of(text, ['notify', key])}: notify.{key}: {why}")


def _check_stages(file_name: str, text: str, stages: dict[str, _Stage]) -> None:
    for name, stage in stages.items():
        where = f"{file_name}:{toml_lines.line_of(text, ['stages', name])}: stages.{name}"
        if not STAGE_NAME.match(name) or name == SHELL_STAGE:
            raise ProjectError(
                f"{where}: not a stage name",
                hint=f"a letter, then letters, digits, _ and -, all lower-case, up to 64; not {SHELL_STAGE!r}",
            )
        for other in stage.after:
            if other not in stages or other == name:
                line = toml_lines.line_of(text, ["stages", name, "after"])
                why = "a stage can't come after itself" if other == name else f"no stage {other!r}"
                raise ProjectError(
                    f"{file_name}:{line}: stages.{name}.after: {why}", hint=nearest(other, set(stages) - {name})
                )
    try:
        graphlib.TopologicalSorter({name: stage.after for name, stage in stages.items()}).prepare()
    except graphlib.CycleError as error:
        circle = list(reversed(error.args[1]))  # each comes after the next one
        line = toml_lines.line_of(text, ["stages", circle[0], "after"])
        raise ProjectError(
            f"{file_name}:{line}: stages.{circle[0]}.after: a circle: {' after '.join(circle)}",
            hint="take one of them out of an `after`",
        ) from None


def _check_configs(file_name: str, text: str, stages: dict[str, _Stage]) -> None:
    """Of the shipped stages, what the VM would refuse only once the run starts there."""
    for name, stage in stages.items():
        shipped = stage.command.removeprefix(names.SHIPPED_COMMAND_PREFIX)
        wrong = config_keys.misspelt(stage.command, stage.config)
        if wrong is not None:
            key, why, hint = wrong[0], f"unknown key of the shipped stage {shipped}", wrong[1]
        else:
            mistyped = config_keys.mistyped(stage.command, stage.config)
            if mistyped is None:
                continue
            key, why, hint = *mistyped, config_keys.OF_THAT_KIND
        line = toml_lines.line_of(text, ["stages", name, "config", key])
        raise ProjectError(f"{file_name}:{line}: stages.{name}.config.{key}: {why}", hint=hint)
