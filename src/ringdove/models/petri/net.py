"""Nets as data.

Inscriptions are Python expressions in text, so that a net reads like its figure and is drawn from
the same text. They see the variables that the arcs of their transition have bound, the values that
a simulation was given, and `now`, `random()`, `exponential(rate)`.

    Place("Queue", "Msg", key="token.id")
    Transition("Get",
        takes=[Take("Visible", "id"), Take("Queue", "msg", by="id"), Take("Threads", "thread")],
        gives=[Give("Busy", "(thread, msg)", delay="exponential(service_rate)")])

A page is a net, or a part of one: a *substitution* puts a page in the place of a transition, its
*ports* being places of the page above. Inscriptions are code of this program: never build them from
what users give.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Position = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ColourSet:
    """What tokens of a place may be."""

    name: str
    type: type | tuple[type, ...]
    #: How the document declares it.
    note: str = ""

    def has(self, colour: Any) -> bool:
        """Whether a value is of this set."""
        return isinstance(colour, self.type)


@dataclass(frozen=True, slots=True)
class Place:
    """Holds tokens of one colour set."""

    name: str
    colours: str
    #: An expression for the list of tokens at the start.
    initial: str = "[]"
    #: An expression on `token`, by which arcs may ask for a token.
    key: str = ""
    #: Which token an arc gets that does not ask by key: any that fits, the one that has waited
    #: longest before others, or in random order; or only the first one, as from a list.
    pick: Literal["any", "random", "first"] = "any"
    #: Stands for a place of the page above.
    port: bool = False
    #: Where it is drawn, in columns and rows.
    at: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class Take:
    """An arc into a transition: takes a token and binds variables to it."""

    place: str
    #: A variable or a tuple of them; one that is bound already must be equal.
    pattern: str
    #: An expression of variables bound before: the key of the token.
    by: str = ""
    #: Take the token even before its time.
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Give:
    """An arc out of a transition: adds a token."""

    place: str
    value: str
    #: Seconds before it can be taken.
    delay: str = ""
    #: Add it only if this holds.
    when: str = ""
    #: Add it before those that wait.
    first: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """Takes tokens and gives tokens, at one moment."""

    name: str
    takes: list[Take]
    gives: list[Give]
    #: Fires only with tokens for which this holds.
    guard: str = ""
    #: Variables computed when it fires: the code segment.
    let: dict[str, str] = field(default_factory=dict)
    #: Of several that may fire at a moment, those with the lowest go first.
    priority: int = 0
    at: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class Substitution:
    """A page in the place of a transition."""

    name: str
    page: Page
    #: The page's ports, and the places here that they stand for.
    sockets: dict[str, str]
    at: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class Page:
    """A net, or a part of one."""

    name: str
    places: list[Place]
    transitions: list[Transition] = field(default_factory=list)
    substitutions: list[Substitution] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Observe:
    """A monitor: notes a value whenever a transition fires."""

    name: str
    transition: str
    value: str
    when: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """A monitor: how many tokens a place has over time, ready or not."""

    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Net:
    """A whole net: its top page, colour sets and monitors."""

    page: Page
    colours: list[ColourSet]
    monitors: list[Observe | Count] = field(default_factory=list)
