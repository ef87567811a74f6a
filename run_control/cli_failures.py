"""Commands about failures: classify, memos."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead.errors import UsageError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, say, table

if TYPE_CHECKING:
    from bridgehead.failures.classify import Verdict
    from bridgehead.failures.log_lines import LogText


def register(app: typer.Typer) -> None:
    for command in (classify, postmortem, memos):
        app.command()(command)


def classify(
    log: Annotated[
        Path | None, typer.Argument(metavar="LOG", help="Any log file, whoever made it; - for stdin.")
    ] = None,
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", metavar="N", help="Of the program: -9 and 137 are the same.")
    ] = None,
    state: Annotated[
        str, typer.Option("--state", metavar="WORD", help="What the provider says: OUT_OF_MEMORY, OOMKilled, TIMEOUT.")
    ] = "",
    self_test: Annotated[
        Path | None,
        typer.Option("--self-test", metavar="FILE", help="JSON lines of class, source, excerpt, exit_code."),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Say why a run failed: class, evidence, next step, and whether trying again makes sense."""
    from bridgehead.failures import classify as classifier
    from run_control import failure_accuracy

    if self_test is not None:
        report = failure_accuracy.measure(self_test)
        return emit(report.to_json(), as_json=json, show=lambda: table(failure_accuracy.HEADERS, report.rows()))
    if log is None:
        raise UsageError("which log?", hint="bridgehead classify LOG")
    text = _read(log)
    verdict = classifier.classify(text, classifier.Known(exit_code=exit_code, provider_state=state))
    data = {"log": str(log), "size_bytes": text.size_bytes, "unread_bytes": text.unread_bytes, **verdict.to_json()}
    return emit(data, as_json=json, show=lambda: _show(verdict, text))


def postmortem(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN")],
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Why a run ended: class, evidence, log, what is kept, what to do. Written now if its VM left none."""
    from run_control import postmortems, views

    found = project_of(context, project)
    told = postmortems.of(found, views.run(found, run))
    return emit(
        {"folder": str(told.folder), "postmortem": told.record}, as_json=json, show=lambda: _say_page(told.page)
    )


def _say_page(page: str) -> None:
    for line in page.rstrip().split("\n"):
        say(_plain(line))


def memos(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[CLASS]", help="One memo alone.")] = "",
    helped: Annotated[str, typer.Option("--helped", metavar="WORDS", help="With CLASS: write down what helped.")] = "",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """What went wrong that was nobody's code: how often, what it cost, what helped. Files: memos/ of the project."""
    from run_control import memos as keeper
    from run_control import postmortems

    found = project_of(context, project)
    if helped and not name:
        raise UsageError("--helped needs a CLASS", hint="bridgehead memos")
    postmortems.settle(found)
    if name:
        memo = keeper.helped(found, name, helped, time.time()) if helped else keeper.find(found, name)
        return emit({"memo": memo}, as_json=json, show=lambda: _say_page(keeper.page(memo)))
    known = keeper.all_of(found)

    def show() -> None:
        table(keeper.HEADERS, [keeper.row(memo, time.time()) for memo in known])
        if not known:
            note("no memos: nothing of that kind has happened here")

    return emit({"memos": known}, as_json=json, show=show)


def _read(log: Path) -> LogText:
    from bridgehead.failures import log_lines

    if str(log) == "-":
        import sys

        return log_lines.from_bytes(sys.stdin.buffer.read(log_lines.HEAD_BYTES + log_lines.TAIL_BYTES))
    try:
        return log_lines.read(log)
    except FileNotFoundError:
        raise UsageError(f"no log at {log}", hint="bridgehead classify LOG") from None


def _show(verdict: Verdict, text: LogText) -> None:
    from bridgehead.failures import page

    answer = verdict.to_json()
    say(f"class: {answer['class']} ({answer['confidence']} confidence): {answer['meaning']}")
    for key in ("detail", "hint"):
        if answer[key]:
            say(f"{key}: {_plain(answer[key])}")
    for item in answer["evidence"]:
        say(f"{'evidence' if item['decides'] else 'also'}: {_plain(_evidence_line(item))}")
    say(f"next: {answer['next_step']}")
    say(f"try again: {page.retry_words(answer['retry'])}")
    if verdict.cut_short:
        say("not all lines were looked at: time was up; the end of the log was looked at first")
    if text.unread_bytes:
        say(f"not looked at: {text.unread_bytes} bytes in the middle of the log, for time was up")


def _evidence_line(item: dict[str, Any]) -> str:
    where = f" at byte {item['offset']}" if "offset" in item else ""
    source = f" (known from {item['source']})" if item.get("source") else ""
    return f"{item['level']}{where}: {item['text']}{source}"


def _plain(text: str) -> str:
    """A log is a stranger's: nothing in it may repaint the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
