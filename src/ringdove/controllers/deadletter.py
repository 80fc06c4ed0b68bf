"""Dead letters: messages that were received too often, or buried by a receiver.

Moving is two steps on every store, because the target may live elsewhere: append to the dead-letter
queue under a message id made from (stripe, epoch, offset), then acknowledge at the source. A crash
in between repeats the first step, which the id makes harmless. Redrive is the same in the other
direction.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.controllers.dequeue import Dequeuer, raise_refusals
from ringdove.controllers.sending import Outgoing, Sender
from ringdove.core import attributes as encoding
from ringdove.errors import (
    InvalidArgument,
    LocalProtocolError,
    MessageTooLarge,
    QueueNotFound,
    RemoteProtocolError,
    RingdoveError,
)
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.controllers.catalog import Catalog, QueueInfo
    from ringdove.controllers.visiting import Received
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block
    from ringdove.core.receipt import Receipt

#: Attributes that a dead letter carries besides its own.
PREFIX = "ringdove.dead."
SOURCE = f"{PREFIX}queue"
REASON = f"{PREFIX}reason"
AT_MS = f"{PREFIX}at_ms"
#: Where it was first stored (stripe and offset, as bytes), and how often it was received there.
ORIGIN = f"{PREFIX}origin"
RECEIVES = f"{PREFIX}receives"
#: The sender's attributes, encoded as in a block, if there are too many to stand beside these.
OWN = f"{PREFIX}own"

#: Why a letter is refused, whatever becomes of others.
_OF_THE_LETTER = (InvalidArgument, LocalProtocolError, MessageTooLarge)

#: Messages that a redrive moves per step.
_REDRIVE_STEP = 1_000


_log = logging.getLogger(__name__)


class DeadLetters:
    """Moves messages to dead-letter queues and back."""

    def __init__(self, catalog: Catalog, sender: Sender, dequeuer: Dequeuer) -> None:
        self._catalog = catalog
        self._sender = sender
        self._dequeuer = dequeuer
        dequeuer.on_dead = self._received_too_often

    async def _received_too_often(self, info: QueueInfo, dead: list[Received]) -> None:
        """Move what is dead; what cannot be moved now is tried again when its lease has ended.

        Whoever receives came for other messages, and gets them all the same.
        """
        for received in dead:
            reason = f"received {received.receives - 1} times without acknowledgement"
            blocks = received.delivered.blocks
            try:
                await self._move(info, received.receipt, blocks, reason, received.receives - 1)
            except RingdoveError as error:
                _log.warning(
                    "A dead letter of queue %r does not get to %r: %s",
                    info.name, info.settings.dead_letter, error,
                )  # fmt: skip
                if not isinstance(error, _OF_THE_LETTER):
                    return  # The others would not get there either.

    async def bury(self, queue: str, receipt: Receipt, blocks: list[Block], reason: str) -> None:
        """Move leased messages to the dead-letter queue at once."""
        info = await self._catalog.get(queue)
        if info.settings.dead_letter is None:
            raise InvalidArgument(
                f"Queue {queue!r} has no dead-letter queue to bury messages in; "
                "set 'dead_letter' to the name of one."
            )
        await self._move(info, receipt, blocks, reason)

    async def _move(
        self,
        info: QueueInfo,
        receipt: Receipt,
        blocks: list[Block],
        reason: str,
        receives: int = 0,
    ) -> None:
        target = info.settings.dead_letter
        if target is None:
            return
        now_ms = self._sender.now_ms()
        extra = {SOURCE: info.name, REASON: reason, AT_MS: now_ms}

        def explain(own: Attributes, place: bytes) -> Attributes:
            before = own.get(RECEIVES)
            total = receives + (before if isinstance(before, int) else 0)
            told = {ORIGIN: place, **own, **extra, RECEIVES: total}
            if len(told) <= limits.ATTRIBUTES_MAX:
                return told
            notes = {name: told[name] for name in told if name.startswith(PREFIX)}
            return {**notes, OWN: encoding.encode(_own(own, place))}

        for block in blocks:
            await self._copy(target, receipt, block, explain)
        raise_refusals(await self._dequeuer.acknowledge([receipt]))

    async def redrive(
        self,
        queue: str,
        target: str | None = None,
        max: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        may_go: Callable[[str], bool] | None = None,
    ) -> int:
        """Send the dead letters in `queue` back to where each came from, or all to `target`.

        What a letter says of its origin is only its word: `may_go` says whether to believe it.
        """
        left = max
        moved = 0
        while left is None or left > 0:
            want = _REDRIVE_STEP if left is None else min(left, _REDRIVE_STEP)
            batch = await self._dequeuer.receive(queue, max=want)
            if not batch:
                break
            for position, received in enumerate(batch):
                try:
                    count = await self._send_back(queue, received, target, may_go)
                except BaseException as error:  # Nobody has received what is left of it.
                    left_over = [rest.receipt for rest in batch[position:]]
                    if isinstance(error, Exception):
                        await self._dequeuer.unlease(left_over)
                    else:
                        self._dequeuer.begin_to_unlease(left_over)
                    raise
                moved += count
                left = None if left is None else left - count
            if on_progress is not None:
                on_progress(moved)
        return moved

    async def _send_back(
        self,
        queue: str,
        received: Received,
        target: str | None,
        may_go: Callable[[str], bool] | None,
    ) -> int:
        for block in received.delivered.blocks:
            for position, attributes in enumerate(block.attributes()):
                home = target or attributes.get(SOURCE)
                believed = isinstance(home, str) and (may_go is None or may_go(home))
                if not isinstance(home, str) or home == queue or not believed:
                    raise QueueNotFound(
                        f"A message in {queue!r} does not say which other queue it came from; "
                        "name the target."
                    )
                single = block.slice(position, position + 1)
                receipt = received.receipt._replace(lo=single.base, hi=single.end)
                await self._copy(home, receipt, single, _own)
                raise_refusals(await self._dequeuer.acknowledge([receipt]))
        return received.receipt.hi - received.receipt.lo

    async def _copy(
        self,
        queue: str,
        receipt: Receipt,
        block: Block,
        change: Callable[[Attributes, bytes], Attributes],
    ) -> None:
        stripe = StripeId(receipt.queue, receipt.number, receipt.level)
        origin = stripe.key() + receipt.epoch.to_bytes(4, "big")
        await self._sender.send(
            queue,
            Outgoing(
                bodies=block.bodies(),
                keys=block.keys() if block.keyed else None,
                attributes=[
                    change(own, stripe.place(block.base + position))
                    for position, own in enumerate(block.attributes())
                ],
                ids=[origin + o.to_bytes(8, "big") for o in range(block.base, block.end)],
                sent_ms=block.sent_times_ms(),
            ),
        )


def _own(attributes: Attributes, _place: bytes) -> Attributes:
    """The attributes that the sender gave."""
    packed = attributes.get(OWN)
    if isinstance(packed, bytes):
        with suppress(RemoteProtocolError):  # A sender's own, of that name.
            encoding.check(packed)
            return encoding.decode(packed)
    return {name: value for name, value in attributes.items() if not name.startswith(PREFIX)}
