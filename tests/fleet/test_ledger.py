"""The figures of a run follow from what was noted."""

import pytest

from ringdove.errors import InvalidArgument
from ringdove.fleet.ledger import Ledger
from ringdove.fleet.plan import Plan, check

PLAN = Plan(devices=2, url="mqtt://127.0.0.1")


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(PLAN, clock)


def send(ledger, device, count, acknowledged=True):
    for _ in range(count):
        sequence = ledger.note_sent(device)
        if acknowledged:
            ledger.note_acknowledged(device, sequence)


def receive(ledger, device, *sequences):
    for sequence in sequences:
        ledger.note_received(device, sequence, intact=True)


def test_a_perfect_run_has_nothing_to_report(ledger):
    for device in (0, 1):
        send(ledger, device, 3)
    for sequence in range(3):
        receive(ledger, 1, sequence)
        receive(ledger, 0, sequence)
    report = ledger.report(2.0, checked=True)
    assert (report["sent"], report["acknowledged"], report["received"]) == (6, 6, 6)
    assert report["acknowledged_per_s"] == 3
    for name in (
        "lost",
        "duplicated",
        "damaged",
        "unexpected",
        "out_of_order_rate",
        "displacement",
    ):
        assert report[name] == 0


def test_only_what_was_acknowledged_can_be_lost(ledger):
    send(ledger, 0, 2)
    send(ledger, 0, 2, acknowledged=False)
    receive(ledger, 0, 0, 2)
    assert ledger.missing() == 1
    report = ledger.report(1.0, checked=True)
    assert (report["lost"], report["unacknowledged"]) == (1, 2)


def test_order_is_looked_at_device_by_device(ledger):
    send(ledger, 0, 4)
    send(ledger, 1, 4)
    receive(ledger, 0, 0, 1, 3, 2)
    receive(ledger, 1, 0, 1, 2, 3)
    report = ledger.report(1.0, checked=True)
    assert report["out_of_order_rate"] == pytest.approx(1 / 8)
    assert report["displacement"] == pytest.approx(2 / 8)


def test_duplicates_damage_and_strangers_are_counted(ledger):
    send(ledger, 0, 2)
    receive(ledger, 0, 0, 0, 1)
    ledger.note_received(0, 1, intact=False)
    receive(ledger, 0, 7)
    receive(ledger, 5, 0)
    report = ledger.report(1.0, checked=True)
    assert (report["duplicated"], report["damaged"], report["unexpected"]) == (2, 1, 2)


def test_times_are_from_the_reading_on(ledger, clock):
    for wait_s in (0.1, 0.2, 0.9):
        sequence = ledger.note_sent(0)
        clock.now_s += wait_s
        ledger.note_acknowledged(0, sequence)
        clock.now_s += 1
        ledger.note_received(0, sequence, intact=True)
    report = ledger.report(1.0, checked=True)
    assert (report["answer_p50_ms"], report["answer_max_ms"]) == (200, 900)
    assert (report["latency_p50_ms"], report["latency_max_ms"]) == (1_200, 1_900)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 0}, "devices"),
        ({"rate": 0}, "rate"),
        ({"seconds": -1}, "seconds"),
        ({"jitter": 2}, "jitter"),
        ({"drop": -0.1}, "drop"),
        ({"protocol": "amqp"}, "protocol"),
        ({"protocol": "coap"}, "coap://127.0.0.1:5683"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        check(PLAN._replace(**changes))
