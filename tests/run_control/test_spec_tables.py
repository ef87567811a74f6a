"""[money], [data.NAME], the limits of a stage, and spec files: each mistake names file, line, key and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import ProjectError, UsageError
from run_control import launching, project_file, spec_file
from run_control.project import Project

GOOD = """\
[project]
name = "watch"

[money]
provider = "colab"
gpu = "T4"
max_total = "20 CU"

[data.clips]
fingerprint = "{sha}"
train = [1, 2]
evaluation = [9]

[stages.train]
command = "python train.py"
data = "clips"
max_hours = 3
tags = ["baseline"]
"""
FULL = GOOD.format(sha="ab" * 32)


def test_a_good_file_becomes_terms_and_limits(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text(FULL)
    whole = project_file.load_whole(tmp_path)
    terms = whole.money.terms(whole.limits["train"])
    assert (terms.provider, terms.gpu, terms.max_hours, str(terms.max_total)) == ("colab", "T4", 3.0, "20 CU")
    assert terms.stated and whole.data["clips"].fingerprint == "ab" * 32


MISTAKES = {
    "a misspelt key of money": ("provider =", "providr =", ":5: money.providr: unknown key", "provider"),
    "a misspelt key of data": ("fingerprint", "fingerprnt", ":10: data.clips.fingerprnt: unknown key", "fingerprint"),
    "a misspelt key of a stage": ("max_hours", "max_hour", ":17: stages.train.max_hour: unknown key", "max_hours"),
    "a cap without a unit": ('"20 CU"', "20", ":7: money.max_total: an amount and its unit", ""),
    "a cap in hours": ('"20 CU"', '"20 h"', ":7: money.max_total: 'h' is no unit", ""),
    "a negative cap": ('"20 CU"', '"-20 CU"', ":7: money.max_total: .*negative", ""),
    "negative hours": ("max_hours = 3", "max_hours = -3", ":17: stages.train.max_hours: should be greater", ""),
    "hours with a unit": ("max_hours = 3", 'max_hours = "3 USD"', ":17: stages.train.max_hours: hours as a number", ""),
    "nan hours": ("max_hours = 3", "max_hours = nan", ":17: stages.train.max_hours: ", ""),
    "two units": ('max_total = "20 CU"', 'max_total = "20 CU"\nbalance = "5 USD"', "2 units are never mixed", ""),
    "two units over two tables": (
        "max_hours = 3",
        'max_total = "3 USD"',
        ":17: stages.train: .*never mixed",
        "one unit",
    ),
    "an unknown table of data": ('data = "clips"', 'data = "clip"', ":16: stages.train.data: no ", "clips"),
    "half a hash": ("ab" * 32, "abab", ":10: data.clips.fingerprint: a SHA-256", ""),
    "an overlap": ("evaluation = [9]", "evaluation = [9, 2]", "train and evaluation overlap in 2", ""),
    "a path outside": ("train = [1, 2]", 'path = "../pool"', ":11: data.clips.path: a path inside", ""),
    "two places": ("train = [1, 2]", 'path = "a"\nvm_path = "/b"', "one of them", ""),
    "a place without a fingerprint": (f'fingerprint = "{"ab" * 32}"', 'vm_path = "/b"', "needs a fingerprint", ""),
    "a tag with a space": ('["baseline"]', '["base line"]', ":18: stages.train.tags", ""),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_file_line_and_key(case: str, tmp_path: Path) -> None:
    old, new, words, hint = MISTAKES[case]
    assert old in FULL
    (tmp_path / names.PROJECT_FILE).write_text(FULL.replace(old, new, 1))
    with pytest.raises(ProjectError, match=words) as caught:
        project_file.load(tmp_path)
    assert caught.value.message.startswith(names.PROJECT_FILE) and hint in caught.value.hint


# --- spec files -------------------------------------------------------------------------------------------


def _project(folder: Path, **arms: str) -> Project:
    (folder / names.PROJECT_FILE).write_text(FULL)
    for name, text in arms.items():
        (folder / f"{name}.toml").write_text(text)
    return Project(folder)


ARM = """\
version = 1
stage = "train"
tags = ["arm"]

[config]
layers = 4

