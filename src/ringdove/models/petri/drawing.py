"""A page as SVG, drawn from the same data that runs.

Places are ellipses with their colour set below and their first tokens above; transitions are boxes
with their guard and code below, substitutions boxes with a double border. Arcs carry their
inscriptions. Nodes stand where the page says, in columns and rows.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringdove.models.petri.net import (
        Give,
        Page,
        Place,
        Position,
        Substitution,
        Take,
        Transition,
    )

_COLUMN, _ROW, _MARGIN = 190.0, 125.0, 80.0
_WIDTH, _HEIGHT = 112.0, 42.0
_STYLE = """
text { font: 11px sans-serif; text-anchor: middle; dominant-baseline: middle; }
.place { fill: #eef4ff; stroke: #1f4e9c; }
.port { stroke-dasharray: 4 2; }
.transition { fill: #fff; stroke: #222; }
.colours { fill: #1f4e9c; font-style: italic; }
.initial { fill: #1a7f37; }
.code { fill: #8a4b00; }
.arc { fill: none; stroke: #555; }
.label { fill: #222; font-size: 10px; stroke: #fff; stroke-width: 3px; paint-order: stroke; }
"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0,0L8,4L0,8z" fill="#555"/></marker></defs>'
)


def draw(page: Page) -> str:
    """The page as an SVG document; pages of its substitutions are drawn for themselves."""
    at = {place.name: _point(place.at) for place in page.places}
    at |= {transition.name: _point(transition.at) for transition in page.transitions}
    at |= {part.name: _point(part.at) for part in page.substitutions}
    width = max(x for x, _ in at.values()) + _MARGIN
    height = max(y for _, y in at.values()) + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    box = f"0 0 {width:.0f} {height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{box}">',
        f"<title>{escape(page.name)}</title><style>{_STYLE}</style>",
        _TIP,
        f'<rect {size} fill="#fff"/>',
        *_arcs(page, at, {place.name for place in page.places}),
        *(_place(place, at[place.name]) for place in page.places),
        *(_transition(transition, at[transition.name]) for transition in page.transitions),
        *(_substitution(part, at[part.name]) for part in page.substitutions),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def pages_of(page: Page) -> list[Page]:
    """The page and all pages below it, each once."""
    found = {page.name: page}
    for part in page.substitutions:
        for inner in pages_of(part.page):
            found.setdefault(inner.name, inner)
    return list(found.values())


def _point(at: Position) -> Position:
    return _MARGIN + at[0] * _COLUMN, _MARGIN + at[1] * _ROW


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _place(place: Place, at: Position) -> str:
    x, y = at
    kind = "place port" if place.port else "place"
    parts = [
        f'<ellipse cx="{x}" cy="{y}" rx="{_WIDTH / 2}" ry="{_HEIGHT / 2}" class="{kind}"/>',
        _text(x, y, place.name),
        _text(x, y + _HEIGHT / 2 + 9, place.colours, "colours"),
    ]
    if place.initial != "[]":
        parts.append(_text(x, y - _HEIGHT / 2 - 9, place.initial, "initial"))
    return "".join(parts)


def _box(x: float, y: float, inset: float = 0) -> str:
    return (
        f'<rect x="{x - _WIDTH / 2 + inset}" y="{y - _HEIGHT / 2 + inset}" '
        f'width="{_WIDTH - 2 * inset}" height="{_HEIGHT - 2 * inset}" class="transition"/>'
    )


def _transition(transition: Transition, at: Position) -> str:
    x, y = at
    code = [f"[{transition.guard}]"] if transition.guard else []
    code += [f"{name} = {value}" for name, value in transition.let.items()]
    below = y + _HEIGHT / 2 + 10
    lines = [_text(x, below + 13 * n, line, "code") for n, line in enumerate(code)]
    return "".join([_box(x, y), _text(x, y, transition.name), *lines])


def _substitution(part: Substitution, at: Position) -> str:
    x, y = at
    return _box(x, y) + _box(x, y, 4) + _text(x, y, part.name)


def _arcs(page: Page, at: dict[str, Position], places: set[str]) -> list[str]:
    """Lines between nodes; what goes both ways is one line with two tips."""
    labels: dict[tuple[str, str], list[str]] = {}
    for transition in page.transitions:
        for take in transition.takes:
            labels.setdefault((take.place, transition.name), []).append(_taken(take))
        for give in transition.gives:
            labels.setdefault((transition.name, give.place), []).append(_given(give))
    for part in page.substitutions:
        for port, socket in part.sockets.items():
            name = port if port != socket else ""
            labels.setdefault((socket, part.name), []).append(name)
            labels.setdefault((part.name, socket), [])
    lines, texts = [], []
    for (start, end), own in labels.items():
        back = labels.get((end, start))
        if back is not None and start not in places:
            continue  # It is drawn with the way there.
        (x1, y1) = _edge(at[start], at[end], round_=start in places)
        (x2, y2) = _edge(at[end], at[start], round_=end in places)
        tips = 'marker-end="url(#tip)"'
        tips += "" if back is None else ' marker-start="url(#tip)"'
        lines.append(f'<path d="M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}" class="arc" {tips}/>')
        texts += _labels((x1 + x2) / 2, (y1 + y2) / 2, [*own, *(back or [])])
    return lines + texts


def _taken(take: Take) -> str:
    by = f" | {take.by}" if take.by else ""
    return take.pattern + by + (" (early)" if take.ahead else "")


def _given(give: Give) -> str:
    text = give.value
    text += f" @+ {give.delay}" if give.delay else ""
    return f"if {give.when}: {text}" if give.when else text


def _labels(x: float, y: float, texts: list[str]) -> list[str]:
    """Inscriptions around the middle of an arc, a delay on a line of its own."""
    lines = [line for text in texts for line in text.replace(" @+", "\n@+").split("\n") if line]
    first = y - 6 * (len(lines) - 1)
    return [_text(x, first + 12 * n, line, "label") for n, line in enumerate(lines)]


def _edge(node: Position, towards: Position, *, round_: bool) -> Position:
    """Where the line to another node leaves this one."""
    dx, dy = towards[0] - node[0], towards[1] - node[1]
    across, along = dx / (_WIDTH / 2), dy / (_HEIGHT / 2)
    length = math.hypot(across, along) if round_ else max(abs(across), abs(along))
    return node[0] + dx / length, node[1] + dy / length
