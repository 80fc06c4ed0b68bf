"""Compression with a size known beforehand."""

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from core.samples import peak_bytes, untimed
from ringdove.core.compression import CODEC_NAMES, CODEC_NUMBERS, compress, decompress
from ringdove.errors import RemoteProtocolError

ZSTD, LZ4 = CODEC_NUMBERS["zstd"], CODEC_NUMBERS["lz4"]
TEXT = b"The quick brown fox jumps over the lazy dog. " * 40

both_codecs = pytest.mark.parametrize("codec", [ZSTD, LZ4], ids=["zstd", "lz4"])


def sizeless_frame(data: bytes, **parameters: int) -> bytes:
    """A Zstandard frame that does not say how large its content is."""
    chosen = zstandard.ZstdCompressionParameters(write_content_size=False, **parameters)
    packer = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    return packer.compress(data) + packer.flush()


def test_the_numbers_of_the_codecs_are_those_of_the_format():
    assert CODEC_NAMES == {0: "none", 1: "zstd", 2: "lz4"}
    assert CODEC_NUMBERS == {"none": 0, "zstd": 1, "lz4": 2}


@both_codecs
@untimed
@given(data=st.binary(max_size=500) | st.binary(max_size=8).map(lambda piece: piece * 100))
def test_what_is_compressed_opens_to_itself(codec, data):
    assert decompress(compress(data, codec), codec, len(data)) == data


@both_codecs
def test_repetition_is_packed_well(codec):
    assert len(compress(TEXT, codec)) < len(TEXT) / 10


@both_codecs
@pytest.mark.parametrize("wrong", [-1, 1, 1_000])
def test_another_size_than_announced_is_refused(codec, wrong):
    with pytest.raises(RemoteProtocolError):
        decompress(compress(TEXT, codec), codec, len(TEXT) + wrong)


@both_codecs
def test_every_cut_is_refused(codec):
    packed = compress(TEXT, codec)
    for size in range(len(packed)):
        with pytest.raises(RemoteProtocolError):
            decompress(packed[:size], codec, len(TEXT))


@both_codecs
@untimed
@given(data=st.binary(max_size=200), raw_bytes=st.integers(0, 5_000))
def test_arbitrary_bytes_open_to_the_announced_size_or_are_refused(codec, data, raw_bytes):
    try:
        raw = decompress(data, codec, raw_bytes)
    except RemoteProtocolError:
        return
    assert len(raw) == raw_bytes


@both_codecs
@untimed
@given(data=st.data())
def test_damaged_bytes_open_to_the_announced_size_or_are_refused(codec, data):
    packed = bytearray(compress(TEXT, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        raw = decompress(bytes(packed), codec, len(TEXT))
    except RemoteProtocolError:
        return
    assert len(raw) == len(TEXT)


@both_codecs
@pytest.mark.parametrize("other", [b"", b"\x00", b"no frame at all", bytes(64)])
def test_what_is_no_frame_is_refused(codec, other):
    with pytest.raises(RemoteProtocolError):
        decompress(other, codec, len(TEXT))


def test_the_other_codec_s_bytes_are_refused():
    with pytest.raises(RemoteProtocolError, match="damaged"):
        decompress(compress(TEXT, LZ4), ZSTD, len(TEXT))
    with pytest.raises(RemoteProtocolError, match="damaged"):
        decompress(compress(TEXT, ZSTD), LZ4, len(TEXT))


def test_a_frame_that_announces_another_size_is_refused_naming_both():
    with pytest.raises(RemoteProtocolError, match=f"announces {len(TEXT)} bytes, the block 7"):
        decompress(compress(TEXT, ZSTD), ZSTD, 7)


@both_codecs
def test_a_bomb_is_refused_without_room_for_what_it_hides(codec):
    bomb = compress(bytes(4_000_000), codec)

    def attempt() -> None:
        with pytest.raises(RemoteProtocolError):
            decompress(bomb, codec, 100)

    attempt()
    assert peak_bytes(attempt) < 50_000


def test_a_bomb_that_keeps_its_size_to_itself_is_refused_without_room_for_it():
    bomb = sizeless_frame(bytes(4_000_000))

    def attempt() -> None:
        with pytest.raises(RemoteProtocolError):
            decompress(bomb, ZSTD, 100)

    attempt()
    assert peak_bytes(attempt) < 50_000


def test_a_frame_that_does_not_state_its_size_is_refused():
    frame = sizeless_frame(TEXT, window_log=27)
    assert zstandard.get_frame_parameters(frame).window_size == 2**27
    with pytest.raises(RemoteProtocolError):
        decompress(frame, ZSTD, len(TEXT))


@pytest.mark.parametrize(
    "extra", [b"\x00", b"junk", compress(TEXT, ZSTD)], ids=["zero", "junk", "second frame"]
)
def test_bytes_after_a_zstd_frame_are_refused(extra):
    with pytest.raises(RemoteProtocolError):
        decompress(compress(TEXT, ZSTD) + extra, ZSTD, len(TEXT))


@pytest.mark.parametrize("extra", [b"\x00", b"junk", lz4.block.compress(TEXT, store_size=False)])
def test_bytes_after_an_lz4_block_are_refused(extra):
    with pytest.raises(RemoteProtocolError):
        decompress(compress(TEXT, LZ4) + extra, LZ4, len(TEXT))


def test_a_skippable_frame_is_no_content():
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
    for frames in (skippable, skippable + compress(TEXT, ZSTD)):
        with pytest.raises(RemoteProtocolError):
            decompress(frames, ZSTD, len(TEXT))


def test_a_frame_that_needs_a_dictionary_is_refused():
    samples = [b"sensor %d reads %d degrees" % (n, n % 30) for n in range(2_000)]
    dictionary = zstandard.train_dictionary(2_000, samples)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    with pytest.raises(RemoteProtocolError):
        decompress(frame, ZSTD, len(TEXT))
