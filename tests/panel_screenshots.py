"""`make screenshots`: each state of the panel at three widths, light and dark, into docs/screenshots/.

Of each picture the part that a person sees first is taken, whole panels only where the state says more below.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import panel_page
import panel_states
from bridgehead.errors import NotFoundError

WIDTHS = (480, 900, 1600)
FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
HEIGHT_MAX = 1500  # of one picture; what is below is the same again


def main(argv: list[str] | None = None) -> int:
    """Make them. `--only STATE` one state, `--out FOLDER` elsewhere."""
    parser = argparse.ArgumentParser(prog="make screenshots")
    parser.add_argument("--only", choices=sorted(panel_states.ALL), action="append")
    parser.add_argument("--width", type=int, choices=WIDTHS, action="append")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in args.only or panel_states.ALL:
            for width in args.width or WIDTHS:
                _shoot(name, width, args.out)
    except NotFoundError as error:
        sys.stderr.write(f"error: {error.message}\nnext: {error.hint}\n")
        return error.exit_code
    return 0


def _shoot(name: str, width: int, out: Path) -> None:
    with panel_page.browser() as browser:
        for dark in (False, True):
            page = panel_page.open_page(browser, width=width, height=1000, dark=dark)
            page.clock.set_fixed_time(panel_states.NOW)
            panel_page.show(page, panel_states.state(name), live=False)
            page.wait_for_timeout(800)  # curves are drawn in a frame of their own
            path = out / f"{name}-{width}-{'dark' if dark else 'light'}.png"
            panel = page.get_by_test_id("panel")
            box = panel.bounding_box()
            assert box is not None
            clip = {**box, "height": min(box["height"], HEIGHT_MAX)}
            page.screenshot(path=str(path), clip=clip, full_page=True)
            sys.stdout.write(f"{path} {path.stat().st_size >> 10} KiB\n")
            page.close()


if __name__ == "__main__":
    sys.exit(main())
