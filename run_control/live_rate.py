"""The rate that an account says it pays now, by a program of the user's: [money] price_command.

It prints one amount, the price of an hour, such as `3.99 USD`; it gets the provider and the GPU in its environment.
What it says comes before price_per_hour and the table. When it says nothing, that is told, and those hold as stale.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bridgehead import names
from bridgehead.errors import UsageError
from run_control import money
from run_control.money import Money
from run_control.pricing import Terms

TIMEOUT_S = 20.0
KEPT_S = 300.0  # one answer for all lines that are planned together
_READ_MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class LiveRate:
    """`price` of an hour, or the `problem` in words; `at` is in seconds since the epoch."""

    price: Money | None
    problem: str
    at: float

    def told_at(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))


_kept: dict[tuple[Path, tuple[str, ...], str, str], LiveRate] = {}


def of(root: Path, terms: Terms) -> LiveRate | None:
    """The rate for this provider and GPU; None when the project names no command. Asks at most once in KEPT_S."""
    if not terms.price_command:
        return None
    key = (root, terms.price_command, terms.provider, terms.gpu)
    known = _kept.get(key)
    if known is None or not 0 <= time.time() - known.at < KEPT_S:
        known = _kept[key] = ask(root, terms)
    return known


def ask(root: Path, terms: Terms) -> LiveRate:
    """Run the command. Nothing that it prints gets into a text: it may hold what opens the account."""
    try:
        price = _price(_output(root, terms))
    except (UsageError, OSError) as error:
        words = error.message if isinstance(error, UsageError) else error.strerror or type(error).__name__
        return LiveRate(None, words, time.time())
    return LiveRate(price, "", time.time())


def _output(root: Path, terms: Terms) -> str:
    words = terms.price_command
    program = shutil.which(words[0]) or str(root / words[0])
    told = {names.ENV_PROVIDER: terms.provider, names.ENV_GPU: terms.gpu}
    with tempfile.TemporaryFile() as said:  # not a pipe: what it leaves in the background may keep it open for long
        process = subprocess.Popen(
            [program, *words[1:]],
            cwd=root,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.DEVNULL,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise UsageError(f"it did not end within {TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise UsageError(f"it ended with {code}")
        said.seek(0)
        return said.read(_READ_MAX_BYTES).decode(errors="replace")


def _price(output: str) -> Money:
    """Of the last line that is not empty. Raises UsageError without quoting it."""
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        price = money.parse(lines[-1] if lines else "")
    except UsageError:
        raise UsageError('its last line is no amount and unit, such as "3.99 USD"') from None
    if price.amount == 0:
        raise UsageError("it said 0, and a price of 0 is no price")
    return price
