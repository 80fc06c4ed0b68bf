"""The golden blocks: what each file under golden/ holds, and the program that writes missing ones.

Run `python tests/core/make_golden.py` after adding an entry. A file that exists is never written
again: it pins the format, and a builder that no longer reproduces it has changed the format. The
bytes that a compressor gives may differ between versions of its library, so `COMPRESSORS` records
those that wrote the compressed files; only with them are these expected byte for byte.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4
import zstandard

from ringdove.core.block import Block

DIRECTORY = Path(__file__).parent / "golden"

#: Versions of the C libraries with which the compressed files were written.
COMPRESSORS = {"zstd": (1, 5, 7), "lz4": "1.9.4"}

_NOON_MS = 1_700_000_000_000
_LINES = [b'{"sensor": %d, "celsius": %d.5}' % (n % 7, 20 + n % 5) for n in range(40)]


@dataclass(frozen=True)
class Golden:
    """One golden file: the messages in it, and how it was made."""

    name: str
    bodies: list[bytes]
    sent_ms: list[int]
    keys: list[bytes] | None = None
    attributes: list[dict[str, Any]] | None = None
    priority: int = 0
    not_before_ms: int = 0
    compression: str = "none"
    #: Base offset and store time, when a store has stamped the block.
    placed: tuple[int, int] = (0, 0)
    #: The messages cut out of those above, when the file is a slice.
    cut: slice = field(default_factory=lambda: slice(None))

    @property
    def path(self) -> Path:
        """Where the file is."""
        return DIRECTORY / f"{self.name}.block"

    def build(self) -> Block:
        """The block as today's builder makes it."""
        block = Block.build(
            self.bodies,
            sent_ms=self.sent_ms,
            keys=self.keys,
            attributes=self.attributes,
            priority=self.priority,
            not_before_ms=self.not_before_ms,
            compression=self.compression,
        )
        if self.placed != (0, 0):
            block = block.stamp(*self.placed)
        start, stop, _ = self.cut.indices(len(self.bodies))
        return block.slice(start, stop)

    def messages(self) -> list[tuple[bytes, bytes, dict[str, Any], int]]:
        """Body, key, attributes and send time of each message in the file."""
        count = len(self.bodies)
        keys = self.keys or [b""] * count
        attributes = self.attributes or [{}] * count
        return list(zip(self.bodies, keys, attributes, self.sent_ms, strict=True))[self.cut]


GOLDEN = [
    # The worked example of docs/block-format.md.
    Golden(
        "example",
        bodies=[b"21.5", b"on"],
        sent_ms=[_NOON_MS, _NOON_MS + 250],
        keys=[b"t1", b""],
        attributes=[{"unit": "C"}, {}],
        placed=(40, _NOON_MS + 300),
    ),
    Golden("one", bodies=[b"hello"], sent_ms=[_NOON_MS]),
    Golden("empty-bodies", bodies=[b"", b"", b""], sent_ms=[_NOON_MS] * 3),
    Golden("equal-lengths", bodies=[b"%04d" % n for n in range(11)], sent_ms=[_NOON_MS] * 11),
    Golden("unequal-lengths", bodies=[b"x" * n for n in (9, 0, 3, 8, 1)], sent_ms=[_NOON_MS] * 5),
    Golden(
        "times",
        bodies=[b"newest", b"oldest", b"between"],
        sent_ms=[_NOON_MS + 2**32 - 1, _NOON_MS, _NOON_MS + 1],
    ),
    Golden(
        "keys",
        bodies=[b"a", b"b", b"c", b"d"],
        sent_ms=[_NOON_MS] * 4,
        keys=[b"device-1", b"device-22", b"", b"device-1"],
    ),
    Golden(
        "attributes",
        bodies=[b"", b"", b""],
        sent_ms=[_NOON_MS] * 3,
        attributes=[
            {"none": None, "yes": True, "no": False, "small": 7, "negative": -(2**63)},
            {},
            {
                "large": 2**64 - 1,
                "float": 0.1,
                "text": "Gr\u00f6\u00dfe \u2603",
                "bytes": b"\x00\xff",
                "list": [1, "two", None],
            },
        ],
    ),
    Golden(
        "placed",
        bodies=[b"later"],
        sent_ms=[_NOON_MS],
        priority=9,
        not_before_ms=_NOON_MS + 60_000,
        placed=(2**53 - 1, _NOON_MS + 5),
    ),
    Golden("zstd", bodies=_LINES, sent_ms=list(range(40)), compression="zstd"),
    Golden("lz4", bodies=_LINES, sent_ms=list(range(40)), compression="lz4"),
    Golden(
        "zstd-everything",
        bodies=_LINES,
        sent_ms=[_NOON_MS + 7 * n for n in range(40)],
        keys=[b"sensor-%d" % (n % 7) for n in range(40)],
        attributes=[{"line": n} if n % 3 else {} for n in range(40)],
        priority=3,
        compression="zstd",
        placed=(1_000_000, _NOON_MS + 1_000),
    ),
    Golden(
        "slice",
        bodies=_LINES,
        sent_ms=[_NOON_MS + 7 * n for n in range(40)],
        keys=[b"sensor-%d" % (n % 7) for n in range(40)],
        attributes=[{"line": n} if n % 3 else {} for n in range(40)],
        compression="lz4",
        placed=(1_000_000, _NOON_MS + 1_000),
        cut=slice(11, 14),
    ),
]

BY_NAME = {golden.name: golden for golden in GOLDEN}


def same_compressor(codec: str) -> bool:
    """Whether compressed bytes are expected to be those of the golden files."""
    installed = {"zstd": zstandard.ZSTD_VERSION, "lz4": lz4.library_version_string()}
    return codec == "none" or installed[codec] == COMPRESSORS[codec]


def main() -> None:
    """Write the files that are missing."""
    DIRECTORY.mkdir(exist_ok=True)
    for golden in GOLDEN:
        if not golden.path.exists():
            golden.path.write_bytes(golden.build().buffer)
            print(f"wrote {golden.path.name}, {golden.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
