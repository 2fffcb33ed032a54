"""Charts as SVG text: lines over a number, stacked bars. They take their colours from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 34
_TICKS = 4
_LARGEST = 1e300
"""What is above it is not drawn, and what is apart by less than its inverse is in one place."""
NUM_COLOURS = 8
"""Series have the classes ``c0`` to ``c7``; later ones begin again."""


def number(value: float) -> str:
    """A number for an axis: three digits that matter."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"  # .3g makes 1e+03 of 1,000.


def seconds(value: float) -> str:
    """A duration for a reader, in the unit that suits it."""
    if value == 0:
        return "0 s"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(value: float) -> str:
    """Bytes for a reader, in the unit that suits them."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def lines(
    series: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    format_y: Callable[[float], str] = number,
    marks: Points = (),
    mark_label: str = "",
    from_zero: bool = True,
) -> str:
    """A line for each series; nothing if no point can be drawn.

    Args:
        series: By name, ``(x, y)`` in order of x. What is not finite, or above 1e300, is left out.
        title: What it shows, for those who cannot see it.
        x_label: Of the axis.
        format_y: Writes the numbers of the other axis.
        marks: Single points to point out.
        mark_label: What they are.
        from_zero: Whether the axis of y begins at 0 at the latest.
    """
    kept = {name: [p for p in points if _drawn(p)] for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return ""
    shown = [point for points in kept.values() for point in points] + list(filter(_drawn, marks))
    xs, ys = [x for x, _ in shown], [y for _, y in shown]
    scale = _Scale(xs, [0.0, *ys] if from_zero else ys)
    parts = scale.axes(x_label, format_y)
    for index, points in enumerate(kept.values()):
        parts.append(_line(scale, points, index % NUM_COLOURS))
    for x, y in filter(_drawn, marks):
        at_x, at_y = scale.at(x, y)
        shape = f"M{at_x:.1f} {at_y - 5:.1f}l5 9h-10z"
        tip = f"{mark_label}, {x_label} {number(x)}: {format_y(y)}"
        parts.append(f'<path class="mark" d="{shape}"><title>{escape(tip)}</title></path>')
    names = [(f"c{i % NUM_COLOURS}", name) for i, name in enumerate(kept)]
    if marks:
        names.append(("mark", mark_label))
    return _figure(title, _HEIGHT, parts) + legend(names if len(names) > 1 else [])


def stacked(
    rows: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    format_value: Callable[[float], str] = seconds,
) -> str:
    """A bar for each row, made of its parts; nothing if all are empty.

    Args:
        rows: By name, the parts in the same order, none below 0.
        title: What it shows, for those who cannot see it.
        format_value: Writes a part's value.
    """
    longest = max((sum(parts.values()) for parts in rows.values()), default=0.0)
    if not longest > 0:
        return ""
    drawn, top = [], 8
    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    for name, parts in rows.items():
        x = float(_LEFT)
        drawn.append(f'<text class="end" x="{_LEFT - 8}" y="{top + 14}">{escape(name)}</text>')
        for part, value in parts.items():
            width = value / longest * (_WIDTH - _LEFT - _RIGHT)
            colour = names.index(part) % NUM_COLOURS
            tip = escape(f"{name}, {part}: {format_value(value)}")
            drawn.append(
                f'<rect class="c{colour}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="20">'
                f"<title>{tip}</title></rect>"
            )
            x += width
        top += 28
    keys = [(f"c{index % NUM_COLOURS}", name) for index, name in enumerate(names)]
    return _figure(title, top, drawn) + legend(keys)


def legend(names: Sequence[tuple[str, str]]) -> str:
    """What the colours mean, as ``(class, name)``."""
    if not names:
        return ""
    keys = (f'<li><i class="{colour}"></i>{escape(name)}</li>' for colour, name in names)
    return f'<ul class="legend">{"".join(keys)}</ul>'


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many points: of neighbours the highest stays, so that no peak is lost."""
    step = math.ceil(len(points) / most) if points else 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]


class _Scale:
    """Numbers to places in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.xs, self.ys = _round_numbers(xs), _round_numbers(ys)
        self.left, self.right = min(xs), min(xs) + _span(xs)
        self.low, self.high = self.ys[0], self.ys[0] + _span(self.ys)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.left) / (self.right - self.left)
        up = (y - self.low) / (self.high - self.low)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    def axes(self, x_label: str, format_y: Callable[[float], str]) -> list[str]:
        parts = []
        for value in self.ys:
            _, y = self.at(self.left, value)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
            text = escape(format_y(value))
            parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{text}</text>')
        for value in self.xs:
            if self.left <= value <= self.right:
                x, _ = self.at(value, self.low)
                text = escape(number(value))
                parts.append(f'<text class="middle" x="{x:.1f}" y="{_HEIGHT - 18}">{text}</text>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(
            f'<text class="middle" x="{middle}" y="{_HEIGHT - 3}">{escape(x_label)}</text>'
        )
        return parts


def _span(values: Sequence[float]) -> float:
    """From the smallest value to the largest; above 0 where they are hardly apart."""
    low = min(values)
    apart, near = max(values) - low, abs(low) * 1e-6
    if apart > max(near * 1e-3, 1 / _LARGEST):
        return apart
    return near if near > 1 / _LARGEST else 1.0


def _round_numbers(values: Sequence[float]) -> list[float]:
    """Numbers such as a ruler has, from below the smallest value to above the largest."""
    low = min(values)
    high = low + _span(values)
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.floor(low / step)
    count = math.ceil(high / step - first - 1e-9)
    return [(first + i) * step for i in range(count + 1)]


def _line(scale: _Scale, points: Points, colour: int) -> str:
    places = [scale.at(x, y) for x, y in points]
    if len(places) == 1:
        x, y = places[0]
        return f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="c{colour}" points="{text}"/>'


def _figure(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _drawn(point: tuple[float, float]) -> bool:
    return all(abs(value) <= _LARGEST for value in point)
