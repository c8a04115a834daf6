"""The latency distributions as one SVG picture: how many calls were done within a time, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ringfence.bench.series import Series

_WIDTH, _HEIGHT = 900, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 300, 30, 50
_COLOURS = ("#666666", "#0b6e4f", "#c8553d", "#2d5d9f", "#8a4f9e", "#b8860b", "#148f9c", "#a03060")


def plot(series: Sequence[Series]) -> str:
    """Return the picture of `series`, or of an empty axis when there is nothing to show."""
    times = [seconds for one in series for seconds in one.seconds if seconds > 0]
    low = math.floor(math.log10(min(times, default=1e-3)))
    high = max(math.ceil(math.log10(max(times, default=1e-1))), low + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18">calls done within a time (ms, logarithmic)</text>',
        *_grid(low, high),
    ]
    for number, one in enumerate(series):
        parts += _curve(one, _COLOURS[number % len(_COLOURS)], number, low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(low: int, high: int) -> list[str]:
    parts = []
    for power in range(low, high + 1):
        x = _x(10.0**power, low, high)
        parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{10.0**power * 1000:g}</text>')
    for percent in (0, 25, 50, 75, 99):
        y = _y(percent / 100)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    return parts


def _curve(series: Series, colour: str, number: int, low: int, high: int) -> list[str]:
    steps = [step / 200 for step in range(201)]
    points = " ".join(f"{_x(series.quantile(share), low, high):.1f},{_y(share):.1f}" for share in steps)
    y = _TOP + 14 + 18 * number
    label = escape(f"{series.name} (p50 {series.p50 * 1000:.2f} ms)")
    return [
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<rect x="{_WIDTH - _RIGHT + 16}" y="{y - 9}" width="12" height="4" fill="{colour}"/>',
        f'<text x="{_WIDTH - _RIGHT + 34}" y="{y}">{label}</text>',
    ]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _x(seconds: float, low: int, high: int) -> float:
    share = (math.log10(max(seconds, 10.0**low)) - low) / (high - low)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
