"""The grammar of a line of queue.txt.

line     = [ "@" vm " " ] verb ":" argument          # "#" starts a comment, blank lines are free
run:STAGE [resume=RUN [allow=code,config,pool]] [unpriced=WHY] [key=value …]     run:STAGE spec=ID
sh:BASE64     stop:STAGE-or-RUN     sync:     @VM release:
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from bridgehead.errors import UsageError

LINE_MAX = 65_536
NESTING_MAX = 20
NEAREST_MAX = 8
RESUME_KEY = "resume"  # run: begin at the newest checkpoint of that run
ALLOW_KEY = "allow"  # run: what may differ from what that checkpoint was made with
SPEC_KEY = "spec"  # run: the beginning of a run spec's id; it says all, so that nothing may stand beside it
UNPRICED_KEY = "unpriced"  # run: why it may start although its price is not known, percent-encoded
STAGE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_VM = re.compile(r"@([A-Za-z0-9][A-Za-z0-9_-]{0,63})\s+(.*)\Z", re.S)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}\Z")


class Verb(StrEnum):
    RUN = "run"
    SH = "sh"
    STOP = "stop"
    SYNC = "sync"
    RELEASE = "release"


@dataclass(frozen=True)
class QueueLine:
    """One readable line. `argument`: stage (run), shell text (sh), stage or run id (stop), "" (sync, release)."""

    verb: Verb
    argument: str
    vm: str = ""  # empty: any VM
    overrides: dict[str, object] = field(default_factory=dict)


def parse_line(text: str) -> QueueLine | None:
    """Read one line; None for a blank or comment line. Raises UsageError that names the nearest verb."""
    line = text.strip().lstrip("\ufeff").strip()
    if not line or line.startswith("#"):
        return None
    if len(line) > LINE_MAX:
        raise UsageError(f"the line has {len(line)} characters; the most is {LINE_MAX}")
    if not line.isprintable():
        raise UsageError("the line holds characters that can't be printed")
    vm = ""
    if line.startswith("@"):
        match = _VM.match(line)
        if match is None:
            raise UsageError("after @ comes a VM name, a space, and the command", hint="@vm-1 run:pretrain")
        vm, line = match[1], match[2].strip()
    word, colon, rest = line.partition(":")
    if not colon:
        raise UsageError(f"no ':' in {_short(line)!r}", hint="a line looks like run:pretrain")
    verb = _verb(word.strip())
    return _READERS[verb](rest.strip(), vm)


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean x?`, or the whole list when nothing is near."""
    options = sorted(known)
    close = difflib.get_close_matches(word.lower(), options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    if len(options) > NEAREST_MAX:
        return f"known: {', '.join(options[:NEAREST_MAX])} and {len(options) - NEAREST_MAX} more"
    return "known: " + ", ".join(options) if options else "none is defined"


def encode_shell(text: str) -> str:
    """The queue line that runs `text` in a shell on the VM."""
    return f"{Verb.SH}:{base64.b64encode(text.encode()).decode()}"


def parse_overrides(words: Iterable[str]) -> dict[str, object]:
    """`key=value` words; a value is JSON when it reads as JSON (5, 0.1, true, "x"), else text."""
    overrides: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not _KEY.match(key):
            raise UsageError(f"not key=value: {_short(word)!r}", hint="run:pretrain epochs=20 seed=7")
        if key in overrides:
            raise UsageError(f"{key} is given twice")
        overrides[key] = _override(key, value)
    return overrides


def _override(key: str, value: str) -> object:
    """JSON where it reads as JSON. Not NaN or 1e999, which no JSON reader takes back, and nothing nested too deep."""

    def no_number(text: str) -> object:
        raise UsageError(f"{key} is no finite number: {_short(text)}")

    def finite(text: str) -> object:
        number = float(text)
        return number if math.isfinite(number) else no_number(text)

    try:
        read: object = json.loads(value, parse_constant=no_number, parse_float=finite)
    except ValueError:
        return value
    except RecursionError:
        raise UsageError(f"{key} is nested too deep") from None
    if _depth(read) > NESTING_MAX:
        raise UsageError(f"{key} is nested more than {NESTING_MAX} deep")
    return read


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[object] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
        level = inner
    return depth


def _verb(word: str) -> Verb:
    try:
        return Verb(word)
    except ValueError:
        raise UsageError(f"unknown verb {_short(word)!r}", hint=nearest(word, Verb)) from None


def _read_run(rest: str, vm: str) -> QueueLine:
    stage, *words = rest.split() or [""]
    if not STAGE_NAME.match(stage):
        raise UsageError(f"run: needs a stage name; this has {_short(stage)!r}", hint="run:pretrain")
    overrides = parse_overrides(words)
    if ALLOW_KEY in overrides and RESUME_KEY not in overrides:
        # Most likely resume= was forgotten: the run would begin at nothing, and nobody would say so for hours.
        raise UsageError(
            f"{ALLOW_KEY}= says what may differ from the checkpoint that {RESUME_KEY}= names, and this line names none",
            hint=f"run:{stage} {RESUME_KEY}=RUN {ALLOW_KEY}=…, or leave {ALLOW_KEY}= out to begin anew",
        )
    return QueueLine(Verb.RUN, stage, vm, overrides)


def _read_sh(rest: str, vm: str) -> QueueLine:
    try:
        text = base64.b64decode("".join(rest.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise UsageError("sh: needs base64 of UTF-8 text", hint="bridgehead sh 'nvidia-smi' writes it") from None
    if not text.strip() or "\0" in text:
        raise UsageError("sh: the command is empty or holds a NUL")
    return QueueLine(Verb.SH, text, vm)


def _read_stop(rest: str, vm: str) -> QueueLine:
    if not STAGE_NAME.match(rest):
        raise UsageError(f"stop: needs a stage or run; this has {_short(rest)!r}", hint="stop:pretrain")
    return QueueLine(Verb.STOP, rest, vm)


def _read_sync(rest: str, vm: str) -> QueueLine:
    if rest:
        raise UsageError(f"sync: takes nothing after it; this has {_short(rest)!r}", hint="sync:")
    return QueueLine(Verb.SYNC, "", vm)


def _read_release(rest: str, vm: str) -> QueueLine:
    if rest:
        raise UsageError(
            f"release: takes nothing after it; this has {_short(rest)!r}", hint="the VM comes first: @vm-1 release:"
        )
    if not vm:
        raise UsageError("release: has to say which VM", hint="@vm-1 release:")
    return QueueLine(Verb.RELEASE, "", vm)


_READERS = {
    Verb.RUN: _read_run,
    Verb.SH: _read_sh,
    Verb.STOP: _read_stop,
    Verb.SYNC: _read_sync,
    Verb.RELEASE: _read_release,
}


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
