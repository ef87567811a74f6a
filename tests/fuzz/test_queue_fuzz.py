"""Lines of queue.txt: whatever is written is read or refused in words, and what is read means what was written."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_support import any_text, fuzz, near
from hypothesis import example, given
from hypothesis import strategies as st
from ledger_support import PROJECT

from bridge.ledger import Ledger
from bridge.queue_file import QueueReader
from bridgehead.errors import UsageError
from bridgehead.queue_lines import NESTING_MAX, QueueLine, Verb, encode_shell, parse_line

WORDS = (
    "run:", "sh:", "stop:", "sync:", "@vm-1 ", "@", ":", " ", "\t", "\ufeff", "#", "pretrain", "epochs=3", "lr=1e-3",
    "a=[1,2]", 'x="y"', "n=NaN", "n=1e999", "allow=code", "resume=", "=", "ZWNobyBoaQ==", "%", "\u2028", "\x1f", "\0",
)  # fmt: skip
STAGES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
VMS = st.just("") | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | st.integers() | FINITE | st.text('abc"\\{}[]:,é', max_size=6)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("kz", max_size=2), inner, max_size=3)
)
SHELL = st.text(min_size=1, max_size=80).filter(lambda text: text.strip() and "\0" not in text)


def written(line: QueueLine) -> str:
    """The line as the grammar in queue_lines.py has it, written down without its help."""
    at = f"@{line.vm} " if line.vm else ""
    if line.verb is Verb.SH:
        return at + encode_shell(line.argument)
    words = [f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in line.overrides.items()]
    return f"{at}{line.verb}:{' '.join([line.argument, *words])}"


@given(st.one_of(any_text(200), near(*WORDS)))
@example("run:a x=" + "[" * 60_000)
@example("run:a x=" + "1" * 60_000)
@example("@" + "v" * 64 + " sync:")
@fuzz(400)
def test_no_line_breaks_the_parser_and_what_it_reads_stays_the_same_when_it_is_written_again(text: str) -> None:
    try:
        line = parse_line(text)
    except UsageError as error:
        assert error.message and "\n" not in error.message
        return
    if line is not None:
        assert parse_line(written(line)) == line


@given(st.sampled_from([Verb.STOP, Verb.RUN]), STAGES, VMS, st.dictionaries(KEYS, VALUES, max_size=4))
@fuzz(150)
def test_a_run_line_means_what_was_written(verb: Verb, stage: str, vm: str, overrides: dict[str, object]) -> None:
    line = QueueLine(verb, stage, vm, overrides if verb is Verb.RUN else {})
    if " " not in json.dumps(list(line.overrides.values()), separators=(",", ":")):
        assert parse_line(written(line)) == line


@given(SHELL, VMS)
@fuzz(100)
def test_a_shell_line_means_what_was_written(command: str, vm: str) -> None:
    assert parse_line(written(QueueLine(Verb.SH, command, vm))) == QueueLine(Verb.SH, command, vm)


@given(st.integers(NESTING_MAX - 2, NESTING_MAX + 3))
@fuzz(6)
def test_how_deep_a_value_may_be(depth: int) -> None:
    text = f"run:a x={'[' * (depth - 1)}1{']' * (depth - 1)}"
    if depth <= NESTING_MAX:
        assert parse_line(text) is not None
    else:
        with pytest.raises(UsageError, match="deep"):
            parse_line(text)


# --- the file as a whole ------------------------------------------------------------------------------


@contextlib.contextmanager
def reading() -> Iterator[tuple[Ledger, QueueReader]]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        with contextlib.closing(ledger):
            yield ledger, QueueReader(ledger, lambda: PROJECT, "queue.txt")


LINES = st.sampled_from(["run:pretrain", "run:pretrain seed=7", "sync:", "rnu:x", "# a comment", "", "  sync:  \r"])


@given(st.lists(LINES, max_size=8), st.data())
@fuzz(40)
def test_an_appended_line_is_taken_once_however_the_file_was_cut_while_it_was_read(
    lines: list[str], data: st.DataObject
) -> None:
    whole = "".join(line + "\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    with reading() as (ledger, reader):
        for cut in cuts:
            reader.process(whole[:cut], settled=False)
        assert not reader.process(whole, settled=True)
        commands = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        assert [row.text for row in ledger.taken_lines()] == commands
        assert [row.text for row in ledger.commands()] == commands


@given(st.lists(st.binary(max_size=200) | near(*WORDS, "\n", "\r\n").map(lambda t: t.encode("utf-8", "replace"))))
@fuzz(40)
def test_no_content_of_the_file_breaks_the_reader_and_each_line_is_taken_or_marked(contents: list[bytes]) -> None:
    with reading() as (ledger, reader):
        for content in contents:
            assert not reader.process(content, settled=True)
        assert all(line.seq > 0 for line in ledger.taken_lines())
        assert {line.seq for line in ledger.taken_lines()} <= {row.seq for row in ledger.commands()}
