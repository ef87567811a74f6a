"""Event files that we write by hand, judged by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from run_control.tracking.event_file import crc32c
from run_control.tracking.messages import Answer, Message
from run_control.tracking.tensorboard_sink import FILE, TensorBoardSink

HEAD = {"run_id": "r-1", "stage": "pretrain", "created": 1e9, "config": {"lr": 0.1, "note": "a|b\nc"}, "tags": ["x"]}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """What TensorBoard finds in the folder of r-1."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")

    def look() -> Any:
        found = reader.EventAccumulator(str(tmp_path / "r-1"), size_guidance={reader.SCALARS: 0, reader.TENSORS: 0})
        return found.Reload()

    return look


def _tell(sink: TensorBoardSink, place: dict[str, Any], *steps: int, **more: Any) -> Answer:
    points = [(step, 0, 1e9 + step, {"loss": 1.0 / (step + 1), "val/accuracy": 0.5}) for step in steps]
    return sink.tell(Message("r-1", HEAD, place, **{"head_is_new": not place, "points": points, **more}))


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(b"") == 0 and crc32c(bytes(32)) == 0x8A9136AA


def test_scalars_arrive_with_step_time_and_value(tmp_path: Path, read: Any) -> None:
    _tell(TensorBoardSink({"folder": str(tmp_path)}), {}, 0, 1, 300)
    found = read()
    assert [(event.step, event.wall_time) for event in found.Scalars("loss")] == [(s, 1e9 + s) for s in (0, 1, 300)]
    assert [event.value for event in found.Scalars("loss")] == pytest.approx([1.0, 0.5, 1 / 301])
    assert sorted(found.Tags()["scalars"]) == ["loss", "val/accuracy"]


def test_config_and_end_are_texts(tmp_path: Path, read: Any) -> None:
    end = {"state": "failed", "failure_class": "gpu_oom", "cost": 1.5, "summary": {"loss": 0.5}}
    _tell(TensorBoardSink({"folder": str(tmp_path)}), {}, 1, end=end)
    found = read()
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert "| config.lr | 0.1 |" in texts["run"] and r"a\|b c" in texts["run"]
    assert "| failure_class | gpu_oom |" in texts["end"] and "| summary.loss | 0.5 |" in texts["end"]
    plugin = found.SummaryMetadata("run").plugin_data
    assert plugin.plugin_name == "text"


def test_another_process_goes_on_in_the_same_file(tmp_path: Path, read: Any) -> None:
    place = _tell(TensorBoardSink({"folder": str(tmp_path)}), {}, 1, 2).place
    _tell(TensorBoardSink({"folder": str(tmp_path)}), place, 3)
    assert [event.step for event in read().Scalars("loss")] == [1, 2, 3]
    assert [path.name for path in (tmp_path / "r-1").iterdir()] == [FILE]


@pytest.mark.parametrize("cut", [0, 7])
def test_a_message_that_was_written_and_not_noted_is_there_once(tmp_path: Path, read: Any, cut: int) -> None:
    """With `cut` bytes of it missing, as a killed writer leaves them."""
    sink = TensorBoardSink({"folder": str(tmp_path)})
    place = _tell(sink, {}, 1, 2).place
    _tell(sink, place, 3, 4)
    path = tmp_path / "r-1" / FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    _tell(TensorBoardSink({"folder": str(tmp_path)}), place, 3, 4)
    assert [event.step for event in read().Scalars("loss")] == [1, 2, 3, 4]


def test_a_file_that_somebody_removed_is_told_anew(tmp_path: Path) -> None:
    sink = TensorBoardSink({"folder": str(tmp_path)})
    place = _tell(sink, {}, 1, 2).place
    (tmp_path / "r-1" / FILE).unlink()
    answer = _tell(sink, place, 3)
    assert answer.behind == -1 and answer.place == {}
    _tell(sink, answer.place, 1, 2, 3)


def test_numbers_beyond_32_bits_do_not_end_it(tmp_path: Path, read: Any) -> None:
    sink = TensorBoardSink({"folder": str(tmp_path)})
    sink.tell(Message("r-1", HEAD, {}, points=[(2**52, 0, 0.0, {"big": 1e300, "tiny": -1e-300, "é / ü": -1e300})]))
    found = read()
    assert found.Scalars("big")[0].step == 2**52 and found.Scalars("big")[0].value == pytest.approx(3.4028235e38)
    assert found.Scalars("é / ü")[0].value == pytest.approx(-3.4028235e38)
