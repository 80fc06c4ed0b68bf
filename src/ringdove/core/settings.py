"""The settings of a queue: every trade-off is a visible dial.

A `QueueSettings` is always valid: it can be made only through `make` or `decode`, which refuse
values that are out of range, and combinations that make no sense, with the reason. Stores keep the
settings with a version; a call that carries an older version is refused and the caller reads them
again.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from ringdove import limits
from ringdove.errors import InvalidArgument, SettingsRefused

Order = Literal["loose", "key", "strict"]
Delivery = Literal["at-least-once", "exactly-once"]
Durability = Literal["disk", "memory"]
Dequeue = Literal["wake", "retry", "monitor", "poll"]
WhenFull = Literal["refuse", "drop-oldest"]
WhenShort = Literal["degrade", "refuse"]
RelayDone = Literal["stored", "consumed"]
Spread = int | Literal["infinite", "auto"]

_DAY_MS = 24 * 3600 * 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _told(text: str) -> Meta:
    """What a setting means, said once: to readers here, in the OpenAPI and in the console."""
    return Meta(description=text)


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose about one queue. The defaults suit a fleet that must not lose data."""

    order: Annotated[
        Order,
        _told(
            "loose: best effort over all stripes; key: a key's messages stay in order and are "
            "leased to one receiver at a time; strict: one stripe, one lease at a time."
        ),
    ] = "loose"
    delivery: Annotated[
        Delivery, _told("exactly-once drops what its producer, or its message id, has sent before.")
    ] = "at-least-once"
    spread: Annotated[
        Spread,
        _told("A receive picks at random among this many of the oldest messages (the K hint)."),
    ] = 1
    durability: Annotated[
        Durability,
        _told(
            "disk: a send is acknowledged when it is synced to disk; memory: when the operating "
            "system has it."
        ),
    ] = "disk"
    copies: Annotated[
        int,
        _told(
            "On a fabric: copies that must have a message before it is acknowledged and may be "
            "seen."
        ),
    ] = 3
    when_short: Annotated[
        WhenShort,
        _told(
            "While fewer copies can be reached, degrade takes all of those but at least two; "
            "refuse takes no message."
        ),
    ] = "degrade"
    stripes: Annotated[int, _told("Physical queues that share the load of this one.")] = 1
    lease_ms: Annotated[
        int, _told("How long a received message stays hidden from other receivers.")
    ] = 30_000
    delay_ms: Annotated[int, _told("How long a sent message waits before it can be received.")] = 0
    retention_ms: Annotated[int, _told("How long a message is kept if nobody takes it.")] = (
        4 * _DAY_MS
    )
    keep_done_ms: Annotated[
        int, _told("How long a message that is done stays readable for replay.")
    ] = 0
    receives_max: Annotated[
        int | None,
        _told(
            "Receives without acknowledgement after which a message goes to the dead-letter queue."
        ),
    ] = None
    dead_letter: Annotated[str | None, _told("Name of the queue that takes dead letters.")] = None
    backoff_ms: Annotated[
        int,
        _told("First wait before a released message comes back; it doubles with every receive."),
    ] = 1_000
    backoff_ms_max: Annotated[int, _told("Longest wait before a released message comes back.")] = (
        900_000
    )
    bytes_max: Annotated[int, _told("Bytes of waiting messages.")] = limits.MAP_BYTES
    when_full: Annotated[WhenFull, _told("What happens to a send beyond bytes_max.")] = "refuse"
    body_bytes_max: Annotated[int, _told("Bytes of one body.")] = limits.BODY_BYTES_MAX_DEFAULT
    priority: Annotated[
        int, _told("Highest priority a message may have; 0 means that the queue has no priorities.")
    ] = 0
    receive_rate_max: Annotated[
        float | None, _told("Messages per second that each subscription may receive.")
    ] = None
    dequeue: Annotated[
        Dequeue,
        _told(
            "What a receive does while the queue is empty: wake holds it until something arrives;"
            " retry tries again after a pause; monitor looks at counters; poll answers at once."
        ),
    ] = "wake"
    dequeue_tries: Annotated[
        int, _told("Stripes that a receive tries before it gives up or pauses, unless it is woken.")
    ] = 3
    dequeue_pause_ms: Annotated[
        int, _told("The pause of retry (RDS's sleep time), and monitor's period.")
    ] = 100
    dedup_ms: Annotated[int, _told("How long a message id is remembered.")] = 300_000
    relay_done: Annotated[
        RelayDone,
        _told(
            "When a broker is done with a message that a broker of the next level pulls: when that "
            "one has stored it, or when it was consumed behind it."
        ),
    ] = "stored"
    relayed: Annotated[
        bool,
        _told(
            "Whether this is a copy of another broker's queue, which only a relay fills. Taking it "
            "away makes the copy a queue of its own, should the origin be lost for good."
        ),
    ] = False
    notes: Annotated[
        dict[str, str],
        _told("Free text by name: tags, and what a dialect such as SQS remembers of the queue."),
    ] = {}

    @classmethod
    def make(cls, /, **chosen: Any) -> QueueSettings:
        """Settings with `chosen` values, or SettingsRefused with every reason."""
        return _convert(chosen)

    def replace(self, /, **chosen: Any) -> QueueSettings:
        """These settings with some values changed, checked again."""
        return _convert({**msgspec.structs.asdict(self), **chosen})

    @classmethod
    def decode(cls, data: bytes) -> QueueSettings:
        """Settings from their stored form, checked like any others."""
        try:
            stored = msgspec.msgpack.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SettingsRefused(f"The stored settings cannot be read: {error}.") from error
        return _convert(stored)

    def encode(self) -> bytes:
        """The stored form."""
        return msgspec.msgpack.encode(self)

    def to_dict(self) -> dict[str, Any]:
        """All settings by name, defaults included."""
        return msgspec.structs.asdict(self)

    @property
    def ordered(self) -> bool:
        """Whether order is promised, so that a lease excludes others."""
        return self.order != "loose"

    @property
    def exactly_once(self) -> bool:
        """Whether repeated sends are dropped."""
        return self.delivery == "exactly-once"

    def backoff_after_ms(self, receives: int) -> int:
        """How long a message released for the `receives`-th time stays away."""
        doublings = min(max(receives - 1, 0), 40)
        return min(self.backoff_ms << doublings, self.backoff_ms_max)


