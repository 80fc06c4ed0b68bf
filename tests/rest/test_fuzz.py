"""Whatever the OpenAPI allows, and what it does not: never a failure, always what it says.

A few examples for each operation, always the same ones; RINGDOVE_EXAMPLES asks for more.
"""

import json
import os
import re
import zlib
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import positive_data_acceptance

from rest.caller import Caller, QueueCaller
from ringdove import limits
from ringdove.core.block import Block
from ringdove.frontends.rest import openapi, shapes
from ringdove.frontends.rest.api import ROUTES
from ringdove.frontends.rest.routes import BLOCK, NDJSON
from server.running import ServerThread

EXAMPLES = int(os.environ.get("RINGDOVE_EXAMPLES", "20"))

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "orders": {"order": "key", "stripes": 3, "receives_max": 3},
    "urgent": {"priority": 9, "dead_letter": "plain"},
}
NAME = re.compile(openapi.NAME["pattern"])

SCHEMA = schemathesis.openapi.from_dict(json.loads(openapi.document(ROUTES)))


@schemathesis.serializer(NDJSON)
def as_lines(_: Any, value: Any) -> bytes:
    """Lines of JSON, or of anything else."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.serializer(BLOCK)
def as_block(_: Any, value: Any) -> bytes:
    """A block, in one case of two damaged at one place."""
    body = repr(value).encode()
    data = bytearray(Block.build([body, body[:5]], sent_ms=1).buffer)
    chosen = zlib.crc32(body)
    if chosen % 2:
        data[chosen % len(data)] ^= 1 + chosen % 255
    return bytes(data)


@pytest.fixture
def url(server: ServerThread) -> str:
    """Where there are queues, with messages in them."""
    for name, settings_ in QUEUES.items():
        queue = QueueCaller(Caller(server.http_port), name).create(**settings_)
        queue.send({"messages": [{"body": str(n), "key": f"k{n}"} for n in range(100)]})
    return server.http_url


def aim(case: Any) -> None:
    """Mostly ask for queues that there are, and never wait long for messages."""
    name = case.path_parameters.get("queue")
    if isinstance(name, str) and NAME.fullmatch(name) and len(name) <= limits.NAME_CHARS_MAX:
        known = [*QUEUES, "nowhere"]
        case.path_parameters["queue"] = known[zlib.crc32(name.encode()) % len(known)]
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0.01 < wait <= shapes.WAIT_S_MAX:
        case.query["wait"] = 0.01


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_does_what_its_description_says(case: Any, url: str):
    aim(case)
    # A schema cannot say which receipts, settings and names there are, so good data may be refused.
    case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance])
