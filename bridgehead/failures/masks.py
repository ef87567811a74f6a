"""What in a log only sounds like a failure: settings, metrics, package lists, advice, source code in tracebacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PACKAGES = re.compile(
    r"^\W*(?:Downloading|Downloaded|Collecting|Requirement already|Using cached|Installing collected|Successfully "
    r"(?:un)?installed|Building wheels? for|Preparing metadata|Found existing installation|Attempting uninstall|"
    r"Get:\d+|Unpacking|Setting up|Selecting previously|Stored in directory|Resolved \d+ packages|Installed \d+) ?"
)
_ENV_KNOB = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+=\S*")
_METRIC = re.compile(
    r"['\"]?\b[\w.-]+[_/][\w./-]*['\"]?\s*[:=]\s*['\"]?-?\d+(?:\.\d+)?(?:e[+-]?\d+)?['\"]?(?=[\s,;}\])|]|$)",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"^\s*['\"]?[\w.-]*(?:error|nan|oom|timeout|kill|fail|cancel|preempt|limit|signal|auth|token)[\w.-]*['\"]?\s*[:=]\s*"
    r"['\"]?(?:True|False|None|null|[a-z]+|-?[\d.]+(?:e-?\d+)?(?:ms|s|m|h)?)['\"]?[,}]?\s*$",
    re.IGNORECASE,
)
_KEPT_KEYS = re.compile(r"exit|code\b|errno|reason|status|state|signal\b|^\s*\w*Error:|Killed:", re.IGNORECASE)
# `before`: indentation, mostly behind a prefix of a logger's or launcher's: a rank, a time, the bars of a group.
_FRAME = re.compile(r"^(?P<before>(?:.{0,80}?\S)?\s{2,}|\s*|\[[^\]]{1,40}\]:?\s*)File \"[^\"]+\", line \d+(?=,|\s|$)")
_BOXED_SOURCE = re.compile(r"^.{0,40}[│|]\s*(?:❱\s*)?\d+\s*│")  # as rich prints tracebacks
_ARROW_SOURCE = re.compile(r"^-{1,9}> ?\d+(?:\s|$)")  # as IPython prints tracebacks, with numbered lines around it
_NUMBERED = re.compile(r"^\s+\d+(?:\s|$)")
_FRAME_WORD = 'File "'
_DIGITS = re.compile(r"\d")
_AROUND_ARROW: Final = 12  # lines of source on either side of the arrow
_WARNING = re.compile(r"\b(?:Future|Deprecation|User|Runtime|PendingDeprecation|Resource|Import)Warning\b")
_ADVICE = re.compile(
    r"\b(?:to (?:avoid|prevent|reduce|mitigate)|in case of|if (?:you|this|it|your|there|any)\b|"
    r"(?:might|may|can|could) (?:\w+ )?"
    r"(?:cause|lead|result|fail|run|be due|happen)|consider\b|skipping (?:this )?(?:batch|sample|update|step)|"
    r"attempting to recover|recover(?:ed|ing) from|retry(?:ing)? (?:with|after|in|attempt)|"
    r"will (?:retry|be retried|be ignored)|"
    r"handl(?:es|ed|ing)\b|fall(?:s|ing)? back|continuing|ignor(?:ed|ing)\b|no longer an error|"
    r"\bsetting\b.{0,60}\b(?:timeout|limit)|handlers? (?:is |was |are )?(?:installed|registered|set)|"
    r"detection (?:is )?enabled|"
    r"checking for|check for|watching for|monitor(?:s|ing) for|test_\w+|PASSED\b|0 failed)",
    re.IGNORECASE,
)
_NAMES_ITSELF = re.compile(r"\w*(?:Error|Exception)\b ?[:(]|\berror:|slurmstepd|srun:|Errno", re.IGNORECASE)
PROGRESS: Final = re.compile(
    r"\b(?:global_?step|step|iter(?:ation)?|epoch|it|batch)s?\b\W{0,3}\d+|\d+%\||\d+/\d+ ?\[|\b(?:it/s|s/it)\b|"
    r"\bloss\w*['\"]?\s*[:=]\s*['\"]?\d",
    re.IGNORECASE,
)
HANDLED: Final = re.compile(
    r"\bskip(?:ping|ped)? (?:(?:this|the|that|current) )?(?:batch|sample|update|step|iteration|file|example)|"
    r"\btrying again\b|"
    r"\bretry(?:ing)?\b|\brecover(?:ed|ing)\b|\bcontinuing\b|\bfall(?:ing|s)? back\b|\bgoing on\b",
    re.IGNORECASE,
)
SUCCESS: Final = re.compile(
    r"\b(?:training|train|finetuning|fine-tuning|run|job|experiment|fit|everything|script)\b[^.:]{0,30}\b(?:completed|complete|"
    r"finished|ended|succeeded|successful(?:ly)?)\b(?!.{0,40}(?:error|fail|with code [1-9]))|Training is done|"
    r"(?:successfully|finished) (?:completed|finished|trained|training)|"
    r"End time of running main|`?Trainer\.fit`? stopped: "
    r"`?max_(?:epochs|steps)",
    re.IGNORECASE,
)


def source_lines(lines: Sequence[tuple[int, str]]) -> set[int]:
    """Indices of the lines that are source code in a traceback, of any way to print one. `lines`: (offset, text).

    Below a frame that is whatever stands deeper than it, behind the same prefix: the exception's own line does not.
    """
    found: set[int] = set()
    before: str | None = None
    for number, (_, text) in enumerate(lines):
        frame = _FRAME.match(text) if _FRAME_WORD in text else None
        if frame is not None:
            before = frame["before"]
        elif before is not None and _is_deeper(text, before):
            found.add(number)
        else:
            before = None
        if text.startswith("-") and _ARROW_SOURCE.match(text):
            found.update(_numbered_around(lines, number))
    return found


def _is_deeper(text: str, before: str) -> bool:
    """Whether it begins as `before` does, apart from a time or a rank, and goes on with more indentation."""
    size = len(before)
    return text[size : size + 1] in (" ", "\t") and _DIGITS.sub("0", text[:size]) == _DIGITS.sub("0", before)


def _numbered_around(lines: Sequence[tuple[int, str]], arrow: int) -> set[int]:
    found = {arrow}
    for step in (-1, 1):
        at = arrow + step
        while 0 <= at < len(lines) and abs(at - arrow) <= _AROUND_ARROW and _NUMBERED.match(lines[at][1]):
            found.add(at)
            at += step
    return found


def masked(text: str, *, is_source: bool = False) -> str:
    """`text` without what is no message of the program. `is_source`: it is one of `source_lines`."""
    if is_source or _PACKAGES.match(text):
        return ""
    if (_FRAME_WORD in text and _FRAME.match(text)) or _BOXED_SOURCE.match(text):
        return ""
    if _SETTING.match(text) and not _KEPT_KEYS.search(text):
        return ""
    return _METRIC.sub(_unless_kept, _ENV_KNOB.sub(" ", text))


def _unless_kept(found: re.Match[str]) -> str:
    return found.group() if _KEPT_KEYS.search(found.group()) else " "


def only_mentions(text: str) -> bool:
    """A warning, or a sentence about failures: a hint, no failure yet."""
    return bool(_WARNING.search(text)) or (bool(_ADVICE.search(text)) and not _NAMES_ITSELF.search(text))
