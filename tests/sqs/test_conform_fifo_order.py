"""FIFO queues: order within a group, and when a group is locked."""

import pytest

from server.running import wait_for
from sqs.clients import Queue, later, meanwhile, parked, texts

_PER_MESSAGE = "a group is locked while any of its messages is out: there is no order to lose"


def _groups(queue: Queue) -> None:
    """Five messages in three groups."""
    queue.send_all("g1/1", "g1/2", "g2/1", "g2/2", "g3/1")


# -- order ------------------------------------------------------------------------------------------


def test_a_fifo_queue_is_made_and_used(fifo):
    assert fifo.url.endswith(".fifo")
    reply = fifo.send("x", "g")
    assert set(reply) == {"MD5OfMessageBody", "MessageId", "SequenceNumber"}
    message = fifo.one()
    assert (message["Body"], message["MessageId"]) == ("x", reply["MessageId"])


def test_messages_come_one_by_one_in_order(fifo):
    fifo.send_all(*[f"g/{number}" for number in range(6)])
    for number in range(6):
        message = fifo.one()
        assert message["Body"] == f"g/{number}"
        fifo.delete(message)
    assert fifo.receive() == []


def test_a_receive_takes_a_whole_group_before_the_next(fifo):
    fifo.send_all("g1/1", "g2/1", "g1/2", "g1/3")
    assert fifo.bodies() == ["g1/1", "g1/2", "g1/3", "g2/1"]


def test_messages_come_again_in_order(server, fifo):
    fifo.send_all("g/1", "g/2", "g/3")
    for _ in range(3):
        assert fifo.bodies() == ["g/1", "g/2", "g/3"]
        later(server, 31)


def test_messages_that_come_back_come_before_later_ones(server, fifo):
    fifo.send_all("g/1", "g/2")
    assert fifo.bodies(1) == ["g/1"]
    fifo.send_all("g/3")
    later(server, 31)
    seen = []
    while held := fifo.receive():
        seen += texts(held)
        fifo.delete(*held)
    assert seen == ["g/1", "g/2", "g/3"]


def test_sequence_numbers_have_20_digits_and_rise(fifo):
    numbers = [fifo.send(str(n), "g")["SequenceNumber"] for n in range(5)]
    assert all(len(number) == 20 and number.isdecimal() for number in numbers)
    assert numbers == sorted(set(numbers))
    found = fifo.receive(AttributeNames=["SequenceNumber"])
    assert [message["Attributes"]["SequenceNumber"] for message in found] == numbers


def test_sequence_numbers_rise_over_all_groups(fifo):
    numbers = [fifo.send(f"{n}", f"g{n % 3}")["SequenceNumber"] for n in range(9)]
    assert numbers == sorted(set(numbers))


def test_a_standard_queue_has_no_sequence_numbers(queue):
    assert "SequenceNumber" not in queue.send()
    reply = queue.send_batch({"Id": "1", "MessageBody": "x"})
    assert "SequenceNumber" not in reply["Successful"][0]


# -- locks ------------------------------------------------------------------------------------------


def test_a_group_with_a_message_out_gives_no_other(server, fifo):
    fifo.send_all("g/1", "g/2")
    assert fifo.bodies(1, VisibilityTimeout=10) == ["g/1"]
    assert fifo.receive() == []
    later(server, 11)
    assert fifo.bodies() == ["g/1", "g/2"]


def test_other_groups_go_on_meanwhile(fifo):
    _groups(fifo)
    assert fifo.bodies(1) == ["g1/1"]
    assert fifo.bodies(1) == ["g2/1"]
    assert fifo.bodies() == ["g3/1"]
    assert fifo.receive() == []


def test_a_new_message_does_not_unlock_its_group(fifo):
    fifo.send_all("g/1")
    fifo.one()
    fifo.send_all("g/2")
    assert fifo.receive() == []


def test_deleting_what_is_out_unlocks_the_group(fifo):
    fifo.send_all("g/1", "g/2", "g/3")
    fifo.delete(*fifo.receive(2))
    assert fifo.bodies() == ["g/3"]


def test_deleting_some_of_what_is_out_does_not(fifo):
    fifo.send_all("g1/1", "g1/2", "g1/3", "g2/1", "g2/2", "g3/1")
    first, _ = fifo.receive(2)
    fifo.delete(first)
    assert fifo.bodies() == ["g2/1", "g2/2", "g3/1"]


def test_a_group_comes_again_after_all_of_it_was_deleted(fifo):
    for body in ("g/1", "g/2", "g/3"):
        fifo.send_all(body)
        message = fifo.one()
        assert message["Body"] == body
        fifo.delete(message)
    assert fifo.receive() == []


def test_a_group_that_is_empty_and_out_comes_again(server, fifo):
    fifo.send_all("g1/1", "g2/1")
    one, other = fifo.receive(VisibilityTimeout=10)
    fifo.delete(one)
    fifo.send_all("g1/2")
    assert fifo.bodies() == ["g1/2"]
    fifo.delete(other)
    later(server, 31)
    assert fifo.bodies() == ["g1/2"]


