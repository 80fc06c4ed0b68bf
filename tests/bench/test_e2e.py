"""What the benchmark from end to end finds out about the messages that came."""

from ringdove.bench.e2e import HEAD, check


def bodies(*found):
    return [HEAD.pack(producer, position) + b"rest" for producer, position in found]


def test_what_is_complete_and_in_the_order_of_each_producer_is_right():
    batches = [bodies((0, 0), (1, 0), (1, 1)), bodies((0, 1))]
    assert check(batches, 4) == {"lost": 0, "duplicates": 0, "out_of_order": 0}


def test_what_is_missing_doubled_or_late_is_counted():
    batches = [bodies((0, 0), (0, 3), (0, 1)), bodies((0, 1), (1, 0), (0, 4))]
    assert check(batches, 7) == {"lost": 2, "duplicates": 1, "out_of_order": 1}
