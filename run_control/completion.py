"""Completion scripts for bash, zsh and fish, printed and never installed. Tab then runs no Python at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest

_STAGES = f"sed -n 's/^\\[stages\\.\\([a-z0-9_-]*\\)\\].*/\\1/p' {names.PROJECT_FILE} 2>/dev/null"
SHELLS = ("bash", "zsh", "fish")


def script(shell: str, commands: Mapping[str, Sequence[str]]) -> str:
    """The script for `shell`; `commands` maps each command to its options and subcommands. Raises UsageError.

    Stages are completed from the project file, runs from the folders in in/.
    """
    if shell not in SHELLS:
        raise UsageError(f"no completion for {shell!r}", hint=nearest(shell, SHELLS))
    return _fish(commands) if shell == "fish" else _bash(commands, zsh=shell == "zsh")


def _bash(commands: Mapping[str, Sequence[str]], *, zsh: bool) -> str:
    cases = "\n".join(f'        {name}) words="{" ".join(words)}" ;;' for name, words in commands.items())
    head = "autoload -Uz bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_bridgehead() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{" ".join(commands)}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
        words="$words $({_STAGES})"
        [ "${{COMP_WORDS[1]}}" = run ] || words="$words $(ls {names.IN_FOLDER} 2>/dev/null)"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _bridgehead bridgehead"""


def _fish(commands: Mapping[str, Sequence[str]]) -> str:
    lines = ["complete -c bridgehead -f", f"complete -c bridgehead -n __fish_use_subcommand -a '{' '.join(commands)}'"]
    for name, words in commands.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        runs = "" if name == "run" else f" (ls {names.IN_FOLDER} 2>/dev/null)"
        lines.append(f'complete -c bridgehead {condition} -a "{" ".join(words)} ({_STAGES}){runs}"')
    return "\n".join(lines)
