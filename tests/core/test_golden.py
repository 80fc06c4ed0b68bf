"""The golden blocks and docs/block-format.md: the format as it was promised."""

import re
import struct
from pathlib import Path

import pytest
import xxhash

from core import reader
from core.make_golden import BY_NAME, DIRECTORY, GOLDEN, Golden, same_compressor
from core.samples import contents, seal
from ringdove import limits
from ringdove.core import block as block_module
from ringdove.core.block import HEADER_BYTES, Block
from ringdove.core.compression import CODEC_NAMES
from ringdove.errors import RemoteProtocolError

DOCUMENT = (Path(__file__).parents[2] / "docs" / "block-format.md").read_text(encoding="utf-8")
EXAMPLE = BY_NAME["example"]

each_golden = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def section(title: str) -> str:
    """One section of the document, without its title."""
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in `text`."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]


def fields(block: Block) -> tuple[int, ...]:
    """The header without sizes and checks."""
    return (
        block.count, block.flags, block.codec, block.priority, block.base,
        block.sent_ms, block.stored_ms, block.not_before_ms, block.raw_bytes,
    )  # fmt: skip


# -- the files ---------------------------------------------------------------------------------


def test_every_golden_file_is_described_and_every_description_has_its_file():
    described = {golden.path.name for golden in GOLDEN}
    assert {path.name for path in DIRECTORY.iterdir()} == described
    assert len(described) == len(GOLDEN)


@each_golden
def test_the_builder_reproduces_the_file(golden: Golden):
    stored = golden.path.read_bytes()
    made = golden.build()
    if same_compressor(made.compression):
        assert made.buffer == stored
    else:  # Another library may pack the same columns into other bytes.
        assert fields(made) == fields(Block.decode(stored))
        assert repr(contents(made)) == repr(contents(Block.decode(stored)))


@each_golden
def test_the_file_decodes_to_its_messages(golden: Golden):
    block = Block.decode(golden.path.read_bytes())
    assert repr(contents(block)) == repr(golden.messages())
    start, stop, _ = golden.cut.indices(len(golden.bodies))
    assert (block.base, block.count) == (golden.placed[0] + start, stop - start)
    assert block.stored_ms == golden.placed[1]
    assert (block.priority, block.not_before_ms) == (golden.priority, golden.not_before_ms)


@each_golden
def test_a_reader_written_from_the_document_reads_the_file(golden: Golden):
    assert repr(reader.read(golden.path.read_bytes())) == repr(golden.messages())


def test_the_files_cover_every_codec_flag_and_placement():
    blocks = [Block.decode(golden.path.read_bytes()) for golden in GOLDEN]
    assert {block.codec for block in blocks} == set(CODEC_NAMES)
    assert {block.flags for block in blocks} == {0, 1, 2, 3}
    assert {block.priority for block in blocks} >= {0, 9}
    assert max(block.end for block in blocks) == limits.OFFSET_MAX


@each_golden
def test_every_flipped_bit_and_every_cut_of_a_file_is_refused(golden: Golden):
    whole = golden.path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            Block.decode(bytes(flipped))
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            Block.decode(whole[:size])
    with pytest.raises(RemoteProtocolError):
        Block.decode(whole + b"\x00")


# -- the document ------------------------------------------------------------------------------


def test_the_hex_of_the_document_is_the_example_file():
    dump = re.search(r"```hex\n(.*?)```", DOCUMENT, re.DOTALL)
    assert dump is not None
    data = b""
    for line in dump[1].splitlines():
        at, digits, text = re.fullmatch(r"(\w{8})((?: +[0-9a-f]{2})+)  \|(.*)\|", line).groups()
        piece = bytes.fromhex(digits)
        assert int(at, 16) == len(data)
        assert text == "".join(chr(b) if 32 <= b < 127 else "." for b in piece)
        data += piece
    assert data == EXAMPLE.path.read_bytes()


def test_the_explained_bytes_of_the_example_cover_it_without_gap():
    data = EXAMPLE.path.read_bytes()
    at = 0
    for place, digits, _ in [row for row in rows(section("A worked example")) if row[0] != "at"]:
        piece = bytes.fromhex(digits.strip("`"))
        assert int(place, 16) == at
        assert data[at : at + len(piece)] == piece
        at += len(piece)
    assert at == len(data)


def test_the_numbers_explained_in_the_example_are_those_of_the_block():
    block = Block.decode(EXAMPLE.path.read_bytes())
    explained = section("A worked example")
    assert f"base: offset {block.base} " in explained
    assert f"sent_ms {block.sent_ms:,} " in explained
    assert f"stored_ms {block.stored_ms:,} " in explained
    assert f"checksum 0x{block.checksum:016x}, of the {block.nbytes - 64} bytes" in explained
    assert f"check 0x{xxhash.xxh32_intdigest(block.buffer[:60]):08x}" in explained
    assert f"raw_bytes {block.raw_bytes}: the bytes from 0x{block.nbytes - 72:02x}" in explained


def test_the_header_table_is_the_layout_of_the_code():
    codes = {"bytes": "4s", "u8": "B", "u32": "I", "i64": "q", "u64": "Q"}
    layout, at = "<", 0
    table = [row for row in rows(section("Header")) if len(row) == 5 and row[0] != "offset"]
    for offset, size, kind, _, _ in table:
        assert int(offset) == at
        assert struct.calcsize("<" + codes[kind]) == int(size)
        layout += codes[kind]
        at += int(size)
    assert at == HEADER_BYTES
    assert layout == block_module._HEADER.format


def test_the_codec_table_names_the_codecs_of_the_code():
    table = [row for row in rows(section("Header")) if len(row) == 3 and row[0].isdigit()]
    codecs = {int(row[0]): row[1] for row in table if not row[1].isdigit()}
    flags = {int(row[0]): int(row[1]) for row in table if row[1].isdigit()}
    assert codecs == CODEC_NAMES
    assert flags == {0: block_module.FLAG_KEYS, 1: block_module.FLAG_ATTRIBUTES}


def test_the_limits_of_the_document_are_those_of_the_code():
    table = [row for row in rows(section("Limits")) if row[0] != "limit"]
    assert len(table) == 9
    for name, value, _ in table:
        assert getattr(limits, name.strip("`")) == int(value.replace(",", ""))


def test_every_rule_of_the_document_is_applied_by_the_second_reader():
    named = {row[0] for row in rows(section("Reading a block")) if row[0] != "rule"}
    applied = set(re.findall(r'"(R\d+)"', Path(reader.__file__).read_text(encoding="utf-8")))
    assert applied == named


def test_a_column_is_wrapped_by_arrow_without_copying():
    pyarrow = pytest.importorskip("pyarrow")
    code = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    names: dict = {}
    exec(code, names)
    data = EXAMPLE.path.read_bytes()
    buffer = pyarrow.py_buffer(data)
    part = buffer.slice(64 + 8 + 16)
    at = 0
    for expected in (EXAMPLE.bodies, EXAMPLE.keys):
        array, at = names["column"](part, at, 2)
        array.validate(full=True)
        assert array.to_pylist() == expected
        start = array.buffers()[2].address - buffer.address
        assert data[start:].startswith(b"".join(expected))


def test_padding_is_ignored_by_both_readers():
    data = bytearray(EXAMPLE.path.read_bytes())
    for at in (0x64, 0x6F, 0x7C, 0x87, 0x97):
        assert data[at] == 0
        data[at] = 0xFF
    sealed = seal(bytes(data))
    assert repr(contents(Block.decode(sealed))) == repr(EXAMPLE.messages())
    assert repr(reader.read(sealed)) == repr(EXAMPLE.messages())