@pytest.mark.timeout(20)
def test_waiting_receivers_get_a_group_one_after_the_other(server, fifo):
    fifo.send_all("g/1")
    held = fifo.one()
    waiting = [meanwhile(lambda: fifo.receive(1, WaitTimeSeconds=20)) for _ in range(2)]
    wait_for(lambda: parked(server) == 2, "the receivers wait")
    fifo.send_all("g/2", "g/3")
    assert not any(one.done() for one in waiting)
    seen = []
    for _ in range(2):
        fifo.delete(held)
        done = wait_for(lambda: [one for one in waiting if one.done()], "one gets a message")
        assert len(done) == 1
        [held] = done[0].result()
        seen.append(held["Body"])
        waiting.remove(done[0])
    assert seen == ["g/2", "g/3"]


# -- groups in turn ---------------------------------------------------------------------------------


def test_groups_that_were_out_go_to_the_end(server, fifo):
    fifo.send_all("g1/1", "g1/2", "g1/3", "g1/4", "g2/1", "g3/1")
    assert fifo.bodies(2, VisibilityTimeout=5) == ["g1/1", "g1/2"]
    assert fifo.bodies(1, VisibilityTimeout=5) == ["g2/1"]
    later(server, 6)
    assert fifo.bodies() == ["g3/1", "g1/1", "g1/2", "g1/3", "g1/4", "g2/1"]


def test_groups_received_for_no_time_go_to_the_end(server, fifo):
    _groups(fifo)
    assert fifo.bodies(3, VisibilityTimeout=0) == ["g1/1", "g1/2", "g2/1"]
    later(server, 0.01)
    found = fifo.bodies(VisibilityTimeout=0)
    assert found == ["g3/1", "g1/1", "g1/2", "g2/1", "g2/2"]


def test_a_group_unlocked_by_a_delete_is_in_line_again(fifo):
    fifo.send_all("g1/1", "g1/2", "g1/3", "g1/4", "g2/1", "g2/2", "g3/1")
    fifo.delete(*fifo.receive(2))
    found = fifo.bodies()
    assert found in (
        ["g2/1", "g2/2", "g1/3", "g1/4", "g3/1"],
        ["g2/1", "g2/2", "g3/1", "g1/3", "g1/4"],
    )


# -- visibility in a group ----------------------------------------------------------------------------


def test_giving_back_everything_of_a_group_unlocks_it(fifo):
    fifo.send_all("g1/1", "g1/2", "g2/1")
    held = fifo.receive(2)
    for message in held:
        fifo.hide(message, 0)
    assert sorted(fifo.bodies()) == ["g1/1", "g1/2", "g2/1"]


def test_giving_back_a_single_message_unlocks_its_group(fifo):
    fifo.send_all("g1/1", "g1/2")
    fifo.hide(fifo.one(), 0)
    assert fifo.bodies() == ["g1/1", "g1/2"]


@pytest.mark.xfail(strict=True, reason=_PER_MESSAGE)
@pytest.mark.parametrize("seconds", [0, 1])
def test_giving_back_the_first_of_two_makes_only_that_one_visible(server, fifo, seconds):
    fifo.send_all("g1/1", "g1/2", "g2/1")
    first, _ = fifo.receive(2)
    fifo.hide(first, seconds)
    later(server, seconds + 0.5)
    assert fifo.bodies(3) == ["g2/1", "g1/1"]


@pytest.mark.parametrize(
    ("kept", "visible"),
    [
        (0, []),
        pytest.param(1, ["g/1"], marks=pytest.mark.xfail(strict=True, reason=_PER_MESSAGE)),
        pytest.param(2, ["g/1", "g/2"], marks=pytest.mark.xfail(strict=True, reason=_PER_MESSAGE)),
    ],
)
def test_a_message_that_is_kept_holds_those_behind_it(server, fifo, kept, visible):
    fifo.send_all("g/1", "g/2", "g/3")
    held = fifo.receive(VisibilityTimeout=10)
    assert texts(held) == ["g/1", "g/2", "g/3"]
    fifo.hide(held[kept], 60)
    later(server, 11)
    assert fifo.bodies() == visible


# -- counts -----------------------------------------------------------------------------------------


def test_only_messages_that_are_out_count_as_invisible(server, fifo):
    fifo.send_all("g1/1", "g1/2", "g2/1", "g2/2", "g3/1", "g3/2")
    assert fifo.bodies(2, VisibilityTimeout=10) == ["g1/1", "g1/2"]
    assert fifo.counts() == (4, 2, 0)
    later(server, 11)
    assert fifo.counts() == (6, 0, 0)
    assert fifo.bodies(2) == ["g2/1", "g2/2"]


def test_messages_of_a_locked_group_count_as_visible(fifo):
    fifo.send_all("g/1", "g/2", "g/3", "g/4", "g/5")
    assert fifo.counts() == (5, 0, 0)
    held = fifo.receive(4)
    assert fifo.counts() == (1, 4, 0)
    fifo.delete(*held)
    assert fifo.counts() == (1, 0, 0)
