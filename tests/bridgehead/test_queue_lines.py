"""The grammar of a queue line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead.errors import UsageError
from bridgehead.queue_lines import QueueLine, Verb, encode_shell, parse_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run:pretrain", QueueLine(Verb.RUN, "pretrain")),
        ("  run: pretrain  \r\n", QueueLine(Verb.RUN, "pretrain")),
        ("\ufeffrun:pretrain", QueueLine(Verb.RUN, "pretrain")),
        ("@vm-1 stop:pretrain", QueueLine(Verb.STOP, "pretrain", "vm-1")),
        (
            "run:pretrain epochs=3 lr=1e-3 name=abc flag=true",
            QueueLine(Verb.RUN, "pretrain", "", {"epochs": 3, "lr": 1e-3, "name": "abc", "flag": True}),
        ),
        ("sync:", QueueLine(Verb.SYNC, "")),
        (encode_shell("echo hi"), QueueLine(Verb.SH, "echo hi")),
    ],
)
def test_a_line_is_read(text: str, line: QueueLine) -> None:
    assert parse_line(text) == line


@pytest.mark.parametrize("text", ["", "   ", "# run:pretrain", "\ufeff# a comment"])
def test_blank_and_comment_lines_are_none(text: str) -> None:
    assert parse_line(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rnu:pretrain", "did you mean run"),
        ("pretrain", "looks like run:pretrain"),
        ("run:", "run:pretrain"),
        ("run:../x", "run:pretrain"),
        ("run:pretrain epochs", "epochs=20"),
        ("sh:???", "base64"),
        ("sh:", "empty"),
        ("sh:/w==", "base64"),
        ("stop:", "stop:pretrain"),
        ("sync:now", "sync:"),
        ("@ run:x", "@vm-1"),
        ("run:pretrain a=1 a=2", "twice"),
        ("run:pre\0train", "printed"),
        ("run:" + "x" * 70_000, "65536"),
    ],
)
def test_a_bad_line_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(text)
    assert says in f"{caught.value.message} {caught.value.hint}"


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        line = parse_line(text)
    except UsageError as error:
        assert error.message
    else:
        assert line is None or line.verb in Verb


@given(st.text(min_size=1, max_size=80).filter(lambda text: text.strip() and "\0" not in text))
@settings(max_examples=100, deadline=None)
def test_a_shell_line_reads_back(text: str) -> None:
    line = parse_line(encode_shell(text))
    assert line is not None and line.argument == text
