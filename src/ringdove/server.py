"""The server: puts store, broker and front ends together, and ends in good order.

    ringdove serve --data DIR

SIGTERM and SIGINT drain: parked receivers are answered, accepted sends are committed and
acknowledged, then everything closes. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from ringdove import serving
from ringdove.client.address import authority
from ringdove.controllers.broker import Broker
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.frontends.access import Access
from ringdove.frontends.console.api import Console
from ringdove.frontends.http import HttpServer
from ringdove.frontends.native import NativeServer
from ringdove.frontends.rest import tiers as rest_tiers
from ringdove.frontends.rest.api import RestApi
from ringdove.frontends.sqs.service import SqsService
from ringdove.log import event_logger
from ringdove.protocol.messages import Verb
from ringdove.server_config import ServerConfig, check, texts, tls_context
from ringdove.spinning import spinner_of
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore
from ringdove.tiers.gauges import StandbyCollector, TierCollector
from ringdove.tiers.manager import Manager
from ringdove.tiers.overview import Tiers
from ringdove.tiers.roles import Tier, store_id

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ringdove.frontends.coap.server import CoapServer
    from ringdove.frontends.mqtt import Gateway
    from ringdove.frontends.rest.routes import Route
    from ringdove.stores.base import Store
    from ringdove.tiers.primary import Primary
    from ringdove.tiers.relay import Relay


#: Objects made between two looks for cycles; Python's own choice of 700 suits short programs.
_GC_THRESHOLD = 50_000


#: Seconds between two looks whether anybody is connected.
_LOOK_S = 0.5


class Server:
    """A running server. Use `async with`, or `run_server`."""

    def __init__(
        self, config: ServerConfig, store: Store | None = None, primary: Primary | None = None
    ) -> None:
        self.config = config
        #: Under what it serves, if it has or may have a standby.
        self._primary = primary
        #: Used instead of opening what the configuration names.
        self._store = store
        self.port = -1
        self.http_port = -1
        self.mqtt_port = -1
        self.mqtt_ws_port = -1
        self.coap_port = -1
        self._log = event_logger("ringdove")
        self._broker: Broker | None = None
        self._native: NativeServer | None = None
        self._http: HttpServer | None = None
        self._sqs: SqsService | None = None
        self._tier: Tier | None = None
        #: What answers where to connect, if this server is a manager of tiers.
        self.manager: Manager | None = None
        self._console: Console | None = None
        self._mqtt: Gateway | None = None
        self._coap: CoapServer | None = None

    @property
    def native(self) -> NativeServer:
        """The native front end, once started."""
        assert self._native is not None
        return self._native

    @property
    def broker(self) -> Broker:
        """What serves all requests, once started."""
        assert self._broker is not None
        return self._broker

    @property
    def relay(self) -> Relay:
        """What pulls from the level before, where there is one."""
        assert self._tier is not None
        assert self._tier.relay is not None
        return self._tier.relay

    @property
    def coap(self) -> CoapServer:
        """The CoAP front end, where there is one."""
        assert self._coap is not None
        return self._coap

    async def start(self) -> None:
        """Open the store and listen."""
        config = self.config
        check(config)
        tls = tls_context(config)
        self._broker = Broker(self._store or _open_store(config))
        self._broker.enqueuer.slowdown_s = config.slowdown_ms / 1000
        try:
            if self._primary is not None and isinstance(self._broker.store, EmbeddedStore):
                self._primary.oversee(self._broker.store)
            await self._broker.open()
            await self._start_native(tls)
            await self._start_http(tls)
            await self._start_mqtt(tls)
            await self._start_coap()
        except BaseException as error:
            await self._close()
            if not isinstance(error, OSError):
                raise
            foreign = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            advice = (
                "Give --host an address of this machine."
                if foreign
                else "Choose another port, 0 for any free one."
            )
            raise StoreUnavailable(
                f"Cannot listen on {config.host}: {error.strerror or error}. {advice}"
            ) from error
        self._announce()
        self._tier = Tier.of(
            config, self._broker, self.url, self._directory,
            lambda: len(self.native.connections), config.token or "",
        )  # fmt: skip
        self._log.info(
            "serving", host=config.host, port=self.port, http=self.http_port, mqtt=self.mqtt_port,
            coap=self.coap_port, data="a fabric" if config.store else config.data,
        )  # fmt: skip

    async def _start_native(self, tls: ssl.SSLContext | None) -> None:
        """Listen for the native protocol, and for what tiers and standbys say in it."""
        config = self.config
        self._native = NativeServer(self.broker, asyncio.get_running_loop(), config.token)
        self._native.spinner = spinner_of(self._native.loop, config.spin_us)
        self._native.store_id = await store_id(self.broker.store)
        if self._primary is not None:
            self._native.follow = self._primary.follow
        if config.manager:
            self.manager = Manager(self.broker.store, config.alarm_webhook)
            self._native.handlers[Verb.TIER] = self.manager.handle
            self.manager.start()
        if config.port >= 0:
            self.port = await self._native.listen(config.host, config.port, tls)
        if config.unix is not None:
            await self._native.listen_unix(Path(config.unix))

    async def _start_http(self, tls: ssl.SSLContext | None) -> None:
        """Listen for HTTP in all its dialects, if it is wanted."""
        config = self.config
        if config.http < 0:
            return
        access = Access(self.broker, config.token)
        self._http = HttpServer(self.broker, self.native, access)
        self._sqs = SqsService(self.broker, access, strict=config.sqs_strict)
        self._http.dialects[""] = self._sqs.respond
        more: list[Route] = []
        if self.manager is not None:
            more = rest_tiers.routes(self.manager.tiers, Tiers)
            self._http.collectors.append(TierCollector(self.manager))
        if self._primary is not None:
            self._http.collectors.append(StandbyCollector(self._primary))
        self._console = Console(self.broker, self.native, self._http, access, _views(config))
        self._http.dialects["console"] = self._console.respond
        self._http.dialects["v1"] = RestApi(
            self.broker, authorize=self._console.sessions.authorize, more=more
        ).respond
        await self._sqs.moves.resume()
        self.http_port = await self._http.listen(config.host, config.http, tls)
        self._http.ready = True

    async def _start_mqtt(self, tls: ssl.SSLContext | None) -> None:
        """Open the gateway for devices, if it is wanted."""
        config = self.config
        if config.mqtt < 0 and config.mqtt_ws < 0:
            return
        from ringdove.frontends.mqtt import Gateway, GatewayConfig  # noqa: PLC0415  if wanted

        self._mqtt = Gateway(
            self.broker,
            asyncio.get_running_loop(),
            GatewayConfig(
                texts(config.mqtt_rules),
                texts(config.mqtt_permissions),
                config.token,
                config.mqtt_keep_alive_s,
                config.mqtt_session_s,
            ),
        )
        await self._mqtt.open()
        if config.mqtt >= 0:
            self.mqtt_port = await self._mqtt.listen(config.host, config.mqtt, tls)
        if config.mqtt_ws >= 0:
            self.mqtt_ws_port = await self._mqtt.listen(
                config.host, config.mqtt_ws, tls, websocket=True
            )

    async def _start_coap(self) -> None:
        """Listen for CoAP, if it is wanted."""
        config = self.config
        if config.coap < 0:
            return
        from ringdove.frontends.coap.server import CoapServer  # noqa: PLC0415  if wanted
        from ringdove.frontends.coap.site import Site  # noqa: PLC0415  if wanted
        from ringdove.frontends.coap.statistics import CoapCollector  # noqa: PLC0415  if wanted

        access = Access(self.broker, config.token)
        site = Site(self.broker, access, self.native.give_back)
        self._coap = CoapServer(self.native.runner, site.respond, config.coap_rate)
        if self._http is not None:
            self._http.collectors.append(CoapCollector(self._coap))
        self.coap_port = await self._coap.listen(config.host, config.coap)

    @property
    def connected(self) -> bool:
        """Whether anybody is."""
        ends = (self._native, self._http, self._mqtt)
        return any(end is not None and end.connections for end in ends)

    async def stop(self) -> None:
        """Drain, then close everything."""
        self._log.info("draining")
        if self._http is not None:
            self._http.ready = False
        if self._primary is not None:
            self._primary.closing = True
        await self._close()
        self._log.info("closed")

    async def abort(self) -> None:
        """Hang up on everybody at once, then close: another process may serve by now."""
        self.native.abort()
        if self._http is not None:
            self._http.abort()
        if self._tier is not None:
            self._tier.stay_known()
        await self._close()

    def _announce(self) -> None:
        """Leave a note in the data directory, for those who would open it."""
        config = self.config
        tcp = self.port >= 0 and config.tls_cert is None
        if self._directory is None or not (tcp or config.unix):
            return
        try:
            serving.announce(self._directory, self.url if tcp else self._unix_url)
        except OSError as error:
            # As on a full disk, where what can be received frees room; others name its URL.
            self._log.warning("no note for those who would open the directory", reason=str(error))

    @property
    def url(self) -> str:
        """Where clients on this machine reach the server."""
        config = self.config
        secret = f":{quote(config.token, safe='')}@" if config.token else ""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104
        place = authority(host, self.port)
        return f"ringdove{'s' if config.tls_cert else ''}://{secret}{place}"

    @property
    def _unix_url(self) -> str:
        path = quote(str(Path(self.config.unix or "").absolute()))
        secret = f"//:{quote(self.config.token, safe='')}@" if self.config.token else ""
        return f"ringdove+unix:{secret}{path}"

    @property
    def _directory(self) -> Path | None:
        store = self._broker.store if self._broker is not None else None
        return store.path if isinstance(store, EmbeddedStore) else None

    async def _close(self) -> None:
        if self._directory is not None:
            serving.withdraw(self._directory)
        if self._tier is not None:
            await self._tier.close()
        if self._mqtt is not None:
            await self._mqtt.close()
        if self._coap is not None:
            await self._coap.close()
        if self._http is not None:
            await self._http.close()
        if self._native is not None:
            await self._native.close()  # Last: a standby confirms what the others are answered.
        if self._primary is not None:
            self._primary.end()
        if self._sqs is not None:
            await self._sqs.moves.close()
        if self.manager is not None:
            await self.manager.close()
        if self._console is not None:
            self._console.close()
        if self._broker is not None:
            await self._broker.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def run_server(
    config: ServerConfig, on_ready: Callable[[Server | None], None] | None = None
) -> None:
    """Serve until a signal says otherwise.

    `on_ready` is called when it serves; with None, when it stands by for another that does.
    """
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  plain asyncio does where it is missing

        loop_factory = uvloop.new_event_loop
    # What is loaded by now stays; a server makes few cycles, so looking for them may be rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(config, on_ready))


def ended_by_signal() -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            os._exit(1)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    return asked


async def _serve(config: ServerConfig, on_ready: Callable[[Server | None], None] | None) -> None:
    if config.with_standby or config.standby_of:
        from ringdove.pair import serve_in_turn  # noqa: PLC0415  it uses what is here

        await serve_in_turn(config, ended_by_signal(), on_ready or _nobody)
        return
    server = Server(config)
    await server.start()
    asked = ended_by_signal()
    if on_ready is not None:
        on_ready(server)
    if config.idle_s:
        await _asked_or_idle(server, asked, config.idle_s)
    else:
        await asked.wait()
    await server.stop()


def _nobody(_: Server | None) -> None:
    """Tell nobody."""


async def _asked_or_idle(server: Server, asked: asyncio.Event, idle_s: int) -> None:
    """Wait until somebody wants the server to end, or nobody has wanted anything for long."""
    loop = asyncio.get_running_loop()
    busy_s = loop.time()
    while loop.time() < busy_s + idle_s:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), _LOOK_S)
            return
        if server.connected:
            busy_s = loop.time()


def _open_store(config: ServerConfig) -> Store:
    if config.store is not None:
        from ringdove.stores.fabric import FabricStore  # noqa: PLC0415  only where it is used

        return FabricStore(config.store)
    return MemoryStore() if config.memory else EmbeddedStore(config.data)


def _views(config: ServerConfig) -> dict[str, Callable[[], Any]]:
    """What the console can look at besides queues; imported by the first who looks."""
    views: dict[str, Callable[[], Any]] = {}
    if config.store is not None:
        views["fabric"] = partial(_look_at_fabric, config.store, config.cluster)
    if config.pipeline is not None:
        views["pipeline"] = partial(_look_at_pipeline, config.pipeline)
    return views


def _look_at_fabric(url: str, place: str | None) -> dict[str, Any]:
    from ringdove.cluster.outlook import look_at_fabric  # noqa: PLC0415

    return look_at_fabric(url, place)


def _look_at_pipeline(directory: str) -> dict[str, Any]:
    try:
        from ringdove.spark.pipeline.project import Project  # noqa: PLC0415
        from ringdove.spark.pipeline.status import look  # noqa: PLC0415
    except ImportError:
        raise InvalidArgument("Pipelines need Spark: pip install 'ringdove[spark]'.") from None
    return look(Project.open(Path(directory)))
