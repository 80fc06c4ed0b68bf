"""The manager (M5): hears brokers and clients, says where to connect, and watches.

It is stateless: everything it must remember is in the records of its store, so any number of
managers may share one, and one that is killed is replaced by starting another. On a fabric that
makes no single point of failure; on an embedded store the one manager is. While there is none,
everybody stays where it is and goes on.

Requests come by the verb TIER, as a command and its arguments by name. `commands` is what it can
do; other parts of a server add theirs. Commands wait only for pendings, as all handlers do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ringdove.errors import InvalidArgument, RingdoveError
from ringdove.protocol import messages
from ringdove.tiers import overview
from ringdove.tiers.alarming import PAST_MAX, Alarms, log_alarm
from ringdove.tiers.grants import Grants
from ringdove.tiers.registry import BROKER_EXPIRES_MS, CLIENT_EXPIRES_MS, FLUSH_S, Registry
from ringdove.tiers.reports import Beaten, BrokerReport, ClientReport, Where, to_wire
from ringdove.tiers.webhook import Webhook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.controllers.broker import Broker
    from ringdove.protocol.frames import Frame
    from ringdove.stores.base import Store
    from ringdove.tiers.alarms import Alarm
    from ringdove.tiers.overview import Tiers

    #: Does a command with its arguments; the answer is plain values.
    Command = Callable[[dict[str, Any]], Awaitable[Any]]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Writes of what was heard between two looks for alarms.
_FLUSHES_PER_LOOK = 4


class Manager:
    """See the module. `start` and `close` are for its server, on the event loop."""

    def __init__(self, store: Store, webhook: str | None = None) -> None:
        self.registry = Registry(store)
        self.webhook = Webhook(webhook) if webhook is not None else None
        self.alarms = Alarms(self.registry, self._tell)
        self.commands: dict[str, Command] = {
            "beat": self._beat,
            "beat_client": self._beat_client,
            "leave": self._leave,
            "leave_client": self._leave_client,
            "where": self._where,
            "brokers": self._brokers,
            "clients": self._clients,
            "metadata": self._metadata,
            "alarms": self._alarms,
            "tiers": self._tiers,
            **Grants(store).commands,
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to write what is heard, and to watch."""
        self._tasks.append(asyncio.create_task(self._work()))
        if self.webhook is not None:
            self._tasks.append(asyncio.create_task(self.webhook.run()))

    async def close(self) -> None:
        """Stop, with everything written. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await self.registry.flush()

    async def _work(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(FLUSH_S)
            turn += 1
            try:
                await self.registry.flush()
                if turn % _FLUSHES_PER_LOOK == 0:
                    await self.alarms.look()
            except RingdoveError as error:
                _log.warning("The manager could not look after its records: %s", error)
            except Exception:  # noqa: BLE001  the manager must go on
                _log.exception("The manager failed to look after its records.")

    def _tell(self, event: str, alarm: Alarm) -> None:
        log_alarm(event, alarm)
        if self.webhook is not None:
            self.webhook.tell(event, alarm)

    # -- requests -------------------------------------------------------------------------------

    async def handle(self, broker: Broker, frame: Frame) -> tuple[bytes, list[Any]]:  # noqa: ARG002
        """Serve the verb TIER."""
        command, arguments = messages.decode(messages.Command, frame.meta)
        return messages.encode(await self.do(command, arguments)), []

    async def do(self, command: str, arguments: dict[str, Any]) -> Any:
        """Do a command."""
        found = self.commands.get(command)
        if found is None:
            raise InvalidArgument(
                f"There is no command {command!r}; there are {', '.join(self.commands)}."
            )
        return await found(arguments)

    async def tiers(self) -> Tiers:
        """Everything that a person wants to see."""
        brokers = await self.registry.brokers()
        clients: dict[str, int] = {}
        for client in await self.registry.clients():
            clients[client.report.role] = clients.get(client.report.role, 0) + 1
        return overview.Tiers(
            await self._broker_views(),
            overview.queue_views(brokers.values()),
            clients,
            await self.alarms.now(),
        )

    async def _beat(self, arguments: dict[str, Any]) -> Any:
        """A broker's report; answers `Beaten`, with places for a relay that should move."""
        report = read(_Report, arguments).report
        await self.registry.hear(report)
        where = Where("relay", report.level, report.region, name=report.name, at=report.upstream)
        return await self._beaten(BROKER_EXPIRES_MS, where)

    async def _beat_client(self, arguments: dict[str, Any]) -> Any:
        """A client's report; answers `Beaten`, with places if it should move."""
        report = read(_ReportOfClient, arguments).report
        self.registry.hear_client(report)
        where = Where(report.role, 0, report.region, report.addresses, report.name, report.at)
        return await self._beaten(CLIENT_EXPIRES_MS, where)

    async def _beaten(self, expires_ms: int, where: Where) -> Any:
        """Answer who is at a broker; who is at one that is silent knows best whether it is gone."""
        beaten = Beaten(expires_ms, self.registry.store.clock.now_ms())
        routes = await self.registry.routes()
        if self.registry.heard(where.at) is not None:
            beaten.go = routes.moves(where)
        return to_wire(beaten)

    async def _leave(self, arguments: dict[str, Any]) -> bool:
        """The broker `name` ends in good order, or is not missed any more."""
        return await self.registry.forget(read(_Named, arguments).name)

    async def _leave_client(self, arguments: dict[str, Any]) -> bool:
        """The client `name` has closed its session."""
        return await self.registry.forget_client(read(_Named, arguments).name)

    async def _where(self, arguments: dict[str, Any]) -> Any:
        """The places for a `Where`, best first."""
        where = read(Where, arguments)
        return to_wire((await self.registry.routes()).places(where))

    async def _brokers(self, arguments: dict[str, Any]) -> Any:
        """All brokers."""
        read(_Nothing, arguments)
        return to_wire(await self._broker_views())

    async def _broker_views(self) -> list[overview.BrokerView]:
        brokers = await self.registry.brokers()
        return overview.broker_views(brokers.values(), await self.registry.missing())

    async def _clients(self, arguments: dict[str, Any]) -> Any:
        """All producers and consumers, and when they reported."""
        read(_Nothing, arguments)
        return to_wire(await self.registry.clients())

    async def _metadata(self, arguments: dict[str, Any]) -> Any:
        """What was produced, stored, relayed and consumed, of all queues or of `queue`."""
        queue = read(_MaybeQueue, arguments).queue
        brokers = await self.registry.brokers()
        return to_wire(overview.queue_views(brokers.values(), queue))

    async def _alarms(self, arguments: dict[str, Any]) -> Any:
        """Those that are raised, and of those that were the latest `past`."""
        wanted = read(_Past, arguments).past
        past = await self.alarms.past(wanted) if wanted else []
        return {"now": to_wire(await self.alarms.now()), "past": to_wire(past)}

    async def _tiers(self, arguments: dict[str, Any]) -> Any:
        """Everything of the above that a person wants to see at once."""
        read(_Nothing, arguments)
        return to_wire(await self.tiers())


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


class _Report(msgspec.Struct, forbid_unknown_fields=True):
    report: BrokerReport


class _ReportOfClient(msgspec.Struct, forbid_unknown_fields=True):
    report: ClientReport


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _MaybeQueue(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None


class _Past(msgspec.Struct, forbid_unknown_fields=True):
    past: int = PAST_MAX


def read(kind: type[T], arguments: dict[str, Any]) -> T:
    """The arguments of a command as a struct, or InvalidArgument."""
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"The arguments cannot be used: {error}.") from error
