"""What makes a server a broker among tiers: its relay and its reports, as its settings say."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING, Self

import msgspec

from ringdove.client.address import parse, without_token
from ringdove.core.compression import CODEC_NUMBERS
from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument, RecordConflict, RingdoveError
from ringdove.tiers.relay import KEEP_MS, SPOOL_BYTES, Relay, RelayOptions, fixed
from ringdove.tiers.reporting import Identity, Managers, Reporter
from ringdove.tiers.reports import Where

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ringdove.controllers.broker import Broker
    from ringdove.stores.base import RecordStore
    from ringdove.tiers.reports import Place


class TierConfig(msgspec.Struct, frozen=True):
    """What a server may be told about tiers; part of `ringdove.server_config.ServerConfig`."""

    #: Where this broker stands: its level, its region, its name (by default made of its host and
    #: port), and where clients reach it if not at its own address.
    level: int = 0
    region: str = ""
    name: str | None = None
    public_url: str | None = None
    #: The networks it is in, such as 10.1.0.0/16, separated by commas; clients there come first.
    networks: str = ""
    #: A broker of the level before to pull from: its URL, or "manager" to be told.
    upstream: str | None = None
    #: Managers to report to: ringdove://HOST:PORT,HOST:PORT.
    managers: str | None = None
    #: Queues to pull, as patterns separated by commas; how much a copy may hold, and how long what
    #: is done stays; how blocks are compressed on the way.
    relay_queues: str = "*"
    spool_bytes: int = SPOOL_BYTES
    relay_keep_ms: int = KEEP_MS
    relay_compression: str = "none"
    #: Be a manager; and the URL to which it posts alarms.
    manager: bool = False
    alarm_webhook: str | None = None


#: What `upstream` says when the manager is to choose.
BY_MANAGER = "manager"

#: The record that names a store.
_ID_KEY = "tier/store"


def check(config: TierConfig) -> None:
    """Refuse settings that make no sense, before anything is opened."""
    if config.level < 0:
        raise InvalidArgument(f"level is {config.level}; it must be 0 or more.")
    if config.name is not None:
        check_name(config.name, "broker")
    for network in _networks(config):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            raise InvalidArgument(f"networks: {error}.") from error
    if config.level and not config.upstream:
        raise InvalidArgument(
            f"A broker of level {config.level} pulls from level {config.level - 1}: say where "
            f"with --upstream URL, or --upstream {BY_MANAGER}."
        )
    if config.upstream and not config.level:
        raise InvalidArgument("--upstream is for brokers of level 1 and more: say --level.")
    for url in (config.managers, config.public_url, config.upstream):
        if url and url != BY_MANAGER:
            parse(url)
    if config.upstream == BY_MANAGER and not config.managers:
        raise InvalidArgument(f"--upstream {BY_MANAGER} needs --managers URL.")
    if config.relay_compression not in CODEC_NUMBERS:
        raise InvalidArgument(
            f"relay_compression is {config.relay_compression!r}; it is one of "
            f"{', '.join(CODEC_NUMBERS)}."
        )
    if config.spool_bytes < 1 or config.relay_keep_ms < 0:
        raise InvalidArgument("spool_bytes must be above 0, relay_keep_ms 0 or more.")
    if config.alarm_webhook is not None and not config.manager:
        raise InvalidArgument("--alarm-webhook is for a manager: give --manager too.")


async def store_id(store: RecordStore) -> str:
    """What names a store, whatever its servers are called: made once, and kept in it.

    Empty while it cannot be kept: a server with a full disk must start all the same.
    """
    record = await store.get(_ID_KEY)
    if record is None:
        try:
            record = await store.put(_ID_KEY, secrets.token_hex(16).encode(), expect=0)
        except RecordConflict:
            record = await store.get(_ID_KEY)
        except RingdoveError:
            return ""
    return record.value.decode() if record is not None else ""


class Tier:
    """The relay and the reporter of a server, each if it has one."""

    def __init__(self, relay: Relay | None, reporter: Reporter | None) -> None:
        self.relay = relay
        self.reporter = reporter

    @classmethod
    def of(
        cls,
        config: TierConfig,
        broker: Broker,
        url: str,
        directory: Path | None,
        connections: Callable[[], int],
        token: str = "",
    ) -> Self:
        """What the settings ask for, started on the running loop; `token` is the server's own."""
        name = config.name or _default_name(url)
        relay = reporter = None
        managers = Managers(config.managers) if config.managers else None
        if config.upstream:
            by_manager = config.upstream == BY_MANAGER and managers is not None
            options = RelayOptions(
                name=name,
                queues=tuple(config.relay_queues.split(",")),
                spool_bytes=config.spool_bytes,
                keep_ms=config.relay_keep_ms,
                compression=config.relay_compression,
                token=(token or _token(config.managers)) if by_manager else "",
            )
            find = _by_manager(config, name) if by_manager else fixed(config.upstream)
            relay = Relay(broker, options, find)
            relay.start()
        if managers is not None:
            identity = Identity(
                name=name, level=config.level, region=config.region,
                url=without_token(config.public_url or url), networks=_networks(config),
                directory=directory,
            )  # fmt: skip
            reporter = Reporter(broker, identity, managers, relay, connections)
            reporter.start()
        return cls(relay, reporter)

    def stay_known(self) -> None:
        """Do not tell the managers of the end: another process may serve under this name."""
        if self.reporter is not None:
            self.reporter.leaves = False

    async def close(self) -> None:
        """Stop pulling and reporting. Idempotent."""
        if self.relay is not None:
            await self.relay.close()
        if self.reporter is not None:
            await self.reporter.close()


def _by_manager(
    config: TierConfig, name: str
) -> Callable[[str, list[str]], Awaitable[list[Place]]]:
    managers = Managers(config.managers or "")

    async def find(at: str, avoid: list[str]) -> list[Place]:
        ask = Where("relay", config.level, config.region, name=name, at=at, avoid=avoid)
        try:
            return await managers.where(ask)
        finally:
            await managers.close()

    return find


def _token(url: str | None) -> str:
    return parse(url).endpoints[0].token if url else ""


def _networks(config: TierConfig) -> tuple[str, ...]:
    return tuple(text.strip() for text in config.networks.split(",") if text.strip())


def _default_name(url: str) -> str:
    """A name of host and port: unique as long as those are."""
    return f"{socket.gethostname()}-{url.rpartition(':')[2]}"
