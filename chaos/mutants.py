"""Deliberate breaks of the copy that ships: with any one of them the campaign has to fail.

Each comes with the blow that can show it. A patch whose text is not there any more, or not only once, is an error: the
mutant has to be written anew, it is never passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos.plan import Plan, Strike, When
from chaos.snapshot import Patch

_STATE = "bridgehead/torch_state.py"
_LOOP = "stages/training.py"
_SLOTS = "vm_daemons/storage/store_slots.py"
_RESTORE = "        part.load_state_dict(state)\n"
_KILLED = (Strike("kill-stage-and-runner", When.STEP, 0.6),)
_DAMAGED = (Strike("zeroed-block-local", When.STEP, 0.6),)
_UPLOADED = (Strike("kill-kernel", When.STEP, 0.5),)


class NoSuchMutant(Exception):
    """The name is none of MUTANTS."""


@dataclass(frozen=True)
class Mutant:
    """What is broken, the blow that shows it, and how many rounds may pass before it has to have shown."""

    patches: tuple[Patch, ...]
    strikes: tuple[Strike, ...] = _KILLED
    rounds: int = 1


def _without_part(name: str) -> Mutant:
    return Mutant((Patch(_STATE, _RESTORE, f'        if name != "{name}":\n    {_RESTORE}'),))


def _without_rng(name: str) -> Mutant:
    return Mutant((Patch(_STATE, f"    _restore_{name}_rng(state)\n", ""),))


MUTANTS: dict[str, Mutant] = {
    "model": _without_part("encoder"),
    "optimizer": _without_part("optimizer"),
    "ema": _without_part("ema"),
    "rng-torch": _without_rng("torch"),
    "rng-python": _without_rng("python"),
    "rng-numpy": _without_rng("numpy"),
    "schedule-position": Mutant(
        (
            Patch(
                _LOOP,
                "    def _schedule_position(self) -> int:\n        return self.step\n",
                "    def _schedule_position(self) -> int:\n        return self.step - (self.resumed_from_step or 0)\n",
            ),
        )
    ),
    "sample-position": Mutant(
        (
            Patch(
                _LOOP,
                '        """Epoch, and place in the epoch."""\n        return divmod(self.step, ',
                '        """Epoch, and place in the epoch."""\n'
                "        return divmod(self.step - (self.resumed_from_step or 0), ",
            ),
        )
    ),
    # The commit first, and then what it vouches for.
    "commit-order": Mutant(
        (
            Patch(
                _SLOTS,
                '        sent = store.put(f"{target.key}/{stored}", source / path)\n',
                "        sent = describe(stored, (source / path).read_bytes())\n",
            ),
            Patch(
                _SLOTS,
                "    store.put_bytes(key, data)\n",
                "    store.put_bytes(key, data)\n"
                "    for entry in entries:\n"
                "        store.put(f\"{target.key}/{entry['stored']}\", source / entry['path'])\n",
            ),
        ),
        _UPLOADED,
    ),
    "hash-check": Mutant(
        (Patch("bridgehead/checkpoints.py", 'files.sha256_file(path) != entry["sha256"]:', "False:"),),
        _DAMAGED,
        rounds=3,
    ),
}


def patches(name: str) -> tuple[Patch, ...]:
    """Raises NoSuchMutant."""
    return _named(name).patches


def plans(name: str, seed: int) -> list[Plan]:
    """The rounds in which it has to show."""
    mutant = _named(name)
    return [
        Plan(number, seed, list(mutant.strikes), with_dice=False, on_drive=False, tell_the_ledger=False)
        for number in range(mutant.rounds)
    ]


def _named(name: str) -> Mutant:
    if name not in MUTANTS:
        raise NoSuchMutant(f"no mutant {name!r}; there are: {', '.join(MUTANTS)}")
    return MUTANTS[name]
