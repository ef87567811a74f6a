"""For who gives the bridge a process of its own: what holds its loop for long is kept out of it."""

from __future__ import annotations

import gc


def make_prompt() -> None:
    """Call it once the bridge has started. Of the whole process: a notebook's or a test's is not ours to change.

    A full collection looks at every object there is and holds the loop meanwhile, some 50 ms under load; what is there
    from the start stays to the end, and is left out from now on.
    """
    gc.collect()
    gc.freeze()
