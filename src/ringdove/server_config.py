"""What a server may be told, and what of it makes no sense."""

from __future__ import annotations

import ssl

from ringdove import limits
from ringdove.errors import InvalidArgument
from ringdove.frontends.exchange import is_local
from ringdove.spinning import check_spin
from ringdove.tiers import roles
from ringdove.tiers.grants import LEASE_MS
from ringdove.tiers.roles import TierConfig


class ServerConfig(TierConfig, frozen=True, forbid_unknown_fields=True):
    """What a server may be told; the same names as flags, in the environment and in the file."""

    data: str = "./ringdove-data"
    #: A Redis or Valkey cluster to keep queues on instead: redis://HOST:PORT,HOST:PORT.
    store: str | None = None
    #: Milliseconds after which a node of it counts as slow, and sends go elsewhere if they may.
    slowdown_ms: int = limits.SLOWDOWN_MS
    #: Address to listen on. Anything but loopback needs a token and TLS, or `insecure`.
    host: str = "127.0.0.1"
    #: Ports of the native protocol and of HTTP; 0 for any free one, -1 for none.
    port: int = 7117
    http: int = 9324
    #: Ports of MQTT, and of MQTT over WebSocket.
    mqtt: int = -1
    mqtt_ws: int = -1
    #: Which topics belong to which queues, and who may use which topics: see docs/mqtt.md. Several
    #: in one text are parted by ';'.
    mqtt_rules: str | tuple[str, ...] = ()
    mqtt_permissions: str | tuple[str, ...] = ()
    #: The longest keep-alive time of MQTT clients, and of sessions without a connection, in
    #: seconds; 0 for any.
    mqtt_keep_alive_s: int = 0
    mqtt_session_s: int = 0
    #: Port of CoAP, which is UDP, likewise; and its requests per second at most.
    coap: int = -1
    coap_rate: int = limits.COAP_RATE
    #: Path of a unix socket for the native protocol.
    unix: str | None = None
    #: Microseconds for which the server stays awake after a request, to be there for the next one.
    spin_us: int = 0
    #: A secret that clients must present.
    token: str | None = None
    #: Certificate and key of the server; and the authority whose clients alone may connect.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    #: Allow a listening address that everybody can reach without a token or TLS.
    insecure: bool = False
    #: Keep to SQS's waiting times too: one purge a minute.
    sqs_strict: bool = False
    #: Queues that vanish with the process, for tests.
    memory: bool = False
    #: End when nobody has been connected for so many seconds; 0 for never.
    idle_s: int = 0
    #: For the console: the directories of the fabric's cluster or plan, and of a pipeline.
    cluster: str | None = None
    pipeline: str | None = None
    #: Hot standby: the primary to stand by for, or whether this one may have a standby.
    standby_of: str | None = None
    with_standby: bool = False
    #: Refuse sends while no standby is in sync; how long a commit waits for one; and the lease that
    #: managers grant, after which the other may serve.
    standby_required: bool = False
    standby_timeout_ms: int = 2_000
    grant_ms: int = LEASE_MS


def texts(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Texts that may come as one."""
    if isinstance(given, str):
        return tuple(text.strip() for text in given.split(";") if text.strip())
    return given


def check(config: ServerConfig) -> None:
    """Refuse what makes no sense, and to listen where everybody can reach without protection."""
    roles.check(config)
    if config.upstream and config.store:
        raise InvalidArgument(
            "A relay keeps its copies in a data directory, not on a fabric: leave --store away."
        )
    if config.token == "":
        raise InvalidArgument(
            "The token is empty, which would let everybody in: give one, or none at all."
        )
    if config.slowdown_ms < 1:
        raise InvalidArgument(f"slowdown_ms is {config.slowdown_ms}; it must be above 0.")
    check_spin(config.spin_us)
    if config.idle_s < 0:
        raise InvalidArgument(f"idle_s is {config.idle_s}; it must be 0 or more.")
    if config.coap_rate < 1:
        raise InvalidArgument(f"coap_rate is {config.coap_rate}; it must be above 0.")
    for name in ("port", "http", "mqtt", "mqtt_ws", "coap"):
        if not -1 <= getattr(config, name) <= 65_535:
            raise InvalidArgument(
                f"{name} is {getattr(config, name)}; it must be 0 to 65535, or -1 for none."
            )
    _check_mqtt(config)
    if is_local(config.host) or config.insecure:
        return
    if config.coap >= 0:
        raise InvalidArgument(
            f"CoAP on {config.host} would go over the network in the clear, the token too: there "
            "is no DTLS. Say --insecure if the network is trusted or a VPN."
        )
    if config.token and config.tls_cert:
        return
    raise InvalidArgument(
        f"Listening on {config.host} lets others connect: give --token and --tls-cert with "
        "--tls-key, or say --insecure if the network is trusted."
    )


def _check_mqtt(config: ServerConfig) -> None:
    # What MQTT has room for, in seconds.
    for name, most_s in (("mqtt_keep_alive_s", 0xFFFF), ("mqtt_session_s", 0xFFFF_FFFF)):
        if not 0 <= getattr(config, name) <= most_s:
            raise InvalidArgument(
                f"{name} is {getattr(config, name)}; it must be 1 to {most_s}, or 0 for any."
            )
    if config.mqtt_rules or config.mqtt_permissions:
        from ringdove.frontends.mqtt.access import Permissions  # noqa: PLC0415  if wanted
        from ringdove.protocol.mqtt.rules import Rules  # noqa: PLC0415  if wanted

        Rules(texts(config.mqtt_rules))
        Permissions(texts(config.mqtt_permissions))


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """What the server proves itself with, if it speaks TLS."""
    if config.tls_cert is None:
        if config.tls_key or config.tls_client_ca:
            raise InvalidArgument("--tls-key and --tls-client-ca need --tls-cert.")
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_client_ca is not None:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (config.tls_cert, config.tls_key, config.tls_client_ca)))
        raise InvalidArgument(f"The TLS files {files} cannot be used: {error}.") from error
    return context
