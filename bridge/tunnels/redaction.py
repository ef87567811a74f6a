"""Programs print the tokens that they were given, above all when those are wrong: no log and no error may hold one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"
_MIN = 6  # characters; shorter ones are words that stand everywhere
_NAME = r"(?:token|secret|passw(?:or)?d|pass|auth|authkey|auth[-_]?key|api[-_]?key|credentials?)"
_SAYS_SECRET = re.compile(rf"(?:^|[-_ ]|(?<=[a-z]))({_NAME})$", re.IGNORECASE)
_ASSIGNED = re.compile(rf"({_NAME}[\"']?\s*(?:[=:]|\bis\b)\s*[\"']?)(?!//)([^\s\"',;]{{{_MIN},}})", re.IGNORECASE)
_BEARER = re.compile(r"(bearer\s+)\S+", re.IGNORECASE)
_USER_INFO = re.compile(r"(://)[^/\s@\"']+@")


def in_words(words: Sequence[str]) -> list[str]:
    """The values in a command line that stand behind an option like --authtoken, with or without an equals sign."""
    found = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("-") and _SAYS_SECRET.search(option):
            found.append(value if equals else after)
    return _long(found)


def in_environment(of: Mapping[str, str]) -> list[str]:
    """The values of variables like NGROK_AUTHTOKEN."""
    return _long(value for name, value in of.items() if _SAYS_SECRET.search(name))


def hide(line: str, known: Iterable[str]) -> str:
    """The line without known secrets, and without what says of itself that it is one."""
    for secret in known:
        line = line.replace(secret, HIDDEN)
    line = _ASSIGNED.sub(rf"\1{HIDDEN}", line)
    line = _BEARER.sub(rf"\1{HIDDEN}", line)
    return _USER_INFO.sub(rf"\1{HIDDEN}@", line)


def _long(values: Iterable[str]) -> list[str]:
    return [value for value in values if len(value) >= _MIN]
