"""Relative paths that cross the wire."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead.errors import UsageError
from bridgehead.paths import check_relative, inside, is_run_id, open_inside

BAD = [
    "", ".", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "a\\b", "..\\x", "C:/x", "a:b", "nul", "NUL.txt",
    "con", "aux.py", "COM1", "a/lpt9.log", "a\0b", "a b", ".hidden", "-rf", "a.", "é", "a/\n", "x" * 129, "x/" * 600,
]  # fmt: skip


@pytest.mark.parametrize("path", BAD, ids=lambda path: repr(path[:12]))
def test_an_unsafe_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        check_relative(path)


@pytest.mark.parametrize("path", ["a", "a/b.py", "__init__.py", "x-1/y_2/z.tar.gz", "console.log"])
def test_a_safe_path_is_returned_as_it_is(path: str) -> None:
    assert check_relative(path) == path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("epoch=3, step=100.ckpt", "not a safe name in a path: 'epoch=3, step=100.ckpt' holds ' ' ','"),
        ("fsdp_0/.metadata", "not a safe name in a path: '.metadata' in 'fsdp_0/.metadata' begins with '.'"),
        ("last.", "not a safe name in a path: 'last.' ends with a dot"),
        ("a//b", "not a safe name in a path: '' in 'a//b' is empty"),
        ("runs/aux.pt", "a name that Windows reserves: 'aux.pt' in 'runs/aux.pt'"),
    ],
)
def test_what_is_wrong_with_a_name_and_the_rule_are_told(path: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_relative(path)
    assert caught.value.message == why and "letters, digits and ._+=@-" in caught.value.hint


@pytest.mark.parametrize(
    "path",
    [
        "epoch=3-step=100.ckpt",
        "model-00001-of-00002.safetensors",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "ckpt-1.data-00000-of-00001",
        "best_model_3_val_loss=-0.25.pt",
        "__0_0.distcp",
        "1_Pooling/config.json",
        "_CHECKPOINT_METADATA",
        "megatron--val_loss=2.44-step=300-last.ckpt",
    ],
)
def test_names_that_frameworks_give_their_checkpoints_are_taken(path: str) -> None:
    assert check_relative(path) == path


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_is_accepted_stays_below_the_root(text: str) -> None:
    try:
        check_relative(text)
    except UsageError:
        return
    assert os.path.normpath("/root/" + text) == "/root/" + text


def test_links_on_the_way_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "real" / "f").symlink_to(outside / "f")
    for path in ("link/f", "real/f"):
        with pytest.raises(UsageError):
            inside(root, path)
        with pytest.raises(OSError):
            os.close(open_inside(root, path))


def test_a_plain_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"hello")
    fd = open_inside(tmp_path, "a/f")
    try:
        assert os.read(fd, 10) == b"hello"
    finally:
        os.close(fd)


def test_run_ids() -> None:
    assert is_run_id("pretrain-0001-3fa9c1")
    for bad in (
        "pretrain",
        "pretrain-1-3fa9c1",
        "../pretrain-0001-3fa9c1",
        "pretrain-0001-3FA9C1",
        "pretrain-0001-3fa9c1/x",
    ):
        assert not is_run_id(bad)
