"""What every command shares: JSON or text out, errors to exit codes, Ctrl-C that only detaches."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead import os_errors
from bridgehead.errors import INTERRUPTED_EXIT_CODE, BridgeheadError, UsageError

if TYPE_CHECKING:
    from run_control.project import Project

ENVELOPE_VERSION = 1

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; NDJSON for streams.")]
ProjectFlag = Annotated[
    Path | None, typer.Option("--project", "-C", metavar="DIR", help="The project folder; default: this one or above.")
]


def run(app: typer.Typer, argv: Sequence[str], prog: str) -> int:
    """Run the app and return the exit code. The one place where errors become codes."""
    as_json = "--json" in list(argv)[: list(argv).index("--")] if "--" in argv else "--json" in argv
    _replace_closed()
    try:
        result = app(args=list(argv), prog_name=prog, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BridgeheadError as error:
        return _report(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED_EXIT_CODE
    except OSError as error:
        _settle_stdout()
        return _report(os_errors.in_words(error), as_json)
    except Exception as error:  # noqa: BLE001 - the process edge: one line, never a traceback with locals
        return _report(_unforeseen(error), as_json)


def project_of(context: typer.Context, named: Path | None) -> Project:
    """The project that -C names, before or after the command, else that of the working folder."""
    from run_control.project import find

    return find(named or context.obj)


def one_key(given: list[Path] | None) -> Path | None:
    """The one key file. Raises UsageError for several, of which all but the last would go unheeded."""
    if given and len(given) > 1:
        raise UsageError(f"--key is given {len(given)} times", hint="one key: run it once for each")
    return given[0] if given else None


def emit(
    data: Mapping[str, Any], *, as_json: bool, show: Callable[[], None], error: BridgeheadError | None = None
) -> int:
    """The command's data on stdout, as one JSON envelope or as `show` prints it; returns the exit code.

    With `error` the data is there all the same, and the answer is not ok.
    """
    if as_json and error is not None:
        _say_json({"ok": False, "error": _error_body(error), "data": data})
    elif as_json:
        _say_json({"ok": True, "data": data})
    else:
        show()
    if error is None:
        return 0
    sys.stdout.flush()
    _note_error(error)
    return error.exit_code


def event(sequence: int, values: Mapping[str, Any]) -> None:
    """One line of an NDJSON stream."""
    _say_json({"seq": sequence, **values})


def say(text: str = "") -> None:
    """A line of data."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()  # the reader (head, less) has left
        raise typer.Exit(0) from None
    except OSError as error:
        _drop_stdout()
        reason = error.strerror or type(error).__name__
        raise BridgeheadError(f"stdout can't be written: {reason}", hint="send it to a place with room") from None


def _drop_stdout() -> None:
    """Let what is left go nowhere: Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _settle_stdout() -> None:
    """After an OSError that may have been stdout's own: the error is told on stderr alone then."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _replace_closed() -> None:
    """Python has None for a stream that was closed from outside (`>&-`): what goes there is wanted by nobody."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")


def note(text: str) -> None:
    """Anything that is not data goes to stderr."""
    with contextlib.suppress(OSError):  # the terminal may be closed; what is under way still has to end in order
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns on stdout; colours of the terminal's own on a tty alone."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    tty = sys.stdout.isatty()
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for header in headers:
        shown.add_column(header, overflow="fold" if tty else "ignore", no_wrap=not tty)
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    # A pipe has no width: lines are then as long as they need to be.
    console = Console(soft_wrap=not tty, width=None if tty else 1000, highlight=False)
    with console.capture() as captured:
        console.print(shown)
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextlib.contextmanager
def detaching(run_id: str, again: str) -> Iterator[None]:
    """Ctrl-C inside leaves at once with 130 and says how to come back and how to stop; the run goes on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"detached; {run_id or 'everything'} goes on. follow again: {again}")
        note(f"stop it: bridgehead stop {run_id or 'RUN'}")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None


def parse_duration(text: str) -> float:
    """`90`, `90s`, `30m`, `2h`, `1d` in seconds. Raises UsageError."""
    units_s = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units_s else (text, "s")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"not a duration: {text!r}", hint="90s, 30m, 2h or 1d")
    return value * units_s[unit]


def printable(text: str) -> str:
    """Queue lines, messages and names come from files and from VMs: none may repaint a person's terminal."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


def _say_json(values: Mapping[str, Any]) -> None:
    say(json.dumps({"v": ENVELOPE_VERSION, **values}))


def _report(error: BridgeheadError, as_json: bool) -> int:
    if as_json:
        with contextlib.suppress(typer.Exit):
            _say_json({"ok": False, "error": _error_body(error)})
    _note_error(error)
    return error.exit_code


def _note_error(error: BridgeheadError) -> None:
    note(f"error: {error.message}")
    if error.hint:
        note(f"next: {error.hint}")


def _error_body(error: BridgeheadError) -> dict[str, object]:
    return {**error.to_json(), "exit_code": error.exit_code}


def _unforeseen(error: Exception) -> BridgeheadError:
    # Typer keeps click inside since 0.26; its usage errors are known by this method, not by an import.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        return UsageError(str(describe()).strip(), hint=f"{_command_of(error)} --help")
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    return BridgeheadError(
        f"internal: {type(error).__name__} at {place}: {error}", hint="this is a bug of Bridgehead; please report it"
    )


def _command_of(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    return str(path) or "bridgehead"
