"""Backups of a cluster: a picture of what every shard holds, and clusters made from them.

    OUT/A1.rdb      what shard A1 held, as its master sent it
    OUT/plan.json   the blueprint; written last, so where it is the backup is whole

A master sends its picture over the wire, as it does to a new copy, so no access to its files is
needed and nothing is written on its disk. Each picture is of one moment; those of different shards
are of different ones, some seconds apart. Everything that was acknowledged before the backup began
is in it.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import hiredis

from ringdove.cluster.asking import NO_LOGIN, connect, entrance
from ringdove.cluster.forming import CATCH_UP_S, ignore, look_around, masters_of
from ringdove.cluster.layout import encode_blueprint
from ringdove.cluster.plan import read_plan
from ringdove.errors import InvalidArgument, StoreUnavailable

if TYPE_CHECKING:
    import socket
    from pathlib import Path
    from typing import BinaryIO

    from ringdove.cluster.forming import Show
    from ringdove.cluster.layout import Blueprint
    from ringdove.stores.fabric.wire import Login, NodeAddress

#: Pictures taken at the same time: each is a process of its own beside the master.
_PARALLEL_MAX = 4

#: Seconds of silence after which a master has failed: it gives a sign of life every second.
_SILENCE_S = 30.0

_CHUNK_BYTES = 1024 * 1024

#: A picture whose length is not known beforehand ends with a mark of so many bytes.
_MARK_BYTES = 40

_pack: Any = hiredis.pack_command


def back_up(blueprint: Blueprint, out: Path, show: Show = ignore) -> dict[str, int]:
    """Take a picture of every shard; the bytes of each. `show` is told how many are done."""
    if out.exists() and any(out.iterdir()):
        raise InvalidArgument(f"Directory {out} is not empty: name another.")
    masters = masters_of(blueprint, look_around(blueprint))
    unserved = [shard for shard, master in masters.items() if master is None]
    if unserved:
        raise StoreUnavailable(f"Nobody serves {', '.join(unserved)}: nothing was backed up.")
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    addresses = {shard: master.address for shard, master in masters.items() if master is not None}
    sizes: dict[str, int] = {}
    with ThreadPoolExecutor(_PARALLEL_MAX) as pool:
        taken = pool.map(
            lambda shard: take(addresses[shard], out / f"{shard}.rdb", blueprint.login), addresses
        )
        for shard, size in zip(addresses, taken, strict=True):
            sizes[shard] = size
            show(len(sizes))
    _write_durably(out / "plan.json", encode_blueprint(blueprint.shape).encode())
    return sizes


def read_backup(directory: Path) -> tuple[Blueprint, dict[str, Path]]:
    """The blueprint of a backup and its pictures by shard; refuses one that is not whole."""
    blueprint = read_plan(directory)
    pictures = {shard: directory / f"{shard}.rdb" for shard in blueprint.shards}
    missing = [shard for shard, path in pictures.items() if not path.exists()]
    if missing:
        raise InvalidArgument(
            f"{directory} is no whole backup: there is no picture of {', '.join(missing)}."
        )
    return blueprint, pictures


def take(address: NodeAddress, path: Path, login: Login = NO_LOGIN) -> int:
    """Have a process send a picture of what it holds into a file; its bytes."""
    try:
        with (
            connect(address, login, _SILENCE_S) as connection,
            path.open("wb") as file,
        ):
            size = _Picture(connection).into(file, login)
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreUnavailable(f"Redis at {address} sent no picture: {error}.") from error
    return size


class _Picture:
    """What arrives from a process that was asked to synchronise a copy, the picture only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self._deadline_s = time.monotonic() + CATCH_UP_S

    def into(self, file: BinaryIO, login: Login) -> int:
        """Ask for the picture and write it to a file; its bytes."""
        for command in entrance(login):
            self._ask(*command)
        self._ask("REPLCONF", "capa", "eof")
        self._ask("REPLCONF", "rdb-only", "1")
        head = self._ask("SYNC")
        if head.startswith(b"$EOF:"):
            return self._until_mark(head.removeprefix(b"$EOF:"), file)
        return self._bytes(int(head.removeprefix(b"$")), file)

    def _ask(self, *words: str | int) -> bytes:
        """Send a command; the first line of the reply, which must be no error."""
        self._connection.sendall(_pack(words))
        line = self._line()
        if not line.startswith((b"+", b"$")):
            raise OSError(f"it answered {line.decode(errors='replace')!r}")
        return line

    def _line(self) -> bytes:
        """The next line that is not empty: empty ones are signs of life."""
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if not end:
                self._buffer += self._receive()
                continue
            self._buffer = rest
            if line.rstrip(b"\r"):
                return line.rstrip(b"\r")

    def _until_mark(self, mark: bytes, file: BinaryIO) -> int:
        if len(mark) != _MARK_BYTES:
            raise OSError(f"it announced a mark of {len(mark)} bytes")
        size, kept = 0, self._buffer
        while not kept.endswith(mark):
            # What may be the beginning of the mark waits for the rest of it.
            size += file.write(kept[:-_MARK_BYTES])
            kept = kept[-_MARK_BYTES:] + self._receive()
        return size + file.write(kept[:-_MARK_BYTES])

    def _bytes(self, count: int, file: BinaryIO) -> int:
        size = file.write(self._buffer[:count])
        while size < count:
            size += file.write(self._receive()[: count - size])
        return size

    def _receive(self) -> bytes:
        if time.monotonic() > self._deadline_s:
            raise OSError(f"it took longer than {CATCH_UP_S:.0f} s")
        data = self._connection.recv(_CHUNK_BYTES)
        if not data:
            raise OSError("it hung up")
        return data


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
