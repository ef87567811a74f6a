"""What in a log only sounds like a failure: settings, metrics, package lists, advice, source code in tracebacks."""

from __future__ import annotations

import re
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
_FRAME = re.compile(r"^(?:\[[^\]]{1,40}\]:?)?\s*File \"[^\"]+\", line \d+")
_BOXED_SOURCE = re.compile(r"^.{0,40}[│|]\s*(?:❱\s*)?\d+\s*│")  # as rich prints tracebacks
_FRAME_WORD = 'File "'
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


def is_frame(text: str) -> bool:
    """Whether it names a frame of a traceback: the line after it is source code."""
    return _FRAME_WORD in text and bool(_FRAME.match(text))


def masked(text: str, *, is_source: bool = False) -> str:
    """`text` without what is no message of the program. `is_source`: the line before it names a frame."""
    if _PACKAGES.match(text) or (is_source and text.startswith((" ", "[")) and not _NAMES_ITSELF.search(text)):
        return ""
    if _FRAME.match(text) or _BOXED_SOURCE.match(text):
        return ""
    if _SETTING.match(text) and not _KEPT_KEYS.search(text):
        return ""
    return _METRIC.sub(_unless_kept, _ENV_KNOB.sub(" ", text))


def _unless_kept(found: re.Match[str]) -> str:
    return found.group() if _KEPT_KEYS.search(found.group()) else " "


def only_mentions(text: str) -> bool:
    """A warning, or a sentence about failures: a hint, no failure yet."""
    return bool(_WARNING.search(text)) or (bool(_ADVICE.search(text)) and not _NAMES_ITSELF.search(text))
