"""Plots as SVG text, coloured by the style sheet of the page they stand in (page.py)."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 30
_TICKS = 5

#: Few bars need not fill the picture.
_BAR_MAX = 60

#: With more points than this, single ones are not marked.
_MARKS_MAX = 120


class Series(NamedTuple):
    """A line; where there is no value it is broken."""

    label: str
    values: Sequence[float | None]


class _Scale:
    """Values as heights in the picture."""

    def __init__(self, values: Sequence[float], *, log: bool) -> None:
        self.log = log
        if log:
            found = [math.log10(value) for value in values if value > 0] or [0.0]
            low, high = math.floor(min(found)), math.ceil(max(found))
            step = max(1, math.ceil((high - low) / _TICKS))
            self.ticks = [10.0**power for power in range(low, max(high, low + 1) + 1, step)]
            self._low, self._high = float(low), float(max(high, low + 1))
        else:
            self.ticks = _round_ticks(max(values, default=0.0))
            self._low, self._high = 0.0, self.ticks[-1] or 1.0

    def y(self, value: float) -> float:
        """How far down a value is drawn."""
        at = math.log10(max(value, 10.0**self._low)) if self.log else value
        share = (at - self._low) / (self._high - self._low)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)


def lines(
    label: str,
    xs: Sequence[str],
    series: Sequence[Series],
    tell: Callable[[float], str],
    *,
    log: bool = False,
) -> str:
    """Lines over places that are named in order; `tell` writes values."""
    values = [value for line in series for value in line.values if value is not None]
    scale = _Scale(values, log=log)
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(xs) - 1)
    places = [_LEFT + step * at if len(xs) > 1 else (_LEFT + _WIDTH) / 2 for at in range(len(xs))]
    parts = [_grid(scale, tell), _names(places, xs)]
    for number, line in enumerate(series):
        points = list(zip(xs, places, line.values, strict=True))
        path = _path([(x, None if v is None else scale.y(v)) for _, x, v in points])
        parts.append(f'<path class="line c{number}" d="{path}"/>')
        if len(xs) <= _MARKS_MAX:
            parts += [
                f'<circle class="dot c{number}" cx="{x:.1f}" cy="{scale.y(v):.1f}" r="2.6">'
                f"<title>{escape(f'{name} {line.label}: {tell(v)}')}</title></circle>"
                for name, x, v in points
                if v is not None
            ]
    return _figure(label, "".join(parts), [line.label for line in series])


def bars(
    label: str, xs: Sequence[str], values: Sequence[float], tell: Callable[[float], str]
) -> str:
    """Bars over names."""
    scale = _Scale(values, log=False)
    step = min(_BAR_MAX, (_WIDTH - _LEFT - _RIGHT) / max(1, len(xs)))
    places = [_LEFT + step * (at + 0.5) for at in range(len(xs))]
    parts = [_grid(scale, tell), _names(places, xs)]
    floor = scale.y(0)
    for name, x, value in zip(xs, places, values, strict=True):
        top = scale.y(value)
        parts.append(
            f'<rect class="bar" x="{x - 0.38 * step:.1f}" y="{top:.1f}" width="{0.76 * step:.1f}" '
            f'height="{max(0.0, floor - top):.1f}" rx="2">'
            f"<title>{escape(f'{name}: {tell(value)}')}</title></rect>"
        )
    return _figure(label, "".join(parts), [])


def _figure(label: str, content: str, legend: Sequence[str]) -> str:
    keys = "".join(
        f'<span><i class="key c{number}"></i>{escape(name)}</span>'
        for number, name in enumerate(legend)
    )
    return (
        f"<figure><figcaption>{escape(label)}<small>{keys}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg></figure>"
    )


def _grid(scale: _Scale, tell: Callable[[float], str]) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{scale.y(tick):.1f}" '
        f'y2="{scale.y(tick):.1f}"/><text class="y" x="{_LEFT - 8}" y="{scale.y(tick) + 4:.1f}">'
        f"{escape(tell(tick))}</text>"
        for tick in scale.ticks
    )


def _names(places: Sequence[float], names: Sequence[str]) -> str:
    """Names below the picture, as many as have room."""
    room = max(1, max((len(name) for name in names), default=1) * 7 + 10)
    every = max(1, math.ceil(room * len(names) / (_WIDTH - _LEFT - _RIGHT)))
    return "".join(
        f'<text class="x" x="{places[at]:.1f}" y="{_HEIGHT - 10}">{escape(names[at])}</text>'
        for at in range(0, len(names), every)
        if places[at] + room / 2 - 5 <= _WIDTH
    )


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    words = []
    drawing = False
    for x, y in points:
        if y is not None:
            words.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = y is not None
    return " ".join(words)


def _round_ticks(most: float) -> list[float]:
    """Round values from 0 to beyond the largest."""
    if most <= 0:
        return [0.0]
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]
