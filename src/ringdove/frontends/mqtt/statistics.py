"""What the gateway counts, and tells under $SYS."""

from __future__ import annotations

from ringdove.version import __version__


class Statistics:
    """Counters since the start."""

    __slots__ = (
        "bytes_in", "bytes_out", "connections", "messages_in", "messages_out", "refused",
        "retained", "sessions", "subscriptions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.messages_out = 0
        self.refused = 0
        #: How many there are now.
        self.connections = 0
        self.sessions = 0
        self.subscriptions = 0
        self.retained = 0

    def topics(self, uptime_s: int, dropped: int) -> dict[str, str]:
        """Values by topic, by the names that monitoring tools know from other servers."""
        values: dict[str, object] = {
            "version": f"ringdove {__version__}",
            "uptime": f"{uptime_s} seconds",
            "clients/connected": self.connections,
            "clients/total": self.sessions,
            "clients/disconnected": max(0, self.sessions - self.connections),
            "subscriptions/count": self.subscriptions,
            "retained messages/count": self.retained,
            "messages/received": self.messages_in,
            "messages/sent": self.messages_out,
            "publish/messages/dropped": dropped,
            "connections/refused": self.refused,
            "bytes/received": self.bytes_in,
            "bytes/sent": self.bytes_out,
        }
        return {f"$SYS/broker/{name}": str(value) for name, value in values.items()}
