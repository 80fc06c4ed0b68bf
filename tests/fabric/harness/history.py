"""What a trial of a fabric writes down: every operation and its outcome, every fault.

A history is plain data: it can be kept in a file, and judged (verdict.py) without the system that
it tells of. Times are seconds since the trial began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

#: ok: acknowledged. failed: refused, with the promise that nothing was stored. unknown: there was
#: an error, or no answer, and the operation may have happened.
Outcome = Literal["ok", "failed", "unknown"]

#: Number of the stripe and offset: a message's place for ever.
Place = tuple[int, int]


class Send(msgspec.Struct):
    """A message that was sent; a sender may have tried several times."""

    queue: str
    sender: str
    body: str
    invoked_s: float
    key: str = ""
    ended_s: float = 0.0
    outcome: Outcome = "unknown"
    #: Where the answer says that it is; none when that is not told.
    place: Place | None = None
    #: What came instead of an answer, at every attempt that failed, and when.
    errors: list[tuple[float, str]] = []


class Delivery(msgspec.Struct):
    """A message that was received."""

    queue: str
    receiver: str
    body: str
    place: Place
    #: When the receiver had asked, when it came, and when it was acknowledged, if that was answered.
    asked_s: float
    came_s: float
    done_s: float | None = None


class Row(msgspec.Struct, array_like=True):
    """A message in a queue's log."""

    place: Place
    body: str
    key: str = ""


class Fault(msgspec.Struct):
    """Something that was broken, from when until when."""

    kind: str
    target: str
    from_s: float
    to_s: float = 0.0


class Promise(msgspec.Struct, frozen=True):
    """What a queue promises, as far as its settings decide it."""

    exactly_once: bool = False
    by_key: bool = False


class History(msgspec.Struct):
    """Everything that the judge is told."""

    seed: int = 0
    promises: dict[str, Promise] = {}
    faults: list[Fault] = []
    sends: list[Send] = []
    deliveries: list[Delivery] = []
    #: What is stored in the end, done or not, stripe by stripe.
    logs: dict[str, list[Row]] = {}
    #: Whatever went wrong with the trial itself.
    troubles: list[str] = []

    def save(self, path: Path, **more: Any) -> None:
        """Keep it in a file, with what else belongs to the trial."""
        told = {**more, "history": msgspec.to_builtins(self)}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1))

    @classmethod
    def load(cls, path: Path) -> History:
        """A history that was kept."""
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(raw["history"], type=cls)
