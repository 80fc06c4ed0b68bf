"""What a fleet is told to do."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from ringdove.errors import InvalidArgument

Protocol = Literal["mqtt", "coap", "http", "native"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)

#: Schemes of URLs that devices connect to, with the ports that they stand for.
SCHEMES = {"mqtt": 1883, "coap": 5683, "http": 9324, "ringdove": 7117}
_SCHEME_OF = {"mqtt": "mqtt", "coap": "coap", "http": "http", "native": "ringdove"}

#: Devices of one fleet: each has a connection of its own, and a machine has 65,536 ports.
DEVICES_MAX = 50_000


class Plan(NamedTuple):
    """A fleet, as a value; the same plan makes the same readings at the same intervals."""

    devices: int = 1_000
    protocol: Protocol = "mqtt"
    #: Readings per second of one device.
    rate: float = 0.1
    #: Seconds for which devices make readings; what they have then is still delivered.
    seconds: float = 10.0
    #: Where they connect: mqtt://HOST:PORT, coap://, http:// or ringdove://.
    url: str = ""
    queue: str = "readings"
    #: Topic of MQTT, {queue} and {device} put in; empty for the one that stands for the queue.
    topic: str = ""
    #: How far an interval may be from the mean, as a share of it.
    jitter: float = 0.2
    #: Share of readings after which a device loses its connection.
    drop: float = 0.0
    seed: int = 1
    #: The server's token, or KEY:SECRET of an account.
    token: str | None = None

    @property
    def period_s(self) -> float:
        """Seconds between two readings of a device, on average."""
        return 1 / self.rate

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that devices connect to."""
        place = urlsplit(self.url)
        return place.hostname or "127.0.0.1", place.port or SCHEMES[place.scheme]


def check(plan: Plan) -> Plan:
    """The plan, or InvalidArgument saying what is wrong with it."""
    if plan.protocol not in PROTOCOLS:
        raise InvalidArgument(f"protocol is {plan.protocol!r}; it must be one of {PROTOCOLS}.")
    if not 1 <= plan.devices <= DEVICES_MAX:
        raise InvalidArgument(f"devices is {plan.devices}; it must be 1 to {DEVICES_MAX}.")
    for name in ("rate", "seconds"):
        if not getattr(plan, name) > 0:
            raise InvalidArgument(f"{name} is {getattr(plan, name)}; it must be above 0.")
    for name in ("jitter", "drop"):
        if not 0 <= getattr(plan, name) <= 1:
            raise InvalidArgument(f"{name} is {getattr(plan, name)}; it must be 0 to 1.")
    scheme = _SCHEME_OF[plan.protocol]
    if urlsplit(plan.url).scheme != scheme:
        raise InvalidArgument(
            f"Devices that speak {plan.protocol} need a URL such as "
            f"{scheme}://127.0.0.1:{SCHEMES[scheme]}, not {plan.url!r}."
        )
    return plan
