"""A command line as bridgehead.toml may hold it: one text, split as a shell splits it."""

from __future__ import annotations

import shlex


def split_words(line: str) -> list[str]:
    """The words of `line`. Raises ValueError, told in words, for quotes that do not close."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ValueError(f"a command line with balanced quotes ({error})") from None


def words_of(value: object) -> object:
    """A text as its words; anything else as it is, for the key's own type to judge. Raises as `split_words`."""
    return split_words(value) if isinstance(value, str) else value
