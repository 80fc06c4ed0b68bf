"""What calls take by name is what the classes behind them take, name by name and kind by kind."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import ringdove
from ringdove import errors
from ringdove.client import aio, options, sync
from ringdove.client.joining import ProducerOptions
from ringdove.client.link import LinkOptions
from ringdove.client.outgoing import Text
from ringdove.client.reading import Reading
from ringdove.clock import Clock
from ringdove.core import settings
from ringdove.protocol.session import SessionState

NAMES = {
    **vars(settings),
    "Callable": Callable,
    "Clock": Clock,
    "Queue": aio.Queue,
    "SessionState": SessionState,
    "Text": Text,
}


def told(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, None, NAMES)


def by_name(function: Any) -> dict[str, Any]:
    kinds = told(function)
    parameters = inspect.signature(function).parameters.values()
    return {one.name: kinds[one.name] for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_of_queues():
    assert told(options.QueueArguments) == get_type_hints(settings.QueueSettings)


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        (options.ProducerArguments, ProducerOptions),
        (options.ConnectionArguments, LinkOptions),
    ],
)
def test_of_producers_and_connections(arguments, used):
    clock = {"clock": Clock | None} if used is LinkOptions else {}
    assert told(arguments) == {field.name: told(used)[field.name] for field in fields(used)} | clock


@pytest.mark.parametrize("used", [aio.Consumer.__init__, sync.Consumer.__init__])
def test_of_consumers(used):
    assert told(options.ConsumerArguments) == by_name(used)


def test_of_streams():
    assert told(options.StreamArguments) == by_name(Reading.__init__)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": 3}, "ringdove: takes no option timeout. Did you mean timeout_s?"),
        ({"connect_s": None}, "connect_s is None; it must be a number"),
        ({"timeout_s": "5s"}, "timeout_s is '5s'; it must be a number"),
        ({"session_s": -1}, "session_s is -1; it must be seconds, more than 0"),
        ({"silence_s": float("nan")}, "silence_s is nan; it must be seconds"),
    ],
)
def test_senseless_options_of_a_connection_are_refused_before_it_is_made(options, reason):
    with pytest.raises(errors.InvalidArgument, match=re.escape(reason)):
        ringdove.connect("ringdove://127.0.0.1:1", **options)
