"""What a stripe remembers of its producers, and how it judges a segment (M2)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, ProducerState, Segment, judge
from ringdove.errors import ClientError, SequenceRefused

BLOCK = Block.build([b"x"], sent_ms=1)
#: The stripe has taken sequence 0 to 9, of which 7 to 9 came last and lie at offset 100.
KNOWN = ProducerState(next=10, last=7, base=100, seen_ms=5)


def segment(sequence: int, span: int = 1, *, gaps: bool = False) -> Segment:
    """A segment of the producer `p`."""
    return Segment(BLOCK, b"p", sequence, span, gaps)


class Stripe:
    """The least that a store does with a verdict: append, and remember the producer."""

    def __init__(self) -> None:
        self.state: ProducerState | None = None
        self.log: list[int] = []

    def append(self, offered: Segment) -> Appended | SequenceRefused:
        """Judge, and append the sequence numbers of the segment when it is accepted."""
        try:
            repetition = judge(self.state, offered)
        except SequenceRefused as refusal:
            return refusal
        if repetition is not None:
            return repetition
        base = len(self.log)
        end = offered.sequence + offered.span
        self.log += range(offered.sequence, end)
        self.state = ProducerState(end, offered.sequence, base, seen_ms=0)
        return Appended(base)


def test_the_first_segment_of_a_producer_starts_at_zero():
    assert judge(None, segment(0, 3)) is None


def test_the_next_segment_is_accepted():
    assert judge(KNOWN, segment(10)) is None
    assert judge(KNOWN, segment(10, 500)) is None


def test_a_repetition_of_the_last_segment_is_answered_with_its_offset():
    assert judge(KNOWN, segment(7, 3)) == Appended(100, duplicate=True)


@pytest.mark.parametrize(("sequence", "span"), [(0, 1), (3, 4), (6, 1), (8, 2), (9, 1)])
def test_an_older_repetition_is_recognised_without_its_offset(sequence, span):
    assert judge(KNOWN, segment(sequence, span)) == Appended(-1, duplicate=True)


@pytest.mark.parametrize(("sequence", "span"), [(7, 4), (9, 2), (0, 11)])
def test_a_segment_of_used_and_new_numbers_is_refused_with_the_remedy(sequence, span):
    last = sequence + span - 1
    with pytest.raises(SequenceRefused, match=rf"{sequence} to {last}, but 10 is next: send the"):
        judge(KNOWN, segment(sequence, span, gaps=True))


def test_a_jump_is_refused_because_the_missing_segment_would_pass_for_a_repetition():
    with pytest.raises(SequenceRefused, match=r"starts at sequence 12, but 10 is next") as refused:
        judge(KNOWN, segment(12))
    assert "does not know this producer" not in str(refused.value)
    assert refused.value.expected == 10


def test_a_jump_is_accepted_when_the_producer_says_so():
    assert judge(KNOWN, segment(12, gaps=True)) is None
    assert judge(None, segment(3, gaps=True)) is None


def test_a_producer_that_was_forgotten_is_told_to_start_anew():
    with pytest.raises(SequenceRefused, match=r"does not know this producer; start a new one at 0"):
        judge(None, segment(4))


def test_a_negative_sequence_is_refused():
    with pytest.raises(SequenceRefused):
        judge(None, segment(-1))
    with pytest.raises(SequenceRefused):
        judge(None, segment(-1, 5, gaps=True))


def test_a_refusal_leaves_the_connection_usable_and_names_what_is_expected():
    for state, expected in ((None, 0), (KNOWN, 10)):
        with pytest.raises(ClientError) as refused:
            judge(state, segment(99))
        assert refused.value.code == "sequence_refused"
        assert refused.value.expected == expected


def test_a_segment_claims_nothing_unless_told():
    assert Segment(BLOCK)[1:] == (None, 0, 1, False, None, False)
    assert Appended(4) == (4, False)


@untimed
@given(spans=st.lists(st.integers(1, 5), min_size=1, max_size=8), data=st.data())
def test_however_attempts_are_lost_repeated_and_reordered_each_message_is_stored_once_in_order(
    spans, data
):
    """M2: at-least-once sending plus dropping of repetitions gives exactly once."""
    starts = [sum(spans[:n]) for n in range(len(spans))]
    attempts: list[Any] = data.draw(st.lists(st.sampled_from(range(len(spans))), max_size=40))
    stripe = Stripe()
    stored: dict[int, int] = {}
    for number in attempts:
        answer = stripe.append(segment(starts[number], spans[number]))
        if isinstance(answer, SequenceRefused):
            assert number not in stored
        elif answer.duplicate:
            assert answer.base in {stored[number], -1}
        else:
            assert number not in stored
            stored[number] = answer.base
        assert stripe.log == list(range(len(stripe.log)))
    for number in range(len(spans)):
        stripe.append(segment(starts[number], spans[number]))
    assert stripe.log == list(range(sum(spans)))


@untimed
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.booleans()), max_size=40),
)
def test_whatever_is_offered_no_sequence_number_is_stored_twice_or_out_of_order(offers):
    stripe = Stripe()
    for sequence, span, gaps in offers:
        before = list(stripe.log)
        expected = before[-1] + 1 if before else 0
        answer = stripe.append(segment(sequence, span, gaps=gaps))
        numbers = range(sequence, sequence + span)
        if isinstance(answer, SequenceRefused):
            assert answer.expected == expected
            assert stripe.log == before
        elif answer.duplicate:
            assert numbers[-1] < expected
            assert stripe.log == before
        else:
            assert stripe.log == [*before, *numbers]
            assert gaps or sequence == expected
        assert stripe.log == sorted(set(stripe.log))
