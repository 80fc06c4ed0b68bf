"""Which nodes are on this machine: a controller prefers those (T3.6)."""

from __future__ import annotations

import socket
from functools import cache


class Near:
    """Tells hosts of this machine from others."""

    def __init__(self, hosts: frozenset[str] | None) -> None:
        """With `hosts` those, and no others; else every host whose address this machine has."""
        self._hosts = hosts

    def has(self, host: str) -> bool:
        """Whether a host is this machine."""
        return host in self._hosts if self._hosts is not None else _is_own(host)


@cache
def _is_own(host: str) -> bool:
    """Whether one can listen on a host's address here."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
