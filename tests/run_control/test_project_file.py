"""bridgehead.toml: what it says, and that each mistake names file, line, key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import ProjectError
from run_control import project, project_file

GOOD = """\
[project]
name = "watch"

[payload]
include = ["*.py"]

[vm]
requirements = ["seglearn==1.2.5"]

[stages.pretrain]
command = "bridgehead:pretrain"
cpus = 2
gpu_memory_gb = 1.5

[stages.pretrain.config]
epochs = 40

[stages.finetune]
command = "python tune.py --fast"
after = ["pretrain"]
"""


def _load(folder: Path, text: str) -> str:
    """The message and hint of the mistake."""
    (folder / names.PROJECT_FILE).write_text(text)
    with pytest.raises(ProjectError) as caught:
        project_file.load(folder)
    return f"{caught.value.message} | {caught.value.hint}"


def test_a_good_file_becomes_specs(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text(GOOD)
    view = project_file.load(tmp_path)
    assert (view.name, view.payload_include, view.requirements) == ("watch", ["*.py"], ["seglearn==1.2.5"])
    spec = view.stages["pretrain"]
    assert (spec.needs.cpus, spec.needs.gpu_memory_gb, spec.config) == (2, 1.5, {"epochs": 40})
    assert view.down_mb_s == 0
    assert view.stages["finetune"].after == ["pretrain"]


def test_a_bom_and_crlf_are_read(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert project_file.load(tmp_path).name == "watch"


def test_the_config_of_an_own_command_may_have_any_key(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text(GOOD + "[stages.finetune.config]\nsede = 1\n")
    assert project_file.load(tmp_path).stages["finetune"].config == {"sede": 1}


MISTAKES = {
    "a misspelt key": ("cpus = 2", "cpuss = 2", ":12: stages.pretrain.cpuss: unknown key | did you mean cpus?"),
    "a misspelt table": ("[payload]", "[payloads]", ":4: payloads: unknown key | did you mean payload?"),
    "a negative number": ("cpus = 2", "cpus = -1", ":12: stages.pretrain.cpus: should be greater than or equal to 0"),
    "not a number": ("cpus = 2", 'cpus = "2"', ":12: stages.pretrain.cpus: should be a valid number"),
    "a list of tables": (
        "[stages.finetune]",
        "[[stages.finetune]]",
        ":18: stages.finetune: should be a table | [stages.f",
    ),
    "nan": ("cpus = 2", "cpus = nan", ":12: stages.pretrain.cpus: should be a finite number"),
    "interval 0": (
        "cpus = 2",
        "checkpoint_every_epochs = 0",
        ":12: stages.pretrain.checkpoint_every_epochs: should be",
    ),
    "an unknown stage": ('after = ["pretrain"]', 'after = ["pretrian"]', ":20: stages.finetune.after: no stage"),
    "after itself": ('after = ["pretrain"]', 'after = ["finetune"]', "a stage can't come after itself"),
    "no command": ('command = "bridgehead:pretrain"\n', "", ":10: stages.pretrain.command: missing"),
    "an empty command": ('"python tune.py --fast"', '" "', ":19: stages.finetune.command: a command line"),
    "unbalanced quotes": ("python tune.py --fast", "python 'tune.py", ":19: stages.finetune.command: a command line"),
    "an unknown shipped stage": ("bridgehead:pretrain", "bridgehead:pretrian", "did you mean pretrain?"),
    "a bad stage name": ("[stages.finetune]", "[stages.Fine]", ":18: stages.Fine: not a stage name"),
    "the name of sh runs": ("[stages.finetune]", "[stages.sh]", ":18: stages.sh: not a stage name"),
    "no project name": ('name = "watch"', "", ":1: project.name: missing"),
    "a bad project name": ('"watch"', '"../watch"', ":2: project.name: 1 to 64 letters"),
    "a payload outside": ('["*.py"]', '["../*"]', ":5: payload.include.0: a glob inside the project folder"),
    "a limit below none": ('include = ["*.py"]', "down_mb_s = -1", ":5: payload.down_mb_s: "),
    "a pip option": ('"seglearn==1.2.5"', '"--pre torch"', ":8: vm.requirements.0: one requirement"),
    "a date in config": (
        "epochs = 40",
        "epochs = 1979-05-27",
        ":16: stages.pretrain.config.epochs: 1979-05-27 does not fit",
    ),
    "a misspelt key of a shipped stage's config": (
        "epochs = 40",
        "epochs = 40\nsede = 1",
        ":17: stages.pretrain.config.sede: unknown key of the shipped stage pretrain | did you mean seed?",
    ),
    "the same in one line": (
        "epochs = 40\n",
        "[stages.gate]\ncommand = 'bridgehead:gate'\nconfig = { min_efect = 0.1 }\n",
        ":18: stages.gate.config.min_efect: unknown key of the shipped stage gate | did you mean min_effect?",
    ),
    "not TOML": ("cpus = 2", "cpus = ", ":12: not TOML"),
    "a misspelt table of tables": (
        "[stages.finetune]",
        "[stage.finetune]",
        ":18: stage: unknown key | did you mean st",
    ),
    "an interval of no time": ("cpus = 2", "checkpoint_every_s = 0", ":12: stages.pretrain.checkpoint_every_s: should"),
    "an interval of no steps": (
        "cpus = 2",
        "checkpoint_every_steps = 0",
        "stages.pretrain.checkpoint_every_steps: should",
    ),
    "an unknown store": (
        "[vm]",
        '[store]\nkind = "s33"\n[vm]',
        ":8: store.kind: no store of kind 's33'; did you mean s3?",
    ),
    "s3 without a bucket": ("[vm]", '[store]\nkind = "s3"\n[vm]', ':7: store: kind = "s3" needs a bucket'),
    "a folder without a path": ("[vm]", '[store]\nkind = "folder"\n[vm]', ':7: store: kind = "folder" needs a path'),
    "a folder below nothing": (
        "[vm]",
        '[store]\nkind = "folder"\npath = "disk"\n[vm]',
        ':7: store: kind = "folder" needs an absolute path on a disk that outlives the VM',
    ),
    "a mount below nothing": (
        "[vm]",
        '[store]\npath = "my/runs"\n[vm]',
        ':7: store: kind = "mount" needs an absolute path on the VM, such as /content/drive/MyDrive/my/runs, or none',
    ),
    "a store over plain http": (
        "[vm]",
        '[store]\nendpoint = "http://s3.example.org"\n[vm]',
        "endpoint: an https:// address",
    ),
    "a store that only begins like loopback": (
        "[vm]",
        '[store]\nendpoint = "http://127.0.0.1.example.org"\n[vm]',
        "endpoint: an https:// address",
    ),
    "a store outside": ("[vm]", '[store]\npath = "../x"\n[vm]', ":8: store.path: a path with / and without .."),
    "a life of no time": ("[vm]", "[vm]\ncap_h = 0", ":8: vm.cap_h: should be greater than 0"),
    "a life shorter than its end": (
        "[vm]",
        "[vm]\ncap_h = 1\nsave_before_cap_s = 3600",
        ":9: vm.save_before_cap_s: a VM that lives 3600 s can't save 3600 s before its end | a larger cap_h (hours), or"
        " save_before_cap_s of at most half of that life: 1800",
    ),
    "a life shorter than the default of its end": (
        "[vm]",
        "[vm]\ncap_h = 0.25",
        ":8: vm.cap_h: a VM that lives 900 s can't save 1200 s before its end (the default of save_before_cap_s)",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_file_line_key_and_what_is_allowed(tmp_path: Path, case: str) -> None:
    old, new, expected = MISTAKES[case]
    told = _load(tmp_path, GOOD.replace(old, new))
    assert told.startswith(names.PROJECT_FILE + ":")
    assert expected in told


def test_the_nearest_stage_is_offered(tmp_path: Path) -> None:
    assert "did you mean pretrain?" in _load(tmp_path, GOOD.replace('["pretrain"]', '["pretrian"]'))


def test_a_circle_is_shown(tmp_path: Path) -> None:
    told = _load(tmp_path, GOOD.replace("cpus = 2", 'after = ["finetune"]'))
    assert "a circle:" in told and "pretrain after finetune" in told


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    assert "(1 more after this one)" in _load(tmp_path, GOOD.replace("cpus = 2", "cpus = -1\nmemory_gb = -1"))


@pytest.mark.parametrize("data", [b"\xff\xfe", b'[project]\nname = "\xe9"\n'])
def test_a_file_that_is_not_utf8_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / names.PROJECT_FILE).write_bytes(data)
    with pytest.raises(ProjectError, match="not UTF-8"):
        project_file.load(tmp_path)


def test_the_project_is_found_from_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text(GOOD)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert project.find(below).root == tmp_path


def test_without_a_project_the_hint_is_init(tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as caught:
        project.find(tmp_path)
    assert caught.value.exit_code == 2 and "bridgehead init" in caught.value.hint
