"""The standby's side of hot standby (M6): follows the primary, and takes over when granted.

A `Standby` has a directory and no clients. It asks the managers again and again whether it may
serve; they say so only when it is recorded in sync and the primary's lease has lapsed. Meanwhile it
has the primary copy everything to it, applies every commit and says so. Each time it follows it
begins with a full copy under a new id, so what only this directory had, and nobody was promised, is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.client.address import parse, tls_context
from ringdove.errors import InvalidArgument, RemoteProtocolError, RingdoveError
from ringdove.log import event_logger
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import FrameDecoder
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import decode_error
from ringdove.stores.embedded.replica import Member, Replica
from ringdove.tiers.holding import Holding, now_s
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ringdove.protocol.frames import Frame
    from ringdove.stores.embedded.shipping import Edit
    from ringdove.tiers.holding import Grantors

#: Seconds between questions whether it may serve, and between attempts to follow.
_ASK_S = 0.2
_FOLLOW_S = 0.3

#: Seconds for a connection, and for its first answer: the primary first records the last standby
#: out.
_CONNECT_S = 2.0
_ANSWER_S = 15.0

#: Seconds between signs of life, and of silence after which a connection is given up.
_PING_S = 1.0
_SILENCE_S = 5.0

_READ_BYTES = 256 * 1024


class Standby:
    """A directory that waits for its turn."""

    def __init__(self, replica: Replica, grantors: Grantors, own_url: str, token: str) -> None:
        self._replica = replica
        self._grantors = grantors
        self._own_url = own_url
        self._token = token
        #: Called when it turns out that another one serves.
        self.on_wait: Callable[[], None] | None = None
        #: Where the primary is, as far as known.
        self._primary_url = ""
        self._log = event_logger("ringdove.standby")
        self._said = ""

    async def until_granted(self, name: str | None, primary_url: str | None) -> Holding:
        """Follow until this directory may serve.

        `name` is the broker's, for a directory that may be its first one; `primary_url` says where
        to begin for one that is empty. One that is not must first be told that another serves: it
        may be the only one that has everything, and following begins with throwing it away.
        """
        if self._replica.member is None:
            self._primary_url = primary_url or ""
        first = self._join(name)
        following = asyncio.create_task(self._keep_following())
        try:
            return await self._keep_asking(first=first)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    def _join(self, name: str | None) -> bool:
        """Settle which broker the directory belongs to; answers whether it may be the first."""
        member, path = self._replica.member, self._replica.path
        if member is not None:
            if name not in (None, member.name):
                raise InvalidArgument(
                    f"{path} belongs to the broker {member.name!r}, not to {name!r}."
                )
            return member.first and name is not None
        if self._primary_url:
            self._refuse_filled("it would be overwritten by the primary's")
            return False
        self._replica.join(Member(name or "", first=True))
        return True

    def _refuse_filled(self, reason: str) -> None:
        if self._replica.filled:
            raise InvalidArgument(
                f"{self._replica.path} has queues of its own: {reason}. Give an empty directory."
            )

    # -- asking ---------------------------------------------------------------------------------

    async def _keep_asking(self, *, first: bool) -> Holding:
        while True:
            member = self._replica.member
            if member is None:
                self._wait()
            else:
                asked_s = now_s()
                verdict = await self._grantors.ask(
                    "acquire", member.name, member.id, url=self._own_url, first=first
                )
                if verdict is None:
                    self._say("no manager answers", reason=self._grantors.trouble)
                elif verdict.granted and verdict.grant is not None:
                    if member.first:
                        self._replica.join(Member(member.name, member.id))
                    return Holding(self._grantors, verdict.grant, asked_s)
                elif verdict.grant is None:
                    self._say("the managers know nothing of this broker", broker=member.name)
                else:
                    if first:
                        self._replica.leave()
                        self._refuse_filled(f"and {member.name!r} is served elsewhere")
                        first = False
                    self._primary_url = verdict.grant.url
                    self._wait()
            await asyncio.sleep(_ASK_S)

    def _wait(self) -> None:
        told, self.on_wait = self.on_wait, None
        if told is not None:
            told()

    def _say(self, event: str, **more: str) -> None:
        """Log something once, not each time."""
        if event != self._said:
            self._said = event
            self._log.warning(event, **more)

    # -- following ------------------------------------------------------------------------------

    async def _keep_following(self) -> None:
        while True:
            if self._primary_url:
                try:
                    await self._follow(self._primary_url)
                except (OSError, RingdoveError) as error:  # TimeoutError is an OSError.
                    self._say("no primary", url=self._primary_url, reason=str(error) or "silence")
            await asyncio.sleep(_FOLLOW_S)

    async def _follow(self, url: str) -> None:
        """One connection to the primary, from the copy to its end."""
        place = parse(url).endpoints[0]
        tls = tls_context(None, None, None) if place.tls else None
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
        try:
            known = self._replica.member
            member = Member(known.name if known else "")
            hello = messages.Hello(
                messages.PROTOCOL_VERSION,
                f"ringdove {__version__}",
                credentials=(place.token or self._token).encode(),
            )
            writer.write(frames.join([frames.encode(Verb.HELLO, 0, messages.encode(hello))]))
            follow = messages.encode(messages.Follow(member.id))
            writer.write(frames.join([frames.encode(Verb.FOLLOW, 1, follow)]))
            pinging = asyncio.create_task(_keep_pinging(writer))
            try:
                await self._take_frames(_frames_of(reader), writer, member)
            finally:
                pinging.cancel()
        finally:
            writer.transport.abort()

    async def _take_frames(
        self, incoming: AsyncIterator[Frame], writer: asyncio.StreamWriter, member: Member
    ) -> None:
        begun: dict[str, list[Edit]] = {"disk": [], "memory": []}
        async for frame in incoming:
            if frame.verb in (Verb.ERROR, Verb.GOODBYE):
                raise decode_error(frame)
            if frame.verb == Verb.REPLY and frame.number == 1:
                self._begin(messages.decode(messages.Following, frame.meta), member)
            elif frame.verb == Verb.COMMIT:
                commit: messages.Commit = messages.decode(messages.Commit, frame.meta)
                edits = begun[commit.durability]
                edits += commit.edits
                if not commit.more:
                    begun[commit.durability] = []
                    self._apply(commit, edits)
                    done = messages.encode(messages.Applied(commit.durability, commit.number))
                    writer.write(frames.join([frames.encode(Verb.APPLIED, 1, done)]))

    def _begin(self, following: messages.Following, member: Member) -> None:
        if member.name not in ("", following.name):
            raise InvalidArgument(
                f"{self._primary_url} is the broker {following.name!r}, not {member.name!r}."
            )
        self._replica.begin(Member(following.name, member.id))
        self._say("following", url=self._primary_url, broker=following.name)

    def _apply(self, commit: messages.Commit, edits: list[Edit]) -> None:
        self._replica.apply(commit.durability, edits)
        if commit.whole:
            self._replica.complete()
            self._say("copied", url=self._primary_url)


async def _keep_pinging(writer: asyncio.StreamWriter) -> None:
    while True:
        await asyncio.sleep(_PING_S)
        writer.write(frames.join([frames.encode(Verb.PING, 0, b"")]))


async def _frames_of(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Frames as they come; raises when the connection ends or is silent."""
    decoder = FrameDecoder()
    decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
    patience_s = _ANSWER_S
    while True:
        async with asyncio.timeout(patience_s):
            data = await reader.read(_READ_BYTES)
        if not data:
            raise RemoteProtocolError("The primary has closed the connection.")
        for frame in decoder.feed(data):
            yield frame
        patience_s = _SILENCE_S
