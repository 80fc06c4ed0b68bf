"""The receiver's end of a stream from a server (M1, M2).

Each stripe has an offset that is wanted next. A block that starts there is taken; one that came
already is dropped; when one is missing or damaged, the wanted offset is asked for again, once, and
everything until it comes is dropped. A broken connection is one way to lose blocks: after the next
welcome the stream is opened again where it stands, under a new fence. That may be another broker of
tiers: a position means the same there. One without the subscription is given it; one without the
queue is left for another; one that has trimmed the position refuses it.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ringdove import limits
from ringdove.controllers.streaming import StreamedBlock
from ringdove.errors import (
    ConnectionClosed,
    QueueNotFound,
    RemoteProtocolError,
    RingdoveError,
    SubscriptionNotFound,
)
from ringdove.pending import Pending
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import blocks_of
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import Request, SessionState, decode_error
from ringdove.stores.base import Start, StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringdove.client.link import Link
    from ringdove.protocol.frames import Frame

P = ParamSpec("P")
R = TypeVar("R")


def _locked(
    method: Callable[Concatenate[RemoteStream, P], R],
) -> Callable[Concatenate[RemoteStream, P], R]:
    """Keep the link's loop and the reader's thread out of each other's way."""

    @wraps(method)
    def locked(self: RemoteStream, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class RemoteStream:
    """See `ringdove.controllers.streaming.BlockStream`, whose methods it has.

    Frames come in on the link's loop, blocks go out in the reader's thread.
    """

    def __init__(
        self,
        link: Link,
        queue: str,
        subscription: str,
        owner: bytes,
        positions: Mapping[StripeId, int],
        lease_ms: int,
        compression: str = "none",
    ) -> None:
        self._lock = threading.RLock()
        self.fence = 0
        #: Where the stream began, and the next offset wanted, by stripe.
        self.starts: dict[StripeId, int] = dict(positions)
        self.cursors: dict[StripeId, int] = dict(positions)
        self._link = link
        self._queue = queue
        self._subscription = subscription
        self._owner = owner
        self._lease_ms = lease_ms
        self._compression = compression
        #: Blocks that came damaged and were asked for again.
        self.mismatches = 0
        self._number = 0
        #: Grows with every connection; blocks of an earlier one are not in the present window.
        self._generation = 0
        #: Blocks, their bytes, and the generation they came in.
        self._arrived: deque[tuple[StreamedBlock, int, int]] = deque()
        self._asked: set[StripeId] = set()
        #: Everything below is done, as far as the server was told or is to be told.
        self._acknowledged: dict[StripeId, int] = {}
        self._heard_s = 0.0
        self._opening: Request | None = None
        #: Bytes handed out and not yet freed, by stripe: end offset, bytes, generation.
        self._held: dict[StripeId, deque[tuple[int, int, int]]] = {}
        self._signal: Pending[None] = Pending()
        self._failure: RingdoveError | None = None
        self._closed = False

    async def open(self) -> None:
        """Claim the subscription; raises SubscriptionBusy while somebody else has it."""
        request = self._request()
        self._link.submit(request)
        self._link.on_welcome.append(self._reopen)
        try:
            await request.answer
        except BaseException:
            await self.close()
            raise

    def _request(self) -> Request:
        ask = messages.Stream(
            self._queue,
            self._subscription,
            self._owner,
            list(self.cursors.items()),
            limits.STREAM_WINDOW_BYTES,
            self._lease_ms,
            self._compression,
            exact=self._link.endpoints.differ,
        )
        request = Request(Verb.STREAM, messages.encode(ask))
        request.on_begin = self._listen
        self._opening = request
        request.answer.when_done(partial(self._answered, request))
        return request

    def _answered(self, request: Request) -> None:
        """The server has answered; runs on the link's loop, before any block can come."""
        self._opening = None
        error = request.answer.error()
        if error is None:
            self._begin(request.answer.result())
        elif isinstance(error, RingdoveError) and not self._settle_in(error):
            self._fail(error)

    def _settle_in(self, error: RingdoveError) -> bool:
        """Make up for what the next broker lacks; False where that is not what is wrong."""
        if not self._link.endpoints.differ or not self.cursors:
            return False
        if isinstance(error, QueueNotFound):
            self._link.lost(f"The broker has no queue {self._queue!r}.")
        elif isinstance(error, SubscriptionNotFound):
            # What was acknowledged is told once the stream has begun, and moves it on.
            ask = messages.Subscribe(self._queue, self._subscription, Start("earliest"))
            request = self._opening = Request(Verb.SUBSCRIBE, messages.encode(ask))
            request.answer.when_done(partial(self._subscribed, request))
            self._link.submit(request)
        else:
            return False
        return True

    def _subscribed(self, request: Request) -> None:
        self._opening = None
        error = request.answer.error()
        if error is None:
            self._link.submit(self._request())
        elif isinstance(error, RingdoveError) and not self._settle_in(error):
            self._fail(error)

    @_locked
    def _listen(self, number: int) -> None:
        """Have the frames with this number; runs on the link's loop, before any can come."""
        self._link.streams.pop(self._number, None)
        self._link.streams[number] = self
        self._number = number
        self._generation += 1
        self._asked.clear()

    def _begin(self, frame: Frame) -> None:
        streaming: messages.Streaming = messages.decode(messages.Streaming, frame.meta)
        self.fence = streaming.fence
        for raw, offset in streaming.positions:
            stripe = StripeId(*raw)
            self.starts.setdefault(stripe, offset)
            self.cursors.setdefault(stripe, offset)
        self._heard_s = self._link.loop.time()
        with self._lock:
            told = list(self._acknowledged.items())  # The reader's thread adds to it.
        for stripe, offset in told:
            self._free(stripe, offset, 0)

    def _reopen(self) -> None:
        """A new connection: go on where the stream stands."""
        if self._closed or self._failure is not None or self._opening is not None:
            return  # A request that was not answered is repeated by the session.
        self._link.submit(self._request())

    # -- blocks come in, on the link's loop -----------------------------------------------------

    @_locked
    def take(self, frame: Frame) -> None:
        """See `link.StreamEnd`."""
        self._heard_s = self._link.loop.time()
        if frame.verb == Verb.STREAM_ENDED:
            self._fail(decode_error(frame))
            return
        raw, wanted = messages.decode(tuple[messages.Stripe, int], frame.meta)
        stripe = StripeId(*raw)
        nbytes = len(frame.blob)
        cursor = self.cursors.get(stripe, wanted)
        try:
            [block] = blocks_of(frame, 1)
        except RemoteProtocolError:
            self.mismatches += 1
            if wanted == cursor:
                self._asked.discard(stripe)  # The very one that is wanted: ask at once.
            self._drop(stripe, nbytes, cursor)
            return
        if wanted > cursor:
            self._drop(stripe, nbytes, cursor)
        elif block.end <= cursor:
            self._free(stripe, -1, nbytes)
        else:
            self._asked.discard(stripe)
            if block.base < cursor:
                block = block.slice(cursor - block.base, block.count)
            self.cursors[stripe] = block.end
            self._arrived.append((StreamedBlock(stripe, cursor, block), nbytes, self._generation))
            self._wake()

    def _drop(self, stripe: StripeId, nbytes: int, cursor: int) -> None:
        """A block is missing or damaged: ask for it again, once, and drop what follows."""
        if stripe in self._asked:
            self._free(stripe, -1, nbytes)
        else:
            self._ask_again(stripe, cursor)

    def _ask_again(self, stripe: StripeId, cursor: int) -> None:
        self._asked.add(stripe)
        held = [(nbytes, at) for _, nbytes, at in self._arrived]
        held += [(nbytes, at) for ends in self._held.values() for _, nbytes, at in ends]
        window_bytes = sum(nbytes for nbytes, at in held if at == self._generation)
        self._tell(messages.StreamAck(stripe, cursor, window_bytes, resend=True))

    @_locked
    def tick(self, now_s: float) -> None:
        """See `link.StreamEnd`: when nothing comes, ask again, should something have been lost."""
        if now_s - self._heard_s > _ASK_AGAIN_S and self._failure is None:
            self._heard_s = now_s
            for stripe, cursor in list(self.cursors.items()):
                self._ask_again(stripe, cursor)

    def _free(self, stripe: StripeId, following: int, nbytes: int) -> None:
        self._tell(messages.StreamAck(stripe, following, nbytes))

    def _tell(self, ack: messages.StreamAck) -> None:
        self._link.write_soon(frames.encode(Verb.STREAM_ACK, self._number, messages.encode(ack)))

    def _fail(self, error: RingdoveError) -> None:
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if not self._signal.done:
            self._signal.resolve(None)

    # -- blocks go out --------------------------------------------------------------------------

    async def next(self, wait_s: float | None = None) -> StreamedBlock | None:
        """The next block, in order; None when there is none in time."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise ConnectionClosed("The stream has been closed.")
            self._signal = Pending()
            if self._arrived or self._failure is not None or self._closed:
                continue
            if not await self._signal.until(wait_s):
                return None
        with self._lock:
            streamed, nbytes, generation = self._arrived.popleft()
            held = self._held.setdefault(streamed.stripe, deque())
            held.append((streamed.block.end, nbytes, generation))
        return streamed

    async def acknowledge(self, stripe: StripeId, offset: int) -> None:
        """Everything below `offset` is done; raises FenceStale when the claim was lost."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._acknowledged[stripe] = max(offset, self._acknowledged.get(stripe, 0))
            freed_bytes = self._let_go(stripe, offset)
        self._free(stripe, offset, freed_bytes)

    def make_room(self, stripe: StripeId, offset: int) -> None:
        """Everything below `offset` is kept elsewhere, though not done: more may come."""
        with self._lock:
            freed_bytes = self._let_go(stripe, offset)
        self._free(stripe, -1, freed_bytes)

    def _let_go(self, stripe: StripeId, offset: int) -> int:
        """Forget what was handed out below `offset`; answers its bytes in the present window."""
        held = self._held.get(stripe, deque())
        freed_bytes = 0
        while held and held[0][0] <= offset:
            _, nbytes, generation = held.popleft()
            if generation == self._generation:
                freed_bytes += nbytes
        return freed_bytes

    @_locked
    def rewind(self, stripe: StripeId, offset: int) -> None:
        """Have a stripe from `offset` again: processing was refused."""
        self._held.pop(stripe, None)
        self._arrived = deque(entry for entry in self._arrived if entry[0].stripe != stripe)
        self.cursors[stripe] = offset
        self._ask_again(stripe, offset)

    async def close(self) -> None:
        """End the stream and give the claim up. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._reopen in self._link.on_welcome:
            self._link.on_welcome.remove(self._reopen)
        self._link.streams.pop(self._number, None)
        if self._failure is None and self._link.session.state is SessionState.CONNECTED:
            request = Request(Verb.STREAM_CLOSE, messages.encode(self._number))
            self._link.submit(request)
            await request.answer.until(_CLOSE_S_MAX)


#: Seconds without a block after which the wanted offsets are told again.
_ASK_AGAIN_S = 1.0

#: Seconds to wait for the server's word that a claim was given up.
_CLOSE_S_MAX = 2.0
