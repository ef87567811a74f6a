"""Which files the globs of bridgehead.toml choose, and what they would choose but for what it is."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from bridge.project import ProjectView
from bridgehead import names, paths
from bridgehead.errors import UsageError

SHOWN_MAX: Final = 5
# Never sent, whatever the globs say: at the top of the project, and at any depth.
_NEVER_AT_TOP = frozenset({names.PRIVATE_FOLDER, names.IN_FOLDER, names.QUEUE_FILE, names.PROJECT_FILE})
_NEVER = frozenset({".git", ".venv", "__pycache__"})
_NO_DOT = "a name with a leading dot can't travel, so rename what a run needs"
_Match = Callable[[str], bool]


@dataclass
class Choice:
    """`files`: relative path and state of each that is sent. The rest stays on the laptop, by the reason."""

    files: list[tuple[str, os.stat_result]] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # a wildcard does not match a leading dot
    links: list[str] = field(default_factory=list)  # neither sent nor followed
    others: list[str] = field(default_factory=list)  # FIFOs, sockets, devices

    def stays(self) -> str:
        """What stays here though the globs seem to mean it, in one line; "" for nothing."""
        kinds = [
            text
            for text in (
                _counted(self.hidden, "hidden file", _NO_DOT),
                _counted(self.links, "link", "put the files themselves there"),
                _counted(self.others, "FIFO or device", ""),
            )
            if text
        ]
        return f"not sent: {'; '.join(kinds)}" if kinds else ""

    def check_names(self, known: _Match = lambda relative: False) -> None:
        """Raises UsageError that names the files that can't cross the wire: all of them at once.

        Those that are `known` were found good before.
        """
        bad = []
        for relative in (relative for relative, _ in self.files if not known(relative)):
            try:
                paths.check_relative(relative)
            except UsageError as error:
                bad.append((relative, error.message))
        if not bad:
            return
        shown = "; ".join(f"{relative!r}: {why}" for relative, why in bad[:SHOWN_MAX])
        more = f"; and {len(bad) - SHOWN_MAX} more" if len(bad) > SHOWN_MAX else ""
        what = "the payload file" if len(bad) == 1 else f"{len(bad)} payload files have names that can't travel:"
        raise UsageError(f"{what} {shown}{more}", hint="rename, or exclude from the payload: [payload] exclude")


def choose(root: Path, view: ProjectView) -> Choice:
    """Look through the project folder. Links are neither sent nor followed."""
    chosen, with_hidden = _matcher(view, hidden=False), _matcher(view, hidden=True)
    choice = Choice()
    for relative, info in _walk(root):
        if stat.S_ISLNK(info.st_mode):
            _add(choice.links, relative, with_hidden)
        elif not stat.S_ISREG(info.st_mode):
            _add(choice.others, relative, with_hidden)
        elif chosen(relative):
            choice.files.append((relative, info))
        else:
            _add(choice.hidden, relative, with_hidden)
    choice.files.sort(key=lambda item: item[0])
    return choice


def _add(listed: list[str], relative: str, matches: _Match) -> None:
    if matches(relative):
        listed.append(relative)


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Relative path and state of all that is no folder; a link to a folder is a link."""
    for folder, folders, found in os.walk(root):
        at_top = Path(folder) == root
        skip = _NEVER | _NEVER_AT_TOP if at_top else _NEVER
        folders[:] = [name for name in folders if name not in skip]
        prefix = "" if at_top else Path(folder).relative_to(root).as_posix() + "/"
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*found, *linked):
            if name not in skip:
                with contextlib.suppress(OSError):
                    yield prefix + name, os.lstat(os.path.join(folder, name))


def _matcher(view: ProjectView, *, hidden: bool) -> _Match:
    include = [_compile(pattern, hidden=hidden) for pattern in view.payload_include]
    exclude = [_compile(pattern, hidden=hidden) for pattern in view.payload_exclude]

    def matches(relative: str) -> bool:
        return any(pattern.match(relative) for pattern in include) and not any(
            pattern.match(relative) for pattern in exclude
        )

    return matches


def _counted(listed: list[str], what: str, todo: str) -> str:
    """`3 links (a, b, c): put the files themselves there`."""
    if not listed:
        return ""
    some = sorted(listed)[:SHOWN_MAX]
    more = ", …" if len(listed) > SHOWN_MAX else ""
    kind = what if len(listed) == 1 else what.replace(" or device", "s or devices") if " or " in what else f"{what}s"
    return f"{len(listed)} {kind} ({', '.join(some)}{more})" + (f": {todo}" if todo else "")


def _compile(pattern: str, *, hidden: bool = False) -> re.Pattern[str]:
    """A glob: `*` and `?` within one name, `**` over folders; a folder's name stands for all below it.

    As in a shell, wildcards do not match a leading dot: hidden files go only when they are named. With
    `hidden` they do match one.
    """
    no_dot = "" if hidden else r"(?!\.)"
    parts = PurePosixPath(pattern.replace("\\", "/")).parts
    regex = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            regex += f"(?:{no_dot}[^/]+/)*" + (f"{no_dot}[^/]+" if last else "")
        else:
            regex += _compile_name(part, no_dot) + ("" if last else "/")
    return re.compile(regex + f"(?:/{no_dot}[^/]+)*\\Z")


def _compile_name(part: str, no_dot: str) -> str:
    tokens = re.split(r"(\*+|\?|\[[^\]]+\])", part)
    regex = no_dot if part[:1] in ("*", "?", "[") else ""
    for token in tokens:
        if token.startswith("*"):
            regex += "[^/]*"
        elif token == "?":
            regex += "[^/]"
        elif token.startswith("[") and token.endswith("]"):
            regex += "[^" + token[2:] if token.startswith("[!") else token
        else:
            regex += re.escape(token)
    return regex
