"""What goes to the functions of `library.lua`, and what comes back."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.core.block import Block
from ringdove.core.dedup import Appended
from ringdove.errors import ClientError, RingdoveError, SettingsRefused, StoreCorrupted
from ringdove.protocol.messages import WireError, decode_error
from ringdove.stores.fabric.library import function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.dedup import Segment
    from ringdove.core.settings import QueueSettings
    from ringdove.stores.fabric.wire import Word


def fcall(name: str, keys: Sequence[Word], arguments: Sequence[Word]) -> tuple[Word, ...]:
    """The command that calls a function."""
    return ("FCALL", function(name), len(keys), *keys, *arguments)


def copies_needed(told: Any) -> int:
    """How many copies a change needs besides the master, by what `library.lua` answered to it."""
    copies, when_short, *_ = told
    if copies == b"!":
        return 0
    return int(copies) - 1 if when_short == b"refuse" else min(int(copies) - 1, 1)


def settings_words(settings: QueueSettings, version: int) -> list[Word]:
    """What of the settings counts in the store; see `configured` in the library."""
    if settings.relayed:
        raise SettingsRefused(
            "A fabric keeps no copies of other brokers' queues: give the relay a data directory."
        )
    return [
        version, settings.order, settings.retention_ms, settings.keep_done_ms, settings.dedup_ms,
        settings.bytes_max, int(settings.when_full == "drop-oldest"), settings.receives_max or 0,
        settings.backoff_ms, settings.backoff_ms_max, settings.copies, settings.when_short,
    ]  # fmt: skip


def segment_words(segment: Segment, name: bytes) -> list[Word]:
    """What an append takes of each segment, whose block was written under a name."""
    block = segment.block
    hashes = bytes(block.key_hashes()) if block.keyed else b""
    return [
        segment.producer or b"", segment.sequence, segment.span, int(segment.gaps),
        segment.message_id or b"", block.count, block.not_before_ms, hashes, name,
        block.nbytes,
    ]  # fmt: skip


class Note(NamedTuple):
    """What a stripe's notes say of a block."""

    last: int
    messages: int
    nbytes: int
    stored_ms: int
    name: bytes


def note_of(member: bytes) -> Note:
    """A note, from its place in the set of notes."""
    last, messages, nbytes, stored_ms, _ = _NOTE.unpack_from(member)
    return Note(last, messages, nbytes, stored_ms, member[_NOTE.size :])


def block_of(note: Note, data: bytes) -> Block:
    """A block as it is stored, stamped."""
    try:
        block = Block.decode(data, trusted=True)
    except RingdoveError as error:
        raise StoreCorrupted(f"A block in the fabric is damaged: {error}") from error
    return block.stamp(note.last + 1 - note.messages, note.stored_ms)


def accepted(reply: Any) -> Any:
    """The reply, unless it is a refusal, which is raised."""
    if isinstance(reply, list) and len(reply) == 4 and reply[0] == b"!":
        raise refusal_of(reply)
    return reply


def refusal_of(reply: Sequence[Any]) -> RingdoveError:
    """The error that a refusal means."""
    _, code, text, number = reply
    return decode_error(WireError(code.decode(), text.decode(), int(float(number))))


def answer_of(told: Any) -> int | ClientError:
    """What became of a claim."""
    if isinstance(told, list):
        error = refusal_of(told)
        assert isinstance(error, ClientError)
        return error
    return int(told)


def appended_of(told: Sequence[Any]) -> Appended | ClientError:
    """What became of a segment."""
    if told[0] == b"+":
        return Appended(int(told[1]))
    if told[0] == b"=":
        return Appended(int(float(told[1])), duplicate=True)
    error = refusal_of(told)
    assert isinstance(error, ClientError)
    return error


#: Last offset, count, bytes, when stored, not before; the block's name follows.
_NOTE = struct.Struct(">QIIQQ")
