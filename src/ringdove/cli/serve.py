"""The command `serve`: share queues over the network."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringdove.cli import session
from ringdove.cli.output import emit_json, say
from ringdove.cli.queues import JsonFlag

if TYPE_CHECKING:
    from ringdove.server import Server

Flag = Annotated[bool, Parameter(negative="")]
Texts = Annotated[list[str] | None, Parameter(negative="")]
SlowdownMs = Annotated[
    int | None,
    Parameter(
        help="With --store: a node that takes longer is slow, and what may go elsewhere does; "
        "by default 400."
    ),
]
TlsCert = Annotated[
    str | None,
    Parameter(
        help="File with the server's certificate chain; clients then connect with ringdoves://."
    ),
]
TlsKey = Annotated[str | None, Parameter(help="File with the certificate's key.")]
TlsClientCa = Annotated[
    str | None, Parameter(help="File with the authority whose clients alone may connect.")
]


def serve(
    *,
    store: str | None = None,
    slowdown_ms: SlowdownMs = None,
    host: str | None = None,
    port: int | None = None,
    http: int | None = None,
    mqtt: int | None = None,
    mqtt_ws: int | None = None,
    mqtt_rule: Texts = None,
    mqtt_permission: Texts = None,
    mqtt_keep_alive_s: int | None = None,
    mqtt_session_s: int | None = None,
    unix: str | None = None,
    token: str | None = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    insecure: Flag = False,
    sqs_strict: Flag = False,
    memory: Flag = False,
    idle_s: int | None = None,
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
    store
        A Redis or Valkey cluster to keep queues on: redis://HOST:PORT,HOST:PORT.
    host
        Address to listen on, by default 127.0.0.1. Others need a token and TLS.
    port
        Port of the native protocol, by default 7117; 0 for any free one, -1 for none.
    http
        Port of HTTP (SQS, REST, /metrics, /healthz, /readyz), by default 9324; 0 and -1 likewise.
    mqtt
        Port of MQTT 3.1.1 and 5 for devices, by default none.
    mqtt_ws
        Port of MQTT over WebSocket for browsers, by default none.
    mqtt_rule
        Which queue topics belong to: 'meters/+/reading -> readings, key = segment 2'. May be
        repeated.
    mqtt_permission
        Which topics clients may use: 'send meters/%u/#'. May be repeated.
    mqtt_keep_alive_s
        The longest keep-alive time that MQTT clients may choose, by default any.
    mqtt_session_s
        How long an MQTT session may outlive its connection, by default for ever.
    unix
        Path of a unix socket for the native protocol.
    token
        A secret that clients must present: ringdove://:TOKEN@HOST:PORT.
    insecure
        Allow an address that others can reach without a token and TLS.
    sqs_strict
        Keep to SQS's waiting times too: one purge of a queue per minute.
    memory
        Keep queues in memory only; they vanish with the server.
    idle_s
        End by itself when nobody has been connected for so many seconds.
    log
        How to write the log on standard error.
    json
        Print the ports as one JSON object when ready.
    """
    from ringdove.config import server_config
    from ringdove.server import run_server

    chosen: dict[str, Any] = {
        "store": store, "slowdown_ms": slowdown_ms, "host": host, "port": port, "http": http,
        "mqtt": mqtt, "mqtt_ws": mqtt_ws, "mqtt_rules": mqtt_rule,
        "mqtt_permissions": mqtt_permission, "mqtt_keep_alive_s": mqtt_keep_alive_s,
        "mqtt_session_s": mqtt_session_s, "unix": unix, "token": token,
        "tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca,
        "insecure": insecure or None, "sqs_strict": sqs_strict or None,
        "memory": memory or None, "idle_s": idle_s,
        "data": None if memory or store else str(session.directory()),
    }  # fmt: skip
    config = server_config(chosen)
    _set_up_log(log)

    run_server(config, partial(_tell, as_json=json))


def _tell(server: Server, *, as_json: bool) -> None:
    """Say where the server can be reached."""
    host, secure = server.config.host, "s" if server.config.tls_cert else ""
    if as_json:
        ports = {"port": server.port, "http": server.http_port}
        if server.mqtt_port >= 0 or server.mqtt_ws_port >= 0:
            ports |= {"mqtt": server.mqtt_port, "mqtt_ws": server.mqtt_ws_port}
        emit_json({"host": host, **ports})
        sys.stdout.flush()
        return
    say(f"Serving on ringdove{secure}://{host}:{server.port}")
    if server.http_port >= 0:
        say(f"SQS and REST on http{secure}://{host}:{server.http_port}")
    if server.mqtt_port >= 0:
        say(f"MQTT on mqtt{secure}://{host}:{server.mqtt_port}")
    if server.mqtt_ws_port >= 0:
        say(f"MQTT on ws{secure}://{host}:{server.mqtt_ws_port}/mqtt")
    say("Ctrl-C ends.")


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
