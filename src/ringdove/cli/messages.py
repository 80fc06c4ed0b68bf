"""Commands on messages: send, receive, peek, replay, and settling by receipt."""

from __future__ import annotations

import base64
import json as jsonlib
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from ringdove.cli import session
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, message_dict, progress, say
from ringdove.cli.session import connected
from ringdove.cli.values import attribute, duration_ms
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader

    from ringdove.client.outgoing import NewMessage
    from ringdove.controllers.sending import SentBatch
    from ringdove.core.receipt import Receipt

#: Lines read from a file or pipe before they are sent together, and bytes read at a time.
_LINES_PER_SEND = 5_000
_READ_BYTES = 1 << 20

_NDJSON_FIELDS = {"body", "body_base64", "key", "key_base64", "attributes", "id"}


def send(
    queue: str,
    *bodies: Annotated[str, Parameter(allow_leading_hyphen=True)],
    key: str | None = None,
    attributes: Annotated[list[str] | None, Parameter(name=["--attribute", "-a"])] = None,
    id: str | None = None,
    priority: int = 0,
    delay_ms: str | None = None,
    file: Annotated[list[Path] | None, Parameter(name=["--file", "-f"])] = None,
    ndjson: Flag = False,
    compression: str = "none",
    json: JsonFlag = False,
) -> None:
    """Send messages: each argument is one; - reads one per line from standard input, as they come.

    For example:

        ringdove send readings 21.5 22.0 --key meter-7
        seq 1000000 | ringdove send readings -
        ringdove send readings --ndjson - < messages.ndjson
        ringdove send images --file a.png --file b.png

    Parameters
    ----------
    queue
        The queue to send to.
    bodies
        Messages, or - for standard input.
    key
        Key of all messages.
    attributes
        name=value for all messages; may be repeated.
    id
        Message id, which the queue stores only once; for a single message.
    priority
        Priority of all messages.
    delay_ms
        Wait before delivery, for example 30s.
    file
        Send the content of a file as one message; may be repeated.
    ndjson
        Lines are JSON objects with body (or body_base64), key (or key_base64), attributes and id.
    compression
        Of the block: none, zstd or lz4.
    json
        Print a summary as JSON.
    """
    _refuse_options(bodies)
    messages = _messages(bodies, file or [], ndjson)
    if id is not None:
        messages = _only(messages)
    shared = dict(map(attribute, attributes or []))
    options: dict[str, Any] = {"priority": priority, "compression": compression}
    if delay_ms is not None:
        options["delay_ms"] = duration_ms(delay_ms)
    tally = _Tally(queue, json)
    with connected() as connection, progress("sending") as show:
        target = connection.queue(queue)
        target.info()
        with tally.told_if_cut_short():
            for part in _parts(messages):
                tally.begin(len(part))
                tally.add(target.send_many([_with(m, key, shared, id) for m in part], **options))
                show(tally.sent)
    tally.tell()


class _Tally:
    """How many messages a command has sent: told at the end, whichever way it ends."""

    def __init__(self, queue: str, as_json: bool) -> None:
        self._queue = queue
        self._as_json = as_json
        self.sent = self._duplicates = self._under_way = 0

    def begin(self, count: int) -> None:
        self._under_way = count

    def add(self, sent: SentBatch) -> None:
        self.sent += len(sent)
        self._duplicates += sent.duplicates
        self._under_way = 0

    @contextmanager
    def told_if_cut_short(self) -> Iterator[None]:
        """Whoever sends a long file must know where to go on."""
        try:
            yield
        except BaseException:
            if self.sent:
                self.tell()
            if self.sent and self._under_way:
                say(f"Of the next {self._under_way:,}, some may have been stored.")
            raise

    def tell(self) -> None:
        if self._as_json:
            emit_json({"sent": self.sent, "duplicates": self._duplicates})
            return
        note = f", {self._duplicates:,} of them known already" if self._duplicates else ""
        say(f"Sent {self.sent:,} message{'' if self.sent == 1 else 's'} to {self._queue}{note}.")


def _refuse_options(bodies: tuple[str, ...]) -> None:
    """A message that looks like an option is probably one, misspelled; after -- it is a message."""
    words = session.words.get()
    before = words[: words.index("--")] if "--" in words else words
    for body in bodies:
        if body.lstrip("-")[:1].isalpha() and body.startswith("-") and body in before:
            if body in ("--url", "--data"):
                raise InvalidArgument(f"{body} stands before the queue: ringdove send {body} ...")
            raise InvalidArgument(
                f"{body!r} is no option of send. Write -- before messages that begin with '-'."
            )


