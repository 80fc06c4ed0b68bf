"""Pages put into one another: a net without substitutions.

A place or transition of a page inside is named after its substitution: `Broker.Get_Msg`. A port is
the place that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from ringdove.models.petri.net import Net, Page, Place, Transition


@dataclass(frozen=True, slots=True)
class FlatNet:
    """Places and transitions by their whole names."""

    places: dict[str, Place]
    transitions: dict[str, Transition]


def flatten(net: Net) -> FlatNet:
    """All pages as one; a name that leads nowhere is refused."""
    flat = FlatNet({}, {})
    _put(flat, net.page, "", {})
    for transition in flat.transitions.values():
        ends = [arc.place for arc in transition.takes] + [arc.place for arc in transition.gives]
        for place in ends:
            if place not in flat.places:
                raise InvalidArgument(f"{transition.name} has an arc to no place: {place}.")
    known = {colours.name for colours in net.colours}
    for name, held in flat.places.items():
        if held.colours not in known:
            raise InvalidArgument(f"{name} is of no colour set: {held.colours}.")
    return flat


def _put(flat: FlatNet, page: Page, prefix: str, sockets: dict[str, str]) -> None:
    names = {}
    for place in page.places:
        if place.port and prefix:
            if place.name not in sockets:
                raise InvalidArgument(f"Port {place.name} of {page.name} stands for no place.")
            names[place.name] = sockets[place.name]
        else:
            names[place.name] = prefix + place.name
            flat.places[prefix + place.name] = place
    for transition in page.transitions:
        flat.transitions[prefix + transition.name] = replace(
            transition,
            name=prefix + transition.name,
            takes=[replace(arc, place=names.get(arc.place, arc.place)) for arc in transition.takes],
            gives=[replace(arc, place=names.get(arc.place, arc.place)) for arc in transition.gives],
        )
    for part in page.substitutions:
        inner = {port: names.get(socket, socket) for port, socket in part.sockets.items()}
        _put(flat, part.page, f"{prefix}{part.name}.", inner)
