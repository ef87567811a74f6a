"""A spec file in YAML: the same run as in TOML, and one line for each mistake."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridgehead import names
from bridgehead.errors import UsageError
from run_control import spec_file, spec_text, yaml_file
from run_control.project import Project

PROJECT = f"""\
[project]
name = "watch"

[money]
provider = "colab"
gpu = "T4"
max_total = "20 CU"

[data.clips]
fingerprint = "{"ab" * 32}"

[stages.train]
command = "python train.py"
data = "clips"
max_hours = 3
"""
ARM = """\
version: 1
stage: train
tags: [arm]

config:
  layers: 4

resources:
  max_total: 3 CU
"""
SAME = 'version = 1\nstage = "train"\ntags = ["arm"]\n\n[config]\nlayers = 4\n\n[resources]\nmax_total = "3 CU"\n'


def _project(folder: Path, **files: str) -> Project:
    (folder / names.PROJECT_FILE).write_text(PROJECT)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return Project(folder)


def _id(project: Project, name: str) -> str:
    _, made = spec_file.line_of_file(project, project.root / name, keep=False)
    assert made.spec is not None and made.refusal is None
    return made.spec.id


# --- one content, one id ----------------------------------------------------------------------------------


def _toml(value: Any) -> str:
    """A value as TOML, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower()


_text = st.text(st.characters(exclude_categories=("C",)), max_size=12)
_words = st.sampled_from(
    [
        "no",
        "on",
        "1e-3",
        "0x1f",
        "2024-01-01",
        "null",
        "True",
        ".nan",
        "1_000",
        "12:30",
        "",
        "a: b",
        "\t",
        "a\n b\n",
        " \n",
    ]
)
_leaf = (
    st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False) | _text | _words
)
_inner = st.recursive(
    _leaf, lambda of: st.lists(of, max_size=3) | st.dictionaries(_text.filter(bool), of, max_size=3), max_leaves=6
)
_config = st.dictionaries(st.from_regex(r"[a-z][a-z_0-9]{0,9}", fullmatch=True), _inner, max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=_config,
    tags=st.lists(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), max_size=3),
    hours=st.floats(0.1, 100),
)
def test_one_content_is_one_spec_in_both_forms(
    config: dict[str, Any], tags: list[str], hours: float, tmp_path: Path
) -> None:
    said = {"version": 1, "stage": "train", "tags": tags, "config": config, "resources": {"max_hours": hours}}
    one, other, third = (tmp_path / f"x{suffix}" for suffix in (".toml", ".yaml", ".yml"))
    one.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in said.items()), encoding="utf-8")
    other.write_text(yaml_file.dump(said), encoding="utf-8")
    third.write_text(json.dumps(said), encoding="utf-8")  # JSON is YAML
    assert spec_file.read(one) == spec_file.read(other) == spec_file.read(third)
    assert repr(spec_file.read(one)) == repr(spec_file.read(other))  # 1 is not True and not 1.0 here


def test_one_content_has_one_id_in_both_forms(tmp_path: Path) -> None:
    project = _project(tmp_path, one__toml=SAME, one__yaml=ARM, two__YML=ARM.replace("4", "4.0"))
    assert _id(project, "one.toml") == _id(project, "one.yaml") == _id(project, "two.YML")


def test_what_a_person_writes_is_what_it_says(tmp_path: Path) -> None:
    config = (
        "config:\n  lr: 1e-3\n  big: 12345678901234567890\n  when: on-time\n  none: null\n  text: |\n    a\n    b\n"
    )
    path = tmp_path / "x.yaml"
    path.write_text(f"\ufeff# arm\n---\nstage: train\n{config}", encoding="utf-8")
    assert spec_file.read(path).config == {
        "lr": 0.001, "big": 12345678901234567890, "when": "on-time", "none": None, "text": "a\nb\n",
    }  # fmt: skip


