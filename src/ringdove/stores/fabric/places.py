"""What a store on a fabric remembers of stripes: their keys, who waits there, and blocks."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from ringdove.pending import Pending
from ringdove.stores.fabric.cluster import slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.block import Block
    from ringdove.stores.base import StripeId
    from ringdove.stores.fabric.cluster import Cluster

#: Suffixes of a stripe's keys, in the order of `library.lua`.
_SUFFIXES = "mlnkpijxfyoc"

#: Blocks that are remembered of one stripe, and bytes of those of all.
_CACHE_BLOCKS_MAX = 64
_CACHE_BYTES_MAX = 64 * 1024 * 1024

#: How large blocks are taken to be before one has been seen.
_BLOCK_BYTES_GUESS = 64 * 1024


#: Stripes that are remembered, besides those where somebody waits; and how many are looked at for
#: one to forget.
_STRIPES_MAX = 10_000
_LOOKS_MAX = 16


class Place:
    """A stripe's keys and slot, and what is remembered of it."""

    def __init__(self, stripe: StripeId) -> None:
        tag = f"{stripe.queue:x}.{stripe.number}.{stripe.level}"
        self.slot = slot_of(tag.encode())
        self.keys = [f"rd:{{{tag}}}:{suffix}" for suffix in _SUFFIXES]
        self.log, self.notes = self.keys[1:3]
        self.channel = f"rd:{{{tag}}}:a"
        self.watch: Pending[None] = Pending()
        #: How many copies its messages must have; 0 while that is not known.
        self.copies = 0
        #: Whether notices of others' changes are listened to.
        self.watched = False
        #: Whether the stripe was deleted, as far as is known.
        self.gone = False
        #: What its master's answers have named last: in another era others may be in the log.
        self.era = b""
        #: What sees to it that the end is shown, if something does, and when that was begun last.
        self.settling: Pending[None] | None = None
        self.settled_s = float("-inf")
        #: Blocks that were read or appended lately, and how large they are about.
        self.blocks: deque[Block] = deque()
        self.block_bytes = _BLOCK_BYTES_GUESS

    def known_block(self, offset: int) -> Block | None:
        """A block that was read or appended lately and holds an offset."""
        for block in reversed(list(self.blocks)):
            if block.base <= offset < block.end:
                return block
        return None

    def announce(self) -> None:
        """Tell those who wait that something may have come."""
        watch, self.watch = self.watch, Pending()
        watch.resolve(None)


class BlockCache:
    """Blocks of all stripes, as many as memory is given to them; the stripes used last keep theirs.

    Receivers who follow the senders through the same controller get by without reading.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._bytes = 0

    def add(self, place: Place, blocks: Sequence[Block]) -> None:
        """Keep blocks of a stripe."""
        with self._lock:
            self._places[place] = None
            self._places.move_to_end(place)
            for block in blocks[-_CACHE_BLOCKS_MAX:]:
                place.blocks.append(block)
                self._bytes += block.nbytes
            while len(place.blocks) > _CACHE_BLOCKS_MAX:
                self._bytes -= place.blocks.popleft().nbytes
            while self._bytes > _CACHE_BYTES_MAX and self._places:
                self._shrink()

    def _shrink(self) -> None:
        longest_unused = next(iter(self._places))
        if longest_unused.blocks:
            self._bytes -= longest_unused.blocks.popleft().nbytes
        else:
            del self._places[longest_unused]

    def see(self, place: Place, era: bytes) -> None:
        """In another era of a stripe, others may be in the place of blocks that were kept."""
        if era != place.era:
            self.forget(place)
            place.era = era

    def forget(self, place: Place) -> None:
        """A stripe is gone, or not what it was."""
        with self._lock:
            self._places.pop(place, None)
            while place.blocks:
                self._bytes -= place.blocks.popleft().nbytes


class Places:
    """The stripes that a store remembers, and those that it listens to."""

    def __init__(self, cluster: Cluster, cache: BlockCache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._lock = threading.Lock()
        #: Those used last are at the end.
        self._places: OrderedDict[StripeId, Place] = OrderedDict()
        self._channels: dict[bytes, Place] = {}
        cluster.on_notice = self._noticed

    def of(self, stripe: StripeId) -> Place:
        """The place of a stripe, remembered or new."""
        place = self._places.get(stripe)
        if place is not None:
            with contextlib.suppress(KeyError):  # It was forgotten meanwhile.
                self._places.move_to_end(stripe)
            return place
        unused: list[Place] = []
        with self._lock:
            for _ in range(_LOOKS_MAX):
                if len(self._places) < _STRIPES_MAX:
                    break
                oldest, found = self._places.popitem(last=False)
                if found.watch.awaited:
                    self._places[oldest] = found
                else:
                    self._unwatch(found)
                    unused.append(found)
            place = self._places.setdefault(stripe, Place(stripe))
        for found in unused:
            self._cache.forget(found)
            found.announce()  # Who is about to wait there must look, and watch its successor.
        return place

    def _unwatch(self, place: Place) -> None:
        """Listen to a stripe no more; under the lock."""
        place.watched = False
        channel = place.channel.encode()
        if self._channels.get(channel) is place:  # Not its successor.
            del self._channels[channel]
            self._cluster.unwatch(place.channel)

    def is_gone(self, place: Place) -> None:
        """A stripe was deleted: keep nothing of it, and let those who wait there learn of it."""
        place.gone = True
        self._cache.forget(place)
        with self._lock:
            self._unwatch(place)
        place.announce()

    def watch(self, stripe: StripeId, *, listen: bool) -> Pending[None]:
        """Done when something may have come; others' changes count if they are listened to."""
        while True:
            place = self.of(stripe)
            watch = place.watch
            if place.gone:
                raise stripe.gone()
            if place.watched or not listen:
                return watch
            with self._lock:
                # Else it was forgotten or deleted meanwhile.
                if self._places.get(stripe) is place and not place.gone:
                    place.watched = True
                    self._channels[place.channel.encode()] = place
                    self._cluster.watch(place.channel, place.slot)

    def _noticed(self, channel: bytes) -> None:
        place = self._channels.get(channel)
        if place is not None:
            place.announce()
