"""The picture of training steps: by model a bar for each contestant, PyTorch eager a line at 1."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
_COLOURS = {
    "inductor": "#d9a441",
    "trcomp": "#2f7d4f",
    "trcomp-compile": "#7fc096",
    "torch_xla": "#b4552d",
    "openxla": "#dd9a7b",
    "flax": "#5b7db1",
}
_WIDTH, _LEFT, _UNIT, _BAR = 720, 170, 160, 11
_LONGEST = 3.0
"""Bars beyond are cut; their number says how long they are."""


def picture(rows: Sequence[Row]) -> str:
    """Ratios of step times to PyTorch eager's, as SVG."""
    names = [name for name in _COLOURS if any(name in row["peers"] for row in rows)]
    parts, top = _legend(names), 34
    for row in rows:
        peers = [name for name in names if "ratio" in row["peers"].get(name, {})]
        middle = top + len(peers) * _BAR / 2 + 4
        label = f'text-anchor="end">{escape(row["model"])}</text>'
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" {label}')
        for name in peers:
            parts += _bar(row["peers"][name]["ratio"], top, _COLOURS[name])
            top += _BAR
        top += 8
    line = _LEFT + _UNIT
    parts += [
        f'<line x1="{line}" y1="28" x2="{line}" y2="{top}" stroke="black" stroke-dasharray="4"/>',
        f'<text x="{line}" y="{top + 16}" text-anchor="middle">PyTorch eager = 1</text>',
        f'<text x="{line + 110}" y="{top + 16}">time of a training step; shorter is faster</text>',
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 26}" '
        'font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for place, name in enumerate(names):
        x = 20 + 115 * place
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{_COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 15}" y="17">{escape(name)}</text>')
    return parts


def _bar(ratio: float, top: int, colour: str) -> list[str]:
    length = min(ratio, _LONGEST) * _UNIT
    return [
        f'<rect x="{_LEFT}" y="{top}" width="{length:.0f}" height="{_BAR - 2}" fill="{colour}"/>',
        f'<text x="{_LEFT + length + 5:.0f}" y="{top + 9}" font-size="10">{ratio:.2f}</text>',
    ]
