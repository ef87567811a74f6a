"""How long a fuzz test looks, and shapes of hostile input that several of them use.

`make test` runs the same few seconds of examples each time, so a red test is red again. `FUZZ=100 make test
TEST_ARGS=tests/fuzz` runs a hundred times as many, new ones each time; what it finds is kept in .hypothesis/ and tried
first from then on.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MORE = max(1, int(os.environ.get("FUZZ", "1")))
DEEP = 3000  # brackets: more than any reader of JSON follows


def fuzz(examples: int, **more: Any) -> settings:
    """The settings of one fuzz test: this many examples in `make test`."""
    return settings(
        max_examples=examples * MORE,
        derandomize=MORE == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
        **more,
    )


def any_text(max_size: int = 80) -> st.SearchStrategy[str]:
    """Lone surrogates too: that is how the server library hands on bytes that are no UTF-8."""
    return st.text(st.characters() | st.sampled_from("\udcff\ud800²٣"), max_size=max_size)


def near(*words: str) -> st.SearchStrategy[str]:
    """The given pieces in any order, with a few arbitrary characters between them: almost what the parser wants."""
    piece = st.one_of(st.sampled_from(words), st.sampled_from(words), any_text(4))
    return st.lists(piece, max_size=12).map("".join)


def any_json() -> st.SearchStrategy[Any]:
    """What a reader of JSON may hand on: also NaN, infinity, huge numbers and lone surrogates."""
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-3, 3), st.just(10**400), st.floats(), any_text(20)
    )
    return st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text(8), inner, max_size=4), max_leaves=12
    )


def damaged(sound: Any) -> st.SearchStrategy[Any]:
    """A sound JSON value with one of its members, at any depth, replaced by something arbitrary or taken away."""
    return st.tuples(st.integers(0, 10**6), any_json(), st.booleans()).map(lambda how: _damage(sound, *how))


def _damage(value: Any, seed: int, other: Any, remove: bool) -> Any:
    places = list(_places(value))
    path = places[seed % len(places)]
    return _replaced(value, path, other, remove=remove)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


def _replaced(value: Any, path: tuple[Any, ...], other: Any, *, remove: bool) -> Any:
    if not path:
        return other
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = _replaced(value[key], tuple(rest), other, remove=remove)
    elif remove:
        del copy[key]
    else:
        copy[key] = other
    return copy
