"""A forest plot as SVG, by hand: each arm's gain over the control, its interval, and the line at nothing gained."""

from __future__ import annotations

from xml.sax.saxutils import escape

from run_control.studies.figures import Figures

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 720, 36, 190, 30, 34
_COLOURS = {"pass": "#1a7f37", "fail": "#b42318"}


def forest(found: Figures) -> str:
    """Readable in any browser and in a repository's preview; no script, no font of its own."""
    rows = [item for item in found.against if item.gain is not None and None not in item.interval]
    ends = [0.0, *(value for item in rows for value in item.interval if value is not None)]
    low, high = min(ends), max(ends)
    room = (high - low or 1.0) * 0.08
    low, high = low - room, high + room

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    height = _TOP + _ROW * max(1, len(rows)) + 40
    control = found.against[0].control if found.against else ""
    body = [
        f'<text x="{_LEFT}" y="18">gain in {escape(found.metric)} over {escape(control)}</text>',
        f'<path d="M{x(0):.1f} {_TOP - 6}V{height - 34}" stroke="#888" stroke-dasharray="4 3"/>',
    ]
    for number, item in enumerate(rows):
        y = _TOP + _ROW * number + _ROW / 2
        ends_at = [x(value) for value in item.interval if value is not None]
        colour = _COLOURS.get(item.verdict, "#555")
        body += [
            f'<text x="{_LEFT - 12}" y="{y + 5:.1f}" text-anchor="end">{escape(item.arm)}</text>',
            f'<path d="M{ends_at[0]:.1f} {y:.1f}H{ends_at[1]:.1f}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{x(item.gain or 0.0):.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
        ]
    for value in (low + room, 0.0, high - room):
        body.append(f'<text x="{x(value):.1f}" y="{height - 14}" text-anchor="middle" fill="#555">{value:+.3f}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    style = 'font-family="sans-serif" font-size="14"><rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([f"{head} {style}", *body, "</svg>", ""])
