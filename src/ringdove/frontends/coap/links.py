"""Resource discovery (RFC 6690): what there is, as links with attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable


class Link(NamedTuple):
    """A resource."""

    href: str
    attributes: dict[str, str]

    def __str__(self) -> str:
        # An attribute without a value, such as `obs`, is a name alone.
        told = [f'{name}="{value}"' if value else name for name, value in self.attributes.items()]
        return ";".join([f"<{self.href}>", *told])


def queue_links(names: Iterable[str]) -> list[Link]:
    """The resources of queues, and the list of them."""
    links = [Link("/q", {"rt": "ringdove.queues", "ct": "40"})]
    for name in names:
        path = f"/q/{quote(name, safe='')}"
        links.append(Link(path, {"rt": "ringdove.queue", "obs": ""}))
        links.append(Link(f"{path}/last", {"rt": "ringdove.last", "obs": ""}))
    return links


def select(links: list[Link], query: list[tuple[str, str]]) -> str:
    """Those that have what the query asks for, in link format; `*` at the end means any end."""
    asked = [(name, value) for name, value in query if name != "token"]
    return ",".join(str(link) for link in links if all(_has(link, *pair) for pair in asked))


def _has(link: Link, name: str, wanted: str) -> bool:
    found = link.href if name == "href" else link.attributes.get(name)
    if found is None:
        return False
    if wanted.endswith("*"):
        return found.startswith(wanted[:-1])
    return found == wanted
