"""A request and its response, as the resources see them; and one table from error to code."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ringdove import errors
from ringdove.errors import ClientError, RingdoveError
from ringdove.protocol.coap.blocks import BlockRefused
from ringdove.protocol.coap.packet import Code, Option, Packet, uint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from ringdove.pending import Pending
    from ringdove.protocol.coap.packet import Options

    #: Where a packet came from, as sockets name it.
    Peer: TypeAlias = tuple[Any, ...]

    #: Tells an observer something; whether it has arrived is known when its pending is done.
    Tell: TypeAlias = "Callable[[Response], Pending[bool]]"

    #: What follows a response that began an observation, until its end.
    Observation: TypeAlias = Callable[[Tell], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)

#: Seconds after which a second attempt may succeed.
RETRY_S = 1

#: Bytes of the sentence that goes with a refusal: it must fit in one datagram.
_SENTENCE_BYTES_MAX = 512


class Request(NamedTuple):
    """A request that is new."""

    peer: Peer
    packet: Packet

    @property
    def path(self) -> list[str]:
        """The parts of the path."""
        return self._texts(Option.URI_PATH)

    @property
    def query(self) -> list[tuple[str, str]]:
        """Names and values of the query; a name alone has an empty one."""
        parts = [text.partition("=") for text in self._texts(Option.URI_QUERY)]
        return [(name, value) for name, _, value in parts]

    def _texts(self, option: Option) -> list[str]:
        try:
            return [value.decode() for value in self.packet.values(option)]
        except UnicodeDecodeError:
            raise errors.InvalidArgument("Path and query must be UTF-8.") from None


class Response(NamedTuple):
    """What to answer, and what follows."""

    code: Code
    options: Options = ()
    payload: bytes = b""
    #: Done when it turns out that the response has not arrived.
    when_lost: Callable[[], None] | None = None
    observation: Observation | None = None

    @property
    def asks_again(self) -> bool:
        """Whether nothing was done, and the same request may succeed later."""
        return self.code in (Code.UNAVAILABLE, Code.TOO_MANY_REQUESTS)


class Refused(ClientError):
    """A request that is refused with a code of its own."""

    code = "refused"

    def __init__(self, answer: Code, text: str) -> None:
        super().__init__(text)
        self.answer = answer


#: The code of each class of error; a class that is not listed has that of its base.
CODES: dict[type[Exception], Code] = {
    ClientError: Code.BAD_REQUEST,
    errors.QueueNotFound: Code.NOT_FOUND,
    errors.SubscriptionNotFound: Code.NOT_FOUND,
    errors.SubscriptionBusy: Code.CONFLICT,
    errors.SettingsStale: Code.UNAVAILABLE,
    errors.MessageTooLarge: Code.TOO_LARGE,
    errors.QueueFull: Code.UNAVAILABLE,
    errors.ReceiptStale: Code.CONFLICT,
    errors.LimitExceeded: Code.TOO_MANY_REQUESTS,
    errors.ConnectionClosed: Code.UNAVAILABLE,
    errors.NotAuthorized: Code.UNAUTHORIZED,
    errors.LocalProtocolError: Code.BAD_REQUEST,
    errors.StoreUnavailable: Code.UNAVAILABLE,
    Exception: Code.SERVER_ERROR,
}


def refusal(error: BaseException | None) -> Response:
    """The response to a request that failed."""
    if isinstance(error, Refused | BlockRefused):
        code = error.answer
    else:
        code = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    if code == Code.SERVER_ERROR:
        # What failed inside may name files and data; that belongs in the log.
        _log.error("A request failed.", exc_info=error)
    told = str(error) if isinstance(error, RingdoveError) and code != Code.SERVER_ERROR else ""
    sentence = told.encode()[:_SENTENCE_BYTES_MAX].decode(errors="ignore").encode()
    response = Response(code, payload=sentence)
    return later(response) if response.asks_again else response


def later(response: Response, wait_s: float = RETRY_S) -> Response:
    """The response with the time after which to try again, in whole seconds."""
    wait = (Option.MAX_AGE, uint(max(1, round(wait_s))))
    return response._replace(options=(*response.options, wait))
