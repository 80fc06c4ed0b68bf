"""Reads every key of a stripe of the fabric, and says what breaks the invariants of `library.lua`.

It shares no code with the library: it takes the schema of its header at its word. All counters are
counted again, every run must be in exactly the place that its state asks for, and nothing may be
left of subscriptions that are gone.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from fabric.redis import RedisProcess

READY, LEASED, WAITING = 0, 1, 2

_STATE = (
    "epoch", "tail", "stable", "head", "dropped", "nbytes", "numbered", "owner", "oldest", "kept",
    "marked", "marked_at", "delays", "garbage", "run",
)  # fmt: skip
_SUBSCRIPTION = (
    "number", "floor", "scan", "fence", "owner", "held", "leased", "delayed", "above", "leases",
    "place", "scan_due",
)  # fmt: skip

_NOTE = struct.Struct(">QIIQQ")
_RUN = struct.Struct(">QQQQIBBB")


class Run(NamedTuple):
    """A member of kind x."""

    lo: int
    hi: int
    till: int
    state: int
    token: bytes
    group: bytes


def audit(redis: RedisProcess, prefix: str) -> list[str]:
    """What is wrong with the stripe whose keys begin with `prefix`; empty when nothing is."""
    fields = _pairs(redis.ask("HGETALL", prefix + "m"))
    state = _named(_STATE, fields[b"s"][8:])
    subs = {
        field[1:]: _named(_SUBSCRIPTION, value)
        for field, value in fields.items()
        if field.startswith(b"=")
    }
    floors = _pairs(redis.ask("ZRANGE", prefix + "f", 0, -1, "WITHSCORES"))
    faults = []
    if {name: int(floor) for name, floor in floors.items()} != {
        name: sub["floor"] for name, sub in subs.items()
    }:
        faults.append(f"floors are {floors}")
    members: dict[int, list[bytes]] = defaultdict(list)
    for member in redis.ask("ZRANGE", prefix + "x", 0, -1):
        members[int.from_bytes(member[:4], "big")].append(member[4:])
    for name, sub in subs.items():
        faults += [f"{name!r}: {fault}" for fault in _audit_index(sub, members[sub["number"]])]
    forgotten = struct.iter_unpack(">I", state["garbage"])
    known = {sub["number"] for sub in subs.values()} | {number for (number,) in forgotten}
    faults += [
        f"index of {number} is left"
        for number in members
        if members[number] and number not in known
    ]
    return faults + _audit_log(redis, prefix, state)


def alter(redis: RedisProcess, prefix: str, sub: str | None = None, **chosen: Any) -> None:
    """Change what a stripe, or a subscription of it, has written: to set a scene for a test."""
    names, field = (_STATE, "s") if sub is None else (_SUBSCRIPTION, f"={sub}")
    raw = redis.ask("HGET", prefix + "m", field)
    head = raw[:8] if sub is None else b""
    values = {**_named(names, raw[len(head) :]), **chosen}
    packed = [v.decode() if isinstance(v, bytes) else v for v in values.values()]
    redis.ask("HSET", prefix + "m", field, head + b"".join(map(msgspec.msgpack.encode, packed)))
    if sub is not None:
        redis.ask("ZADD", prefix + "f", values["floor"], sub)


def _audit_index(sub: dict[str, Any], members: list[bytes]) -> list[str]:
    kinds: dict[bytes, list[bytes]] = defaultdict(list)
    for member in members:
        kinds[member[:1]].append(member[1:])
    runs = [_run(member) for member in kinds[b"x"]]
    done = [_numbers(member) for member in kinds[b"d"]]
    fresh = [_numbers(member[8:]) for member in kinds[b"w"] if len(member) == 24]
    fresh = [(max(lo, sub["floor"]), hi) for lo, hi in fresh if hi > sub["floor"]]

    def messages(state: int) -> int:
        return sum(run.hi - run.lo for run in runs if run.state == state)

    counted = {
        "leased": messages(LEASED),
        "delayed": messages(WAITING),
        "above": sum(hi - lo for lo, hi in done),
        "leases": sum(run.token != b"" for run in runs),
    }
    faults = [
        f"{what} is {sub[what]}, not {count}"
        for what, count in counted.items()
        if sub[what] != count
    ]
    spans = sorted([(run.lo, run.hi) for run in runs] + done + fresh)
    for (_, before), (lo, hi) in zip([(0, sub["floor"]), *spans], spans, strict=False):
        if not before <= lo < hi:
            faults.append(f"{lo}..{hi} overlaps what is before it")
    if [span for span in spans if span not in done and span[1] > sub["scan"]]:
        faults.append("a run is above the scan")
    return faults + _audit_places(kinds, runs)


def _audit_places(kinds: dict[bytes, list[bytes]], runs: list[Run]) -> list[str]:
    """Runs are where their state says, and groups are as their runs are."""
    expected: dict[bytes, set[bytes]] = {kind: set() for kind in (b"t", b"r", b"w")}
    out: dict[bytes, int] = defaultdict(int)
    for run in runs:
        place = run.lo.to_bytes(8, "big")
        if run.state != READY:
            expected[b"t"].add(run.till.to_bytes(8, "big") + place)
            out[run.group] += 1
        elif run.group:
            expected[b"w"].add(run.group + place + run.hi.to_bytes(8, "big") + b"x")
        else:
            expected[b"r"].add(place)
    waiting = {member for member in kinds[b"w"] if len(member) != 24}
    found = {b"t": set(kinds[b"t"]), b"r": set(kinds[b"r"]), b"w": waiting}
    faults = [
        f"{kind!r} has {found[kind]}, not {expected[kind]}"
        for kind in found
        if found[kind] != expected[kind]
    ]
    groups = {member[:8]: _numbers(member[8:]) for member in kinds[b"g"]}
    line = {member[8:]: int.from_bytes(member[:8], "big") for member in kinds[b"q"]}
    out.pop(b"", None)
    if {group: count for group, (count, _) in groups.items() if count} != out:
        faults.append(f"groups are {groups}, but out are {dict(out)}")
    if line != {group: place for group, (_, place) in groups.items() if place}:
        faults.append(f"groups are {groups}, but the line is {line}")
    if set(line) != {member[:8] for member in kinds[b"w"]} - set(out):
        faults.append(f"the line is {line}, but waiting are {kinds[b'w']}")
    return faults


def _audit_log(redis: RedisProcess, prefix: str, state: dict[str, Any]) -> list[str]:
    members = redis.ask("ZRANGE", prefix + "n", 0, -1)
    notes = [_NOTE.unpack_from(member) for member in members]
    first = notes[0] if notes else None
    hashes = set(redis.ask("HKEYS", prefix + "k"))
    expected = {
        "nbytes": sum(note[2] for note in notes),
        "head": first[0] + 1 - first[1] if first else state["tail"],
        "oldest": first[3] if first else -1,
        "delays": redis.ask("ZCARD", prefix + "y"),
    }
    faults = [
        f"{what} is {state[what]}, not {value}"
        for what, value in expected.items()
        if state[what] != value
    ]
    if set(redis.ask("HKEYS", prefix + "l")) != {member[_NOTE.size :] for member in members}:
        faults.append("log and notes differ")
    if {field[:8] for field in hashes} - {note[0].to_bytes(8, "big") for note in notes}:
        faults.append("key hashes of blocks that are gone")
    return faults


def _run(member: bytes) -> Run:
    lo, hi, till, _, _, state, _, size = _RUN.unpack_from(member)
    rest = member[_RUN.size :]
    return Run(lo, hi, till, state, rest[size:], rest[:size])


def _numbers(member: bytes) -> tuple[int, int]:
    first, second = struct.unpack(">QQ", member[:16])
    return first, second


def _named(names: tuple[str, ...], packed: bytes) -> dict[str, Any]:
    """Values that are packed one behind the other, as in an array after its head; text as bytes."""
    head = bytes([0x90 + len(names)])
    values = msgspec.msgpack.decode(head + packed, type=list[msgspec.Raw])
    return dict(zip(names, map(_value, values), strict=True))


def _value(raw: msgspec.Raw) -> Any:
    data = bytes(raw)
    if 0xA0 <= data[0] < 0xC0:
        return data[1:]
    return data[2:] if data[0] == 0xD9 else msgspec.msgpack.decode(data)


def _pairs(reply: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))