def test_a_parent_may_be_in_the_other_form_and_a_circle_through_both_is_named(tmp_path: Path) -> None:
    project = _project(tmp_path, one__yaml=ARM, two__toml='stage = "train"\nparents = ["one.yaml"]\n')
    _, made = spec_file.line_of_file(project, tmp_path / "two.toml", keep=False)
    assert made.spec is not None and made.spec.parents == (f"spec:{_id(project, 'one.yaml')[:16]}",)
    (tmp_path / "one.yaml").write_text("stage: train\nparents:\n  - two.toml\n")
    with pytest.raises(UsageError, match=r"a circle: .*two\.toml comes from .*one\.yaml comes from .*two\.toml"):
        spec_file.line_of_file(project, tmp_path / "two.toml", keep=False)


# --- mistakes -------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MISTAKES = {  # what stands in place of what, the beginning of the message, a part of the next step
    "an unknown key": ("tags:", "tag:", "x.yaml:3: tag: unknown key", "did you mean tags?"),
    "an unknown key below": ("max_total", "max_totl", "x.yaml:9: resources.max_totl: unknown key", "max_total"),
    "a key twice": ("layers: 4", "layers: 4\n  layers: 5", "x.yaml:7: layers is given twice", "take one out"),
    "a newer version": ("version: 1", "version: 2", "x.yaml:1: version: 2", "newer Bridgehead"),
    "a version of text": ("version: 1", 'version: "1"', "x.yaml:1: version: '1'", "version: 1"),
    "true for a version": ("version: 1", "version: true", "x.yaml:1: version: True", "version: 1"),
    "an unknown stage": ("stage: train", "stage: trian", "x.yaml:2: stage: no stage 'trian'", "train"),
    "no stage": ("stage: train\n", "", "x.yaml:1: stage: missing", 'stage: "NAME"'),
    "a negative cap": ("3 CU", "-3 CU", "x.yaml:9: resources.max_total: .*negative", 'max_total: "3 CU"'),
    "a cap without a unit": ("3 CU", "5", "x.yaml:9: resources.max_total: an amount", "max_total:"),
    "a cap without a value": ("3 CU", "", "x.yaml:9: a key without a value", "take the key out"),
    "hours on a clock": ("max_total: 3 CU", "max_hours: 1:30", "x.yaml:9: 1:30: no finite", "quotes"),
    "nan": ("4", "NaN", "x.yaml:6: NaN: no finite", "quotes"),
    "nan of YAML": ("4", ".nan", "x.yaml:6: .nan: no finite", "quotes"),
    "inf": ("4", "-.inf", "x.yaml:6: -.inf: no finite", "quotes"),
    "inf by its exponent": ("4", "1e999", "x.yaml:6: 1e999: no finite", "quotes"),
    "inf by more": ("4", "1e9999", "x.yaml:6: 1e9999: no finite", "quotes"),
    "octal": ("4", "0o17", "x.yaml:6: 0o17: no finite decimal", "quotes"),
    "a leading zero": ("4", "010", "x.yaml:6: 010: no finite decimal", "quotes"),
    "hexadecimal": ("4", "0x1f", "x.yaml:6: 0x1f: no finite decimal", "quotes"),
    "an underscore": ("4", "1_000", "x.yaml:6: 1_000: no finite decimal", "quotes"),
    "a number that fits no float": ("4", "1" * 400, "x.yaml:6: 1+: no finite decimal", "quotes"),
    "a number without end": ("4", "1" * 5000, "x.yaml:6: 1+: no finite decimal", "quotes"),
    "a date": ("4", "2026-01-01", "x.yaml:6: 2026-01-01: a date is text", "quotes"),
    "yes": ("4", "yes", "x.yaml:6: yes: .*true or false to some readers", "else true or false"),
    "Off": ("4", "Off", "x.yaml:6: Off: .*true or false to some readers", "quotes"),
    "an anchor": ("layers: 4", "layers: &n 4\n  more: *n", "x.yaml:6: anchors are not used", "write it out"),
    "aliases without end": (ARM, f"stage: train\nconfig:\n  x: 1\n{BOMB}", "x.yaml:4: anchors are not used", "write"),
    "a merge": ("layers: 4", "<<: {a: 1}", "x.yaml:6: <<: nothing is merged here", "quotes"),
    "a tag": ("4", "!!python/name:os.system", "x.yaml:6: tags are not used here", "take it out"),
    "a tag of a table": ("layers: 4", "layers: !!set {a, b}", "x.yaml:6: tags are not used here", "take it out"),
    "a tag of quoted text": ("4", '!!int "4"', "x.yaml:6: tags are not used here", "take it out"),
    "a tab": ("  layers", "\tlayers", "x.yaml:6: not YAML: .*t' that", "blanks in place of the tab"),
    "no YAML": ("[arm]", "[arm", "x.yaml:5: not YAML", "key: value"),
    "two documents": ("config:", "---\nconfig:", "x.yaml:5: not YAML: .*another document", "key: value"),
    "a control character": ("4", "\x07", "x.yaml:6: not YAML: a character", "take it out"),
    "half a character": ("4", '"\\ud800"', "x.yaml:6: half a character", "write it out"),
    "too deep": ("4", "[" * 300 + "]" * 300, "x.yaml:6: nested more than 20 deep", "flatter"),
    "a list on top": (ARM, "# arms\n- stage: train\n", "x.yaml:2: a list; a spec file is a table", "stage:"),
    "a word on top": (ARM, "train\n", "x.yaml:1: one value; a spec file is a table", "stage:"),
    "a key that is no word": ("layers: 4", "? [a]\n  : 4", "x.yaml:6: a key has to be a word", "key: value"),
    "nothing": (ARM, "", "x.yaml:1: the file is empty", "stage:"),
    "only a comment": (ARM, "# later\n", "x.yaml:1: the file is empty", "stage:"),
    "a tag with a space": ("[arm]", "[a b]", "x.yaml:3: tags.0: 1 to 64 letters", 'tags: ["lp-ft"'),
    "a table for a list": ("[arm]", "{a: b}", "x.yaml:3: tags: ", "tags:"),
    "a parent that never was": ("[arm]", "[]\nparents: [nosuchrun]", "x.yaml:4: parents: no run", "no run yet"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_file_line_and_what_to_do(case: str, tmp_path: Path) -> None:
    old, new, message, hint = MISTAKES[case]
    assert old in ARM
    project = _project(tmp_path, x__yaml=ARM.replace(old, new, 1))
    with pytest.raises(UsageError, match=rf"\A{message}") as caught:
        spec_file.line_of_file(project, tmp_path / "x.yaml", keep=False)
    assert hint in caught.value.hint and "\n" not in caught.value.message


TOML_MISTAKES = {
    "too deep": (f"x = {'[' * 30}{']' * 30}", "x.toml:3: nested more than 20 deep"),
    "far too deep": (f"x = {'[' * 5000}{']' * 5000}", "x.toml:3: nested too deep"),
    "a number without end": (f"x = {'1' * 5000}", "x.toml:3: a number of thousands of digits"),
    "YAML": ("layers: 4", "x.toml:3: not TOML"),
}


@pytest.mark.parametrize("case", TOML_MISTAKES)
def test_what_toml_lets_through_has_its_line_too(case: str, tmp_path: Path) -> None:
    line, message = TOML_MISTAKES[case]
    (tmp_path / "x.toml").write_text(f'stage = "train"\n[config]\n{line}\n')
    with pytest.raises(UsageError, match=rf"\A{message}"):
        spec_file.read(tmp_path / "x.toml")


def test_a_file_that_is_not_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_bytes(b"stage: train\n# \xff\n")
    (tmp_path / "big.yaml").write_text("# " + "x" * spec_text.SIZE_MAX_BYTES)
    cases = (
        ("aa.yml", "no spec file", "a.yml"), ("a.yml", "a.yml:2: not UTF-8", "UTF-8"), ("", "is a folder", "a.yml"),
        ("big.yaml", "is over", "a file that the stage reads"),
    )  # fmt: skip
    for name, message, hint in cases:
        with pytest.raises(UsageError, match=message) as caught:
            spec_file.read(tmp_path / name)
        assert hint in caught.value.hint


def test_the_program_s_own_yaml_is_free_of_doubt() -> None:
    said = {
        "NAN": ["NaN", "inf", "0o17", "1e9999", "08", "<<", "-INF"],
        "a": ["no", "0x1f", "2024-01-01", ".nan", "1e-3", "010", "", "null", "<<"],
        "b": None,
        "c": 1e-3,
        "d": True,
    }
    read, _ = yaml_file.parse(yaml_file.dump(said), "x.yaml", doubts=False)
    assert read == said and math.isclose(read["c"], 1e-3)
