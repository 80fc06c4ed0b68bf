"""The command `serve`: share queues over the network."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringdove.cli import session
from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, say

if TYPE_CHECKING:
    from ringdove.server import Server

#: A flag that is on or not given.
Switch = Annotated[bool | None, Parameter(negative="")]


@Parameter(name="*")
@dataclass
class ServeFlags:
    """What a server may be told; `ringdove.server_config.ServerConfig` has the same names."""

    store: str | None = None
    "A Redis or Valkey cluster to keep queues on: redis://HOST:PORT,HOST:PORT."
    slowdown_ms: int | None = None
    "With --store: a node that takes longer, by default 400, is slow; what may go elsewhere does."
    host: str | None = None
    "Address to listen on, by default 127.0.0.1. Others need a token and TLS."
    port: int | None = None
    "Port of the native protocol, by default 7117; 0 for any free one, -1 for none."
    http: int | None = None
    "Port of HTTP (SQS, REST, /console, /metrics, ...), by default 9324; 0 and -1 likewise."
    unix: str | None = None
    "Path of a unix socket for the native protocol."
    spin_us: int | None = None
    "Stay awake so many microseconds after a request: the next one is served sooner."
    token: str | None = None
    "A secret that clients must present: ringdove://:TOKEN@HOST:PORT."
    tls_cert: str | None = None
    "File with the server's certificate chain; clients then connect with ringdoves://."
    tls_key: str | None = None
    "File with the certificate's key."
    tls_client_ca: str | None = None
    "File with the authority whose clients alone may connect."
    insecure: Switch = None
    "Allow an address that others can reach without a token and TLS."
    sqs_strict: Switch = None
    "Keep to SQS's waiting times too: one purge of a queue per minute."
    memory: Switch = None
    "Keep queues in memory only; they vanish with the server."
    idle_s: int | None = None
    "End by itself when nobody has been connected for so many seconds."
    cluster: str | None = None
    "For the console: the directory of the store's cluster, or that of its plan."
    pipeline: str | None = None
    "For the console: the directory of a pipeline's project."


@Parameter(name="*", group="Devices")
@dataclass
class DeviceFlags:
    """The gateways for devices."""

    mqtt: int | None = None
    "Port of MQTT 3.1.1 and 5, by default none; 0 for any free one."
    mqtt_ws: int | None = None
    "Port of MQTT over WebSocket for browsers, likewise."
    mqtt_rules: Annotated[list[str] | None, Parameter(name="--mqtt-rule", negative="")] = None
    "Which queue topics belong to: 'meters/+/reading -> readings, key = segment 2'; repeatable."
    mqtt_permissions: Annotated[
        list[str] | None, Parameter(name="--mqtt-permission", negative="")
    ] = None
    "Which topics clients may use: 'send meters/%u/#'; repeatable."
    mqtt_keep_alive_s: int | None = None
    "The longest keep-alive time that MQTT clients may choose, by default any."
    mqtt_session_s: int | None = None
    "How long an MQTT session may outlive its connection, by default for ever."
    coap: int | None = None
    "Port of CoAP, which is UDP, by default none; 0 for any free one."
    coap_rate: int | None = None
    "CoAP requests per second, by default 2000; devices beyond are told to come back."


@Parameter(name="*", group="Tiers")
@dataclass
class TierFlags:
    """Where the server stands among tiers of brokers."""

    level: int | None = None
    "0 for the core, where producers connect; 1 and more pull from the level before."
    region: str | None = None
    "Its region, for example eu-west."
    name: str | None = None
    "Its name, unique among all brokers; by default its host and port."
    public_url: str | None = None
    "Where clients reach it, if not at its own address."
    networks: str | None = None
    "The networks it is in, such as 10.1.0.0/16, separated by commas; clients there come first."
    upstream: str | None = None
    "URL of a broker of the level before, or 'manager' to be told one."
    managers: str | None = None
    "Managers to report to: ringdove://HOST:PORT,HOST:PORT."
    relay_queues: str | None = None
    "Queues to pull, as patterns separated by commas; all by default."
    spool_bytes: int | None = None
    "Bytes that a copy of a queue may hold, by default 10 GiB; pulling stops there."
    relay_keep_ms: int | None = None
    "How long messages that are done stay for consumers from elsewhere, by default 10 minutes."
    relay_compression: Literal["none", "lz4", "zstd"] | None = None
    "How blocks are compressed on their way from upstream."
    manager: Switch = None
    "Be a manager: hear brokers and clients, and tell them where to connect."
    alarm_webhook: str | None = None
    "With --manager: a URL to which alarms are posted as JSON."


@Parameter(name="*", group="Hot standby")
@dataclass
class StandbyFlags:
    """Two processes, of which one serves and the other takes over."""

    with_standby: Switch = None
    "Serve under a lease of the managers, so that a standby may take over."
    standby_of: str | None = None
    "URL of a broker to copy, to follow, and to take over from."
    standby_required: Switch = None
    "Refuse sends while no standby is in sync."
    standby_timeout_ms: int | None = None
    "How long a commit waits for the standby before it is let go, by default 2000."
    grant_ms: int | None = None
    "The lease, after which the other may take over; by default 1500."


def serve(
    *,
    flags: ServeFlags | None = None,
    devices: DeviceFlags | None = None,
    tier: TierFlags | None = None,
    standby: StandbyFlags | None = None,
    log: Literal["text", "json"] = "text",
    json: JsonFlag = False,
) -> None:
    """Serve the queues of a data directory over TCP, until SIGTERM or Ctrl-C.

    Each option but --log and --json can also be given in the environment (RINGDOVE_PORT=7117) or in
    the table [serve] of ringdove.toml.

    Example: `ringdove --data ./data serve`, and elsewhere
    `ringdove --url ringdove://127.0.0.1:7117 queue create readings`.

    Parameters
    ----------
    log
        How to write the log on standard error.
    json
        Print the ports as one JSON object when ready.
    """
    from ringdove.allocation import keep_freed_memory
    from ringdove.config import server_config
    from ringdove.server import run_server

    keep_freed_memory()
    chosen: dict[str, Any] = {}
    for group in (flags, devices, tier, standby):
        chosen |= asdict(group) if group is not None else {}
    if session.told.get() and not chosen.get("memory") and not chosen.get("store"):
        chosen["data"] = str(session.directory())
    config = server_config(chosen)
    _set_up_log(log)

    run_server(config, partial(tell_ready, as_json=json))


def tell_ready(server: Server | None, *, as_json: bool) -> None:
    """Say where the server can be reached, or that it stands by."""
    if as_json:
        emit_json({"standby": True} if server is None else _ports(server))
        sys.stdout.flush()
        return
    if server is None:
        say("Standing by. Ctrl-C ends.")
        return
    from ringdove.client.address import authority

    place = partial(authority, server.config.host)
    secure = "s" if server.config.tls_cert else ""
    for port, begun, rest in (
        (server.port, f"Serving on ringdove{secure}", ""),
        (server.http_port, f"SQS and REST on http{secure}", ", /console in a browser"),
        (server.mqtt_port, f"MQTT on mqtt{secure}", ""),
        (server.mqtt_ws_port, f"MQTT on ws{secure}", "/mqtt"),
        (server.coap_port, "CoAP on coap", ""),
    ):
        if port >= 0:
            say(f"{begun}://{place(port)}{rest}")
    if server.config.unix is not None:
        say(f"Serving on ringdove+unix:{server.config.unix}")
    say("Ctrl-C ends.")


def _ports(server: Server) -> dict[str, Any]:
    ports = {"host": server.config.host, "port": server.port, "http": server.http_port}
    if server.mqtt_port >= 0 or server.mqtt_ws_port >= 0:
        ports |= {"mqtt": server.mqtt_port, "mqtt_ws": server.mqtt_ws_port}
    if server.coap_port >= 0:
        ports["coap"] = server.coap_port
    if server.config.unix is not None:
        ports["unix"] = server.config.unix
    return ports


def _set_up_log(kind: str) -> None:
    import structlog

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: Any = (
        structlog.processors.JSONRenderer()
        if kind == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=last, foreign_pre_chain=shared)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