SETTING_NAMES = tuple(field.name for field in msgspec.structs.fields(QueueSettings))

#: Settings that shape stored data and therefore cannot change while the queue holds messages.
SHAPING = ("order", "stripes", "durability", "priority")

_RANGES: dict[str, tuple[int, int]] = {
    "stripes": (1, limits.STRIPES_MAX),
    "copies": (1, 3),
    "lease_ms": (1, limits.DURATION_MS_MAX),
    "delay_ms": (0, limits.DURATION_MS_MAX),
    "retention_ms": (1, limits.DURATION_MS_MAX),
    "keep_done_ms": (0, limits.DURATION_MS_MAX),
    "receives_max": (1, 1_000_000),
    "backoff_ms": (0, limits.DURATION_MS_MAX),
    "backoff_ms_max": (0, limits.DURATION_MS_MAX),
    "bytes_max": (1, 1 << 50),
    "body_bytes_max": (1, limits.BODY_BYTES_MAX),
    "priority": (0, limits.PRIORITY_MAX),
    "dedup_ms": (1, limits.DURATION_MS_MAX),
    "dequeue_tries": (1, limits.STRIPES_MAX * (limits.PRIORITY_MAX + 1)),
    "dequeue_pause_ms": (1, limits.DURATION_MS_MAX),
}


class Described(NamedTuple):
    """What there is to know of a setting, for those who let people choose."""

    name: str
    text: str
    default: Any
    #: The words to choose from, if it is one of some; the least and the most, if it is a number.
    words: tuple[object, ...] = ()
    least: int | None = None
    most: int | None = None
    #: Whether it can change only while the queue is empty, if at all.
    shaping: bool = False


def describe() -> list[Described]:
    """Every setting, in the order of the class."""
    told = msgspec.json.schema(QueueSettings)["$defs"]["QueueSettings"]["properties"]
    return [_described(name, told[name]["description"]) for name in SETTING_NAMES]


def _described(name: str, text: str) -> Described:
    least, most = _RANGES.get(name, (None, None))
    words = _WORDS.get(name, ())
    default = getattr(QueueSettings(), name)
    return Described(name, text, default, words, least, most, name in SHAPING)