def receive(
    queue: str,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"])] = 1,
    wait: float = 0,
    ack: Flag = False,
    subscription: str = "default",
    lease_ms: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Receive messages, one body per line.

    Without --ack they stay leased to you and come back when the lease ends; settle them with
    their receipts (see --json), for example `ringdove ack RECEIPT`.

    Parameters
    ----------
    queue
        The queue to receive from.
    max
        The most messages to receive.
    wait
        Seconds to wait for the first.
    ack
        Acknowledge what was printed.
    subscription
        Receive on behalf of this reader group.
    lease_ms
        How long they stay leased, for example 5m.
    json
        Print one JSON object per message, with its receipt.
    """
    if max < 1:
        raise InvalidArgument(f"--max is {max}; it must be 1 or more.")
    left = max
    with connected() as connection:
        target = connection.queue(queue)
        lease = None if lease_ms is None else duration_ms(lease_ms)
        while left > 0:
            batch = target.receive(
                min(left, _LINES_PER_SEND), wait if left == max else 0,
                subscription=subscription, lease_ms=lease,
            )  # fmt: skip
            if not batch:
                break
            _print(batch, json)
            left -= len(batch)
            if ack:
                batch.ack()
    received = max - left
    if sys.stderr.isatty():
        settled = "" if ack or not received else "; not acknowledged, so they will come back"
        say(f"Received {received:,} of at most {max:,} messages{settled}.")


def peek(
    queue: str,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"])] = 10,
    subscription: str = "default",
    json: JsonFlag = False,
) -> None:
    """Look at messages from the oldest that is not done on, without receiving them.

    Parameters
    ----------
    queue
        The queue.
    max
        The most messages to show.
    subscription
        Whose view.
    json
        Print one JSON object per message.
    """
    with connected() as connection:
        _print(connection.queue(queue).peek(max, subscription=subscription), json, receipt=False)


def replay(
    queue: str,
    *,
    offset: int | None = None,
    time_ms: int | None = None,
    max: Annotated[int | None, Parameter(name=["--max", "-n"])] = None,
    json: JsonFlag = False,
) -> None:
    """Read messages again from an offset or a time, done or not, as long as they are stored.

    Parameters
    ----------
    queue
        The queue.
    offset
        First offset of each stripe.
    time_ms
        Messages stored at or after this time, in milliseconds since 1970.
    max
        The most messages to show.
    json
        Print one JSON object per message.
    """
    from ringdove.stores.base import Start

    if max is not None and max < 1:
        raise InvalidArgument(f"--max is {max}; it must be 1 or more.")
    if offset is not None and time_ms is not None:
        raise InvalidArgument("Give --offset or --time-ms, not both.")
    start = Start("earliest")
    if offset is not None:
        start = Start("offset", offset)
    elif time_ms is not None:
        start = Start("time", time_ms)
    with connected() as connection:
        messages = connection.queue(queue).replay(start)
        for count, message in enumerate(messages):
            if max is not None and count >= max:
                break
            _print([message], json, receipt=False)


def ack(*receipts: str) -> None:
    """Mark messages done by their receipts.

    Parameters
    ----------
    receipts
        Receipts, as `receive --json` prints them.
    """
    _settle(receipts, "Acknowledged", lambda backend, found: backend.acknowledge(found))


def release(*receipts: str, delay_ms: str | None = None) -> None:
    """Give messages back by their receipts.

    Parameters
    ----------
    receipts
        Receipts, as `receive --json` prints them.
    delay_ms
        Wait before they can be received again; by default the queue's back-off.
    """
    delay = None if delay_ms is None else duration_ms(delay_ms)
    _settle(receipts, "Released", lambda backend, found: backend.release(found, delay))


def extend(*receipts: str, lease_ms: str = "30s") -> None:
    """Keep messages leased by their receipts.

    Parameters
    ----------
    receipts
        Receipts, as `receive --json` prints them.
    lease_ms
        How long from now.
    """
    lease = duration_ms(lease_ms)
    _settle(receipts, "Extended", lambda backend, found: backend.extend(found, lease))


def _settle(receipts: tuple[str, ...], verb: str, act: Any) -> None:
    from ringdove.controllers.dequeue import raise_refusals
    from ringdove.pending import run

    if not receipts:
        raise InvalidArgument("Name at least one receipt; 'ringdove receive --json' prints them.")
    found = [_receipt(text) for text in receipts]
    with connected() as connection:
        count = raise_refusals(run(act(connection.backend, found)))
    say(f"{verb} {count:,} message{'' if count == 1 else 's'}.")


def _receipt(text: str) -> Receipt:
    from ringdove.core.receipt import Receipt

    try:
        return Receipt.decode(base64.urlsafe_b64decode(text))
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no receipt; 'ringdove receive --json' prints them."
        ) from None


def _messages(bodies: tuple[str, ...], files: list[Path], ndjson: bool) -> Iterator[Any]:
    if not bodies and not files:
        raise InvalidArgument("Nothing to send: give messages, a --file, or - for standard input.")
    for body in bodies:
        if body == "-":
            yield from _ndjson(_lines()) if ndjson else _lines()
        else:
            yield _from_ndjson(body.encode()) if ndjson else body.encode()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"Cannot read {file}: {error.strerror}.") from error
        yield from _ndjson(content.split(b"\n"), f" of {file}") if ndjson else [content]


def _only(messages: Iterator[Any]) -> Iterator[Any]:
    """The one message that an id is for."""
    found = list(islice((message for message in messages if message is not None), 2))
    if len(found) > 1:
        raise InvalidArgument("--id names one message; send messages with ids one by one.")
    return iter(found)


def _lines() -> Iterator[bytes | None]:
    """Lines of standard input; and None where the next may be long in coming."""
    rest = b""
    source = cast("BufferedReader", sys.stdin.buffer)
    try:
        while data := source.read1(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
            yield None
    except OSError as error:
        raise InvalidArgument(f"Standard input cannot be read: {error.strerror}.") from error
    if rest:
        yield rest


def _ndjson(lines: Iterable[bytes | None], where: str = "") -> Iterator[NewMessage | None]:
    """Messages of lines; a refusal tells which line. Empty ones mean nothing, as over REST."""
    number = 0
    for line in lines:
        if line is None:
            yield None
            continue
        number += 1
        if line.strip():
            try:
                yield _from_ndjson(line)
            except InvalidArgument as error:
                raise InvalidArgument(f"In line {number}{where}: {error}") from error


def _from_ndjson(line: bytes) -> NewMessage:
    from ringdove.client.outgoing import NewMessage

    try:
        fields = jsonlib.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")  # noqa: TRY301, TRY004  one refusal for all
        unknown = set(fields) - _NDJSON_FIELDS
        if unknown or ("body" in fields) == ("body_base64" in fields):
            raise ValueError(f"it has {sorted(fields)}")  # noqa: TRY301
        body = fields.get("body")
        if "body_base64" in fields:
            body = base64.b64decode(fields["body_base64"], validate=True)
        elif body is None:
            raise ValueError("body is null")  # noqa: TRY301
        elif not isinstance(body, str):
            body = jsonlib.dumps(body)
        key = _utf8(fields.get("key"))
        if "key_base64" in fields:
            if key is not None:
                raise ValueError("key is said twice")  # noqa: TRY301
            key = base64.b64decode(fields["key_base64"], validate=True)
        attributes = fields.get("attributes")
        if not isinstance(attributes, dict | None):
            raise ValueError("attributes is no object")  # noqa: TRY301, TRY004
        return NewMessage(_utf8(body), key, attributes, _utf8(fields.get("id")))
    except (ValueError, TypeError, RecursionError) as error:
        shown = line[:80].decode(errors="replace")
        raise InvalidArgument(
            f"{shown!r} is no message: a JSON object with body or body_base64, perhaps key, "
            f"attributes and id ({error})."
        ) from error


def _utf8(value: Any) -> Any:
    """Text as bytes; ValueError where JSON has half a character."""
    return value.encode() if isinstance(value, str) else value


def _with(message: Any, key: str | None, attributes: dict[str, Any], id: str | None) -> Any:
    from ringdove.client.outgoing import NewMessage

    if key is None and not attributes and id is None:
        return message
    if not isinstance(message, NewMessage):
        message = NewMessage(message)
    return message._replace(
        key=message.key if message.key is not None else key,
        attributes={**attributes, **(message.attributes or {})} or None,
        id=message.id if message.id is not None else id,
    )


def _parts(messages: Iterator[Any]) -> Iterator[list[Any]]:
    """What is sent together: so many, or what there is before one has to wait (None)."""
    part: list[Any] = []
    for message in messages:
        if message is not None:
            part.append(message)
        if part and (message is None or len(part) >= _LINES_PER_SEND):
            yield part
            part = []
    if part:
        yield part


def _print(messages: Iterable[Any], as_json: bool, *, receipt: bool = True) -> None:
    for message in messages:
        if as_json:
            emit_json(message_dict(message, receipt=receipt))
        else:
            sys.stdout.buffer.write(message.body + b"\n")
    sys.stdout.flush()
