"""Where a fleet's queue is and where its devices connect, from what the user has said.

A directory that nobody serves gets a server of its own for the length of the run, in a process of
its own: the fleet must not share a processor's time with what it tries out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ringdove import serving
from ringdove.client.address import authority, parse, without_token
from ringdove.config import directory_of
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.fleet.plan import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringdove.fleet.plan import Plan

#: Seconds that the server has to end in good order.
_END_S = 30

_NATIVE = ("ringdove", "ringdoves")

#: The topic of a device, and the rule that leads from there to the queue.
_TOPIC = "meters/{device}/reading"
_RULE = "meters/+/reading -> {queue}, key = segment 2"


class Place(NamedTuple):
    """Where to make the queue and receive from it, if that is known; and the plan completed."""

    queues: str | None
    plan: Plan


@contextmanager
def find_place(url: str, to: str | None, plan: Plan) -> Iterator[Place]:
    """The place that a URL stands for: a server's, that of devices themselves, or a directory."""
    scheme = url.partition(":")[0]
    device_scheme = "ringdove" if plan.protocol == "native" else plan.protocol
    if scheme in _NATIVE:
        place = parse(url).endpoints[0]
        token = plan.token or place.token or None
        port = place.port if plan.protocol == "native" else SCHEMES[device_scheme]
        devices = to or f"{device_scheme}://{authority(place.host, port)}"
        yield Place(url, plan._replace(url=devices, token=token))
    elif scheme in SCHEMES:
        yield Place(None, plan._replace(url=url))
    elif scheme == "file":
        directory = directory_of(url)
        known = serving.find(directory)
        if known is not None:
            if to is None and plan.protocol != "native":
                raise InvalidArgument(
                    f"A server has {directory} open: say with --to where its devices connect, "
                    f"such as {device_scheme}://127.0.0.1:{SCHEMES[device_scheme]}."
                )
            with find_place(known, to, plan) as found:
                yield found
        elif to is not None:
            yield Place(None, plan._replace(url=to))
        else:
            with _own_server(directory, plan) as found:
                yield found
    else:
        raise InvalidArgument(
            f"A fleet cannot connect to {without_token(url)!r}: give file:, ringdove:// or --to."
        )


@contextmanager
def _own_server(directory: Path, plan: Plan) -> Iterator[Place]:
    rate = max(2_000, round(4 * plan.devices * plan.rate))
    flags = {
        "coap": ["--coap", "0", "--coap-rate", str(rate)],
        "mqtt": ["--mqtt", "0", "--mqtt-rule", _RULE.format(queue=plan.queue)],
    }
    command = [
        sys.executable, "-m", "ringdove", "--data", os.fspath(directory), "serve", "--json",
        "--port", "0", "--http", "0", *flags.get(plan.protocol, []),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
    with (
        tempfile.TemporaryFile() as log,
        # A group of its own: Ctrl-C reaches the fleet alone, which then ends the server.
        subprocess.Popen(  # noqa: S603  our own program
            command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        ) as server,
    ):
        try:
            assert server.stdout is not None
            ports = json.loads(server.stdout.readline() or "{}")
            if not ports:
                server.wait(_END_S)
                log.seek(0)
                said = log.read().decode().strip()
                raise StoreUnavailable(f"The fleet's server does not start: {said}")
            queues = f"ringdove://127.0.0.1:{ports['port']}"
            protocol = plan.protocol
            devices = (
                queues if protocol == "native" else (f"{protocol}://127.0.0.1:{ports[protocol]}")
            )
            topic = _TOPIC if plan.protocol == "mqtt" else plan.topic
            yield Place(queues, plan._replace(url=devices, topic=topic))
        finally:
            server.terminate()
            server.wait(_END_S)
