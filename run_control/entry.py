"""The `bridgehead` program: Ctrl-C while Python is still importing is a plain 130 too."""

from __future__ import annotations

from bridgehead.errors import INTERRUPTED_EXIT_CODE


def main() -> int:
    try:
        from run_control.cli import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
