"""What the CoAP side remembers: requests, messages on their way, bodies in blocks; all bounded."""

import random

import pytest

from ringdove.protocol.coap.blocks import (
    PATIENCE_S,
    Block,
    BlockRefused,
    Content,
    Downloads,
    Uploads,
    cut,
    find_block,
)
from ringdove.protocol.coap.exchanges import LIFETIME_S, Exchanges
from ringdove.protocol.coap.outbox import ACK_TIMEOUT_S, Outbox
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet, uint


class TestExchanges:
    def test_a_request_is_recognised_for_as_long_as_it_may_be_repeated(self):
        exchanges = Exchanges(100, 1_000)
        exchanges.begin(b"early", 0)
        exchanges.begin(b"late", LIFETIME_S / 4 - 1)
        exchanges.answered(b"late", b"D")
        for now_s in (0, LIFETIME_S / 2, LIFETIME_S / 4 - 1 + LIFETIME_S):
            assert exchanges.find(b"late", now_s).said == b"D"
        assert exchanges.find(b"early", LIFETIME_S).said is None
        assert exchanges.find(b"late", 2 * LIFETIME_S) is None
        assert (exchanges.entries, exchanges.nbytes) == (0, 0)

    def test_when_full_it_says_how_long_and_forgets_nothing_early(self):
        exchanges = Exchanges(2, 1_000)
        exchanges.begin(b"1", 0)
        exchanges.begin(b"2", 1)
        wait_s = exchanges.wait_s(1)
        assert wait_s > 0
        assert exchanges.find(b"1", LIFETIME_S) is not None
        assert exchanges.find(b"1", 1 + wait_s) is None
        assert exchanges.wait_s(1 + wait_s) == 0

    def test_long_answers_fill_it_too(self):
        exchanges = Exchanges(100, 1_000)
        exchanges.begin(b"1", 0)
        exchanges.answered(b"1", bytes(1_000))
        assert exchanges.wait_s(0) > 0
        exchanges.answered(b"1", b"D")
        assert (exchanges.wait_s(0), exchanges.nbytes) == (0, 1)

    def test_what_was_not_done_is_new_when_it_comes_again(self):
        exchanges = Exchanges(100, 1_000)
        exchanges.begin(b"1", 0)
        exchanges.forget(b"1")
        assert exchanges.find(b"1", 0) is None
        assert exchanges.entries == 0


class TestOutbox:
    def test_a_message_is_repeated_ever_more_rarely_and_given_up(self):
        outbox = Outbox(random.Random(1))
        outbox.add("device", 7, b"data", "note", 0)
        times = []
        while outbox:
            now_s = outbox.next_s()
            [due] = outbox.due(now_s)
            times.append((now_s, due.data))
        assert [data for _, data in times] == [b"data"] * 4 + [None]
        gaps = [b - a for (a, _), (b, _) in zip(times, times[1:], strict=False)]
        assert ACK_TIMEOUT_S <= times[0][0] <= 1.5 * ACK_TIMEOUT_S
        assert [round(b / a) for a, b in zip(gaps, gaps[1:], strict=False)] == [2, 2, 2]

    def test_an_acknowledged_message_is_not_repeated(self):
        outbox = Outbox(random.Random(1))
        outbox.add("device", 7, b"data", "note", 0)
        assert outbox.settle("other", 7) is None
        assert outbox.settle("device", 7) == "note"
        assert outbox.next_s() is None
        assert outbox.due(1_000) == []


