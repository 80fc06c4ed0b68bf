"""One broker in two processes, of which one serves: the life of either (M6).

    stand by --granted--> serve --lease lost--> stand by ...

Both processes run the same circle. Whoever comes first serves; the other copies and follows. A
primary that has lost its lease closes everything at once and becomes the standby of whoever has it
now; one that is asked to end gives its lease back, so that the other need not wait for its end.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ringdove.client.address import without_token
from ringdove.errors import InvalidArgument
from ringdove.log import event_logger
from ringdove.server import Server
from ringdove.stores.embedded.replica import Replica
from ringdove.tiers.grants import LEASE_MS_MAX, LEASE_MS_MIN
from ringdove.tiers.holding import Grantors
from ringdove.tiers.primary import Primary, StandbyOptions
from ringdove.tiers.standby import Standby

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ringdove.server_config import ServerConfig
    from ringdove.tiers.holding import Holding

T = TypeVar("T")


async def serve_in_turn(
    config: ServerConfig, asked: asyncio.Event, on_turn: Callable[[Server | None], None]
) -> None:
    """Serve whenever it is this process's turn, until asked to end.

    `on_turn` is called with the server when it serves, with None when it stands by.
    """
    check(config)
    grantors = Grantors(config.managers or "", config.grant_ms)
    try:
        while not asked.is_set():
            holding = await _stand_by(config, grantors, asked, on_turn)
            if holding is not None:
                await _serve(config, holding, asked, on_turn)
    finally:
        await grantors.close()


def check(config: ServerConfig) -> None:
    """Refuse what makes no sense, before anything is opened."""
    if config.store is not None:
        raise InvalidArgument(
            "On a fabric a standby is not needed: every server serves the same queues, and the "
            "cluster keeps copies of them. Start a second server with the same --store instead."
        )
    if config.memory:
        raise InvalidArgument("A standby copies a data directory; --memory has none.")
    if not config.managers:
        raise InvalidArgument(
            "Hot standby needs --managers URL: without a manager nobody could tell a primary that "
            "is dead from one that is out of reach, so nobody takes over."
        )
    if config.with_standby and not config.name:
        raise InvalidArgument("--with-standby needs --name NAME: the managers know it by that.")
    if config.with_standby and config.standby_of:
        raise InvalidArgument("Give --with-standby or --standby-of, not both.")
    if config.standby_timeout_ms < 1:
        raise InvalidArgument(
            f"standby_timeout_ms is {config.standby_timeout_ms}; it must be above 0."
        )
    if not LEASE_MS_MIN <= config.grant_ms <= LEASE_MS_MAX:
        raise InvalidArgument(
            f"grant_ms is {config.grant_ms}; it must be {LEASE_MS_MIN} to {LEASE_MS_MAX}."
        )


async def _stand_by(
    config: ServerConfig,
    grantors: Grantors,
    asked: asyncio.Event,
    on_turn: Callable[[Server | None], None],
) -> Holding | None:
    """Wait for the grant; None when asked to end first."""
    replica = Replica(Path(config.data))
    try:
        own_url = without_token(config.public_url or "")
        standby = Standby(replica, grantors, own_url, config.token or "")
        name = config.name if config.with_standby else None
        standby.on_wait = partial(on_turn, None)
        granted = standby.until_granted(name, config.standby_of)
        return await _unless(asked, granted)
    finally:
        replica.close()


async def _serve(
    config: ServerConfig,
    holding: Holding,
    asked: asyncio.Event,
    on_turn: Callable[[Server | None], None],
) -> None:
    keeping = asyncio.create_task(holding.keep())
    options = StandbyOptions(timeout_ms=config.standby_timeout_ms, required=config.standby_required)
    config = msgspec.structs.replace(config, name=holding.name)
    server = Server(config, primary=Primary(holding, options))
    try:
        await server.start()
        holding.url = without_token(config.public_url or server.url)
        on_turn(server)
        await _unless(asked, asyncio.wait([keeping]))
        if holding.lost:
            event_logger("ringdove.standby").error(
                "serving no more", broker=holding.name, reason=holding.lost
            )
            await server.abort()
        else:
            await server.stop()
            await holding.release()
    finally:
        holding.lose("closing")
        await keeping


async def _unless(asked: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of some work; None when asked to end before."""
    task, asking = asyncio.create_task(work), asyncio.create_task(asked.wait())
    try:
        await asyncio.wait([task, asking], return_when=asyncio.FIRST_COMPLETED)
    finally:
        asking.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return None if task.cancelled() else task.result()
