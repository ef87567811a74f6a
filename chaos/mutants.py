"""Deliberate breaks of the copy that ships: with any one of them the campaign has to fail."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.snapshot import Patch


class NoSuchMutant(Exception):
    """The name is none of MUTANTS."""


@dataclass(frozen=True)
class Mutant:
    """What is broken, and which kinds of faults can show it."""

    patches: tuple[Patch, ...]
    kinds: tuple[str, ...] = ("kill-stage",)


MUTANTS: dict[str, Mutant] = {}


def patches(name: str) -> tuple[Patch, ...]:
    """Raises NoSuchMutant."""
    if name not in MUTANTS:
        raise NoSuchMutant(f"no mutant {name!r}; there are: {', '.join(MUTANTS)}")
    return MUTANTS[name].patches