def upload(uploads, body, size, key="device", now_s=0.0):
    exponent = size.bit_length() - 5
    found = None
    for number in range(-(-len(body) // size)):
        part = body[number * size : (number + 1) * size]
        more = (number + 1) * size < len(body)
        found = uploads.take(key, Block(number, more, exponent), part, now_s)
    return found


class TestUploads:
    @pytest.mark.parametrize("size", [16, 64, 1024])
    def test_blocks_become_a_body_again(self, size):
        uploads = Uploads(10, 100_000, 50_000)
        body = random.Random(1).randbytes(3_000)
        assert upload(uploads, body, size) == body
        assert (len(uploads), uploads.nbytes) == (0, 0)

    def test_a_block_out_of_turn_ends_the_upload(self):
        uploads = Uploads(10, 100_000, 50_000)
        assert uploads.take("device", Block(0, True, 0), bytes(16), 0) is None
        with pytest.raises(BlockRefused) as refused:
            uploads.take("device", Block(2, True, 0), bytes(16), 0)
        assert refused.value.answer == Code.INCOMPLETE
        with pytest.raises(BlockRefused):
            uploads.take("device", Block(1, True, 0), bytes(16), 0)
        assert uploads.nbytes == 0

    @pytest.mark.parametrize(
        ("limits", "answer"),
        [((10, 100_000, 100), Code.TOO_LARGE), ((10, 100, 50_000), Code.UNAVAILABLE)],
    )
    def test_too_much_is_refused_and_forgotten(self, limits, answer):
        uploads = Uploads(*limits)
        with pytest.raises(BlockRefused) as refused:
            upload(uploads, bytes(1_000), 64)
        assert refused.value.answer == answer
        assert (len(uploads), uploads.nbytes) == (0, 0)

    def test_uploads_that_nobody_goes_on_with_make_room(self):
        uploads = Uploads(2, 100_000, 50_000)
        for key in ("a", "b"):
            uploads.take(key, Block(0, True, 0), bytes(16), 0)
        with pytest.raises(BlockRefused) as refused:
            uploads.take("c", Block(0, True, 0), bytes(16), 1)
        assert refused.value.answer == Code.UNAVAILABLE
        assert uploads.take("c", Block(0, True, 0), bytes(16), 1_000) is None

    def test_bytes_that_nobody_goes_on_with_make_room(self):
        uploads = Uploads(10, 2_500, 10_000)
        for key in "ab":
            uploads.take(key, Block(0, True, 6), bytes(1024), 0.0)
        uploads.take("b", Block(0, True, 6), bytes(1024), PATIENCE_S)
        with pytest.raises(BlockRefused):
            uploads.take("c", Block(0, True, 6), bytes(1024), PATIENCE_S)
        assert uploads.take("c", Block(0, True, 6), bytes(1024), PATIENCE_S + 1) is None
        assert (len(uploads), uploads.nbytes) == (2, 2048)
        assert uploads.take("b", Block(1, False, 6), b"", PATIENCE_S + 1) == bytes(1024)

    def test_a_short_block_before_the_last_is_refused(self):
        with pytest.raises(BlockRefused) as refused:
            Uploads(10, 1_000, 1_000).take("device", Block(0, True, 2), bytes(16), 0)
        assert refused.value.answer == Code.BAD_REQUEST


class TestDownloads:
    def test_a_body_is_fetched_block_by_block(self):
        downloads = Downloads(10, 10_000)
        content = Content(((Option.ETAG, b"tag"),), random.Random(2).randbytes(1_000))
        downloads.keep("key", content)
        parts = []
        more = True
        while more:
            block = Block(len(parts), False, 2)
            found = downloads.find("key", block) if parts else content
            options, part = cut(found, block)
            told = find_block(Packet(Kind.ACK, Code.CONTENT, 1, options=options), Option.BLOCK2)
            more = told.more
            assert (told.number, (Option.ETAG, b"tag") in options) == (len(parts), True)
            parts.append(part)
        assert b"".join(parts) == content.body
        assert (len(downloads), downloads.nbytes) == (0, 0)

    def test_the_oldest_goes_when_there_are_too_many(self):
        downloads = Downloads(2, 10_000)
        for key in ("a", "b", "c"):
            downloads.keep(key, Content((), bytes(100)))
        with pytest.raises(BlockRefused) as refused:
            downloads.find("a", Block(1, False, 0))
        assert refused.value.answer == Code.INCOMPLETE
        assert downloads.find("c", Block(1, False, 0)).body == bytes(100)

    def test_all_bytes_together_are_bounded(self):
        downloads = Downloads(100, 1_000)
        for number in range(30):
            downloads.keep(number, Content((), bytes(100)))
        assert downloads.nbytes <= 1_000


@pytest.mark.parametrize("value", [7, 0xF | 3 << 4, 1 << 24])
def test_a_reserved_block_size_is_refused(value):
    packet = Packet(Kind.CON, Code.PUT, 1, options=((Option.BLOCK1, uint(value)),))
    with pytest.raises(BlockRefused):
        find_block(packet, Option.BLOCK1)