[resources]
max_total = "3 CU"
"""


def test_a_spec_file_lies_over_its_stage(tmp_path: Path) -> None:
    project = _project(tmp_path, one=ARM)
    line, made = spec_file.line_of_file(project, tmp_path / "one.toml", keep=True)
    assert made.refusal is None and made.spec is not None
    assert made.spec.config == {"layers": 4} and made.spec.resources.max_total == "3 CU"
    assert made.spec.resources.max_hours == 3.0 and made.spec.tags == ("arm", "baseline")
    assert line == f"run:train spec={made.spec.id[:16]}"
    assert (tmp_path / names.SPECS_FOLDER / f"{made.spec.id[:16]}.json").is_file()
    again = launching.plan_line(project, "train", [f"spec={made.spec.id[:16]}"])
    assert again.refusal is None and again.spec == made.spec


FILE_MISTAKES = {
    "an unknown key": ("tags", "tag", "one.toml:3: tag: unknown key", "tags"),
    "an unknown key below": ("max_total", "max_totl", "one.toml:9: resources.max_totl: unknown key", "max_total"),
    "a newer version": ("version = 1", "version = 2", "one.toml:1: version: 2", "newer Bridgehead"),
    "a version of text": ("version = 1", 'version = "1"', "one.toml:1: version", "version = 1"),
    "an unknown stage": ('"train"', '"trian"', "one.toml:2: stage: no stage 'trian'", "train"),
    "a negative cap": ('"3 CU"', '"-3 CU"', "one.toml:9: resources.max_total: .*negative", "max_total ="),
    "another unit": ('"3 CU"', '"3 USD"', "never mixed", "one unit"),
    "no TOML": ("[config]", "[config", "one.toml:5: not TOML", "key = value"),
    "nan in the config": ("layers = 4", "n = nan", "one.toml:6: config.n: nan does not fit", "[config]"),
    "inf far inside": ("layers = 4", "a = 1\nn = [{b = inf}]", "one.toml:7: config.n.0.b: inf", "[config]"),
    "a date": ("layers = 4", "when = 2026-01-01", "one.toml:6: config.when: .*write a date as text", "[config]"),
    "a tag with a space": ('["arm"]', '["a b"]', "one.toml:3: tags.0: 1 to 64 letters", "tags = "),
    "an empty tag": ('["arm"]', '[""]', "one.toml:3: tags.0: 1 to 64 letters", "tags = "),
    "a tag that is no list": ('["arm"]', '"arm"', "one.toml:3: tags: ", "tags = "),
    "hours as text": (
        "max_total",
        'max_hours = "5h"\nmax_total',
        "one.toml:9: resources.max_hours: hours",
        "max_hours =",
    ),
    "a cap without a unit": ('"3 CU"', "5", "one.toml:9: resources.max_total: an amount", "max_total ="),
    "no end of hours": ('max_total = "3 CU"', "max_hours = inf", "one.toml:9: resources.max_hours: ", "max_hours ="),
    "a parent that never was": ('["arm"]', '[]\nparents = ["nosuchrun"]', "one.toml:4: parents: no run", "no run yet"),
    "a run to begin at that never was": ('["arm"]', '[]\nresume = "x"', "one.toml:4: resume: no run 'x'", "no run yet"),
    "no text": (ARM, " ", "one.toml:1: the file is empty", "stage ="),
    "too deep": ("layers = 4", "n = " + "[" * 3000 + "]" * 3000, "nested too deep", "brackets"),
}


@pytest.mark.parametrize("case", FILE_MISTAKES)
def test_a_mistake_in_a_spec_file_names_file_line_and_key(case: str, tmp_path: Path) -> None:
    old, new, words, hint = FILE_MISTAKES[case]
    project = _project(tmp_path, one=ARM.replace(old, new, 1))
    with pytest.raises(UsageError, match=words) as caught:
        _, made = spec_file.line_of_file(project, tmp_path / "one.toml", keep=False)
        raise made.refusal or AssertionError("it was taken")
    assert hint in caught.value.hint


def test_a_parent_that_is_a_file_is_there_by_the_id_of_its_spec(tmp_path: Path) -> None:
    child = 'stage = "train"\nparents = ["one.toml"]\n'
    project = _project(tmp_path, one=ARM, two=child)
    _, parent = spec_file.line_of_file(project, tmp_path / "one.toml", keep=False)
    _, made = spec_file.line_of_file(project, tmp_path / "two.toml", keep=False)
    assert made.spec is not None and parent.spec is not None
    assert made.spec.parents == (f"spec:{parent.spec.id[:16]}",)


def test_a_circle_of_spec_files_is_named(tmp_path: Path) -> None:
    arms = {name: f'stage = "train"\nparents = ["{other}.toml"]\n' for name, other in (("a", "b"), ("b", "a"))}
    project = _project(tmp_path, **arms)
    with pytest.raises(UsageError, match="a circle: .*a.toml comes from .*b.toml comes from .*a.toml"):
        spec_file.line_of_file(project, tmp_path / "a.toml", keep=False)


def test_a_file_that_is_not_there_or_no_text_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    cases = (("xx.toml", "no spec file", "x.toml"), ("x.toml", "not UTF-8", "UTF-8"), ("", "is a folder", "x.toml"))
    for name, words, hint in cases:
        with pytest.raises(UsageError, match=words) as caught:
            spec_file.read(tmp_path / name)
        assert hint in caught.value.hint


def test_the_nan_of_a_stages_config_is_told_with_its_own_line(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text(FULL + "[stages.train.config]\na = 1\nn = nan\n")
    with pytest.raises(ProjectError, match=r":21: stages.train.config.n: nan does not fit"):
        project_file.load(tmp_path)