def check_name(name: str, kind: str = "queue") -> str:
    """The name itself, or InvalidArgument saying what a name may be."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > limits.NAME_CHARS_MAX:
        raise InvalidArgument(
            f"{name!r} is no {kind} name: use 1 to {limits.NAME_CHARS_MAX} letters, digits, "
            "'_', '-' or '.', starting with a letter, digit or '_'."
        )
    return name


def _convert(chosen: dict[str, Any]) -> QueueSettings:
    for name in chosen:
        if name not in SETTING_NAMES:
            near = difflib.get_close_matches(name, SETTING_NAMES, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(SETTING_NAMES)}."
            raise SettingsRefused(f"There is no setting {name!r}.{hint}")
    try:
        settings = msgspec.convert(chosen, QueueSettings)
    except msgspec.ValidationError as error:
        raise _type_refusal(chosen, error) from error
    refusals = [*_range_refusals(settings), *_combination_refusals(settings)]
    if refusals:
        raise SettingsRefused(" ".join(refusals))
    return settings


def _type_refusal(chosen: dict[str, Any], error: msgspec.ValidationError) -> SettingsRefused:
    """Name the value that has the wrong type or word, and what would be right."""
    name = str(error).rpartition("`$.")[2].rstrip("`")
    if name not in chosen:
        return SettingsRefused(f"The settings cannot be used: {error}.")
    return SettingsRefused(f"{name} is {chosen[name]!r}; it must be {_right(name)}.")


def _right(name: str) -> str:
    """What values a setting takes."""
    if name in _WORDS:
        return "one of " + ", ".join(map(repr, _WORDS[name]))
    if name in _RANGES:
        low, high = _RANGES[name]
        return f"a whole number from {low} to {high}"
    return _KINDS[name]


_WORDS: dict[str, tuple[object, ...]] = {
    "order": get_args(Order),
    "delivery": get_args(Delivery),
    "durability": get_args(Durability),
    "dequeue": get_args(Dequeue),
    "when_full": get_args(WhenFull),
    "when_short": get_args(WhenShort),
    "relay_done": get_args(RelayDone),
}

_KINDS = {
    "spread": f"1 to {limits.SPREAD_MAX}, 'infinite' or 'auto'",
    "dead_letter": "the name of a queue, or None",
    "receive_rate_max": "a number above 0, or None",
    "relayed": "True or False",
    "notes": "texts by name",
}


def _range_refusals(settings: QueueSettings) -> list[str]:
    refusals = []
    for name, (low, high) in _RANGES.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            refusals.append(f"{name} is {value}; it must be {low} to {high}.")
    if isinstance(settings.spread, int) and not 1 <= settings.spread <= limits.SPREAD_MAX:
        refusals.append(f"spread is {settings.spread}; it must be {_KINDS['spread']}.")
    rate = settings.receive_rate_max
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        refusals.append(f"receive_rate_max is {rate}; it must be above 0. None means no limit.")
    notes_bytes = sum(len(name) + len(text) for name, text in settings.notes.items())
    if notes_bytes > limits.NOTES_BYTES_MAX:
        refusals.append(f"notes have {notes_bytes} bytes; at most {limits.NOTES_BYTES_MAX} fit.")
    if settings.dead_letter is not None:
        try:
            check_name(settings.dead_letter, "dead-letter queue")
        except InvalidArgument as error:
            refusals.append(str(error))
    return refusals


def _combination_refusals(settings: QueueSettings) -> list[str]:
    refusals = []
    if settings.order == "strict" and settings.stripes > 1:
        refusals.append(
            f"order 'strict' keeps one sequence, so stripes must be 1, not {settings.stripes}; "
            "use order 'key' to spread ordered messages."
        )
    if settings.ordered and settings.priority:
        refusals.append(
            f"priority {settings.priority} would overtake, which order {settings.order!r} forbids; "
            "use order 'loose', or one queue per priority."
        )
    if settings.ordered and settings.spread != 1:
        refusals.append(
            f"spread {settings.spread!r} picks out of order, which order {settings.order!r} "
            "forbids; use spread 1, or order 'loose'."
        )
    if settings.keep_done_ms > settings.retention_ms:
        refusals.append(
            f"keep_done_ms exceeds retention_ms ({settings.keep_done_ms} > "
            f"{settings.retention_ms}), after which nothing is kept; raise retention_ms."
        )
    if settings.delay_ms >= settings.retention_ms:
        refusals.append(
            f"delay_ms reaches retention_ms ({settings.delay_ms} >= {settings.retention_ms}): "
            "messages would expire before delivery; raise retention_ms."
        )
    if settings.backoff_ms > settings.backoff_ms_max:
        refusals.append(
            f"backoff_ms exceeds backoff_ms_max ({settings.backoff_ms} > "
            f"{settings.backoff_ms_max}); raise backoff_ms_max."
        )
    if settings.body_bytes_max > settings.bytes_max:
        refusals.append(
            f"body_bytes_max exceeds bytes_max ({settings.body_bytes_max} > "
            f"{settings.bytes_max}): the largest body would never fit; raise bytes_max, or lower "
            "body_bytes_max."
        )
    return refusals
