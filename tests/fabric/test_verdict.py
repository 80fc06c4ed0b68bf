"""The judge of fabric trials, on histories made by hand: each breaks one promise."""

import pytest

from fabric.harness.history import Delivery, History, Promise, Row, Send
from fabric.harness.verdict import Bin, faults, judge, longest_silence_s, timeline

ONCE = Promise(exactly_once=True, by_key=True)


def send(body, invoked_s=0.0, ended_s=None, outcome="ok", **more):
    ended_s = invoked_s + 0.5 if ended_s is None else ended_s
    return Send("q", "s", body, invoked_s, ended_s=ended_s, outcome=outcome, **more)


def delivery(body, offset=0, asked_s=1.0, came_s=1.0, done_s=None):
    return Delivery("q", "r", body, (0, offset), asked_s, came_s, done_s)


def history(sends, bodies=(), log=None, deliveries=None, promise=ONCE):
    """A history in which bodies are stored and received in this order, unless told otherwise."""
    rows = [Row((0, at), body) for at, body in enumerate(bodies)] if log is None else log
    if deliveries is None:
        deliveries = [
            delivery(row.body, row.place[1], came_s=1.0 + at) for at, row in enumerate(rows)
        ]
    return History(promises={"q": promise}, sends=sends, deliveries=deliveries, logs={"q": rows})


def test_a_history_without_fault_has_none():
    told = history(
        [
            send("a", 0, place=(0, 0), key="k"),
            send("b", 1, key="k"),
            send("c", 1, outcome="unknown"),
        ],
        ["a", "b", "c"],
    )
    assert faults(told) == []
    verdict = judge(told)["q"]
    assert (verdict.sent, verdict.acknowledged, verdict.recovered) == (3, 2, ["c"])


def test_what_was_of_unknown_outcome_may_be_gone():
    assert faults(history([send("a", outcome="unknown")])) == []


def test_acknowledged_and_neither_stored_nor_received_is_lost_and_vanished():
    assert faults(history([send("a")])) == ["q: 1 lost, e.g. a", "q: 1 vanished, e.g. a"]


def test_acknowledged_and_stored_but_never_received_is_lost():
    assert faults(history([send("a")], ["a"], deliveries=[])) == ["q: 1 lost, e.g. a"]


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_received_but_not_stored_has_vanished(outcome):
    told = history([send("a", outcome=outcome)], deliveries=[delivery("a")])
    assert faults(told) == ["q: 1 vanished, e.g. a"]


def test_what_nobody_sent_is_unexpected():
    assert faults(history([], ["a"])) == ["q: 1 unexpected, e.g. a"]
    assert "q: 1 unexpected, e.g. a" in faults(history([], deliveries=[delivery("a")]))


def test_what_was_refused_must_not_be_there():
    assert faults(history([send("a", outcome="failed")], ["a"])) == ["q: 1 undead, e.g. a"]


def test_twice_in_the_log_is_a_fault_of_exactly_once_queues_only():
    told = history([send("a", outcome="unknown")], ["a", "a"])
    assert faults(told) == ["q: 1 duplicated, e.g. a"]
    told.promises["q"] = Promise()
    assert faults(told) == []
    assert judge(told)["q"].duplicated == ["a"]


def test_a_message_received_twice_is_no_duplicate():
    told = history([send("a")], ["a"], deliveries=[delivery("a"), delivery("a")])
    assert faults(told) == []


def test_a_message_is_where_the_answer_said():
    told = history([send("a", place=(0, 1)), send("b")], ["a", "b"])
    assert faults(told) == ["q: 1 misplaced, e.g. a"]


def test_a_place_has_one_message_for_ever():
    told = history(
        [send("a", outcome="unknown"), send("b")],
        ["b"],
        deliveries=[delivery("a", 0), delivery("b", 0)],
    )
    assert "q: 1 replaced, e.g. a" in faults(told)


def test_what_is_done_does_not_come_back():
    first = delivery("a", asked_s=1, came_s=1, done_s=2)
    again = delivery("a", asked_s=1.9, came_s=3)
    assert faults(history([send("a")], ["a"], deliveries=[first, again])) == []
    again.asked_s = 2.1
    assert faults(history([send("a")], ["a"], deliveries=[first, again])) == ["q: 1 back, e.g. a"]


@pytest.mark.parametrize("overlapping", [False, True])
def test_the_log_keeps_a_keys_order(overlapping):
    sends = [send("a", 0, key="k"), send("b", 0.2 if overlapping else 1, key="k")]
    expected = [] if overlapping else ["q: 1 disordered, e.g. k"]
    assert faults(history(sends, ["b", "a"])) == expected


def test_first_deliveries_keep_a_keys_order():
    sends = [send("a", 0, key="k"), send("b", 1, key="k"), send("c", 2, key="other")]
    log = [Row((0, 0), "a"), Row((0, 1), "b"), Row((1, 0), "c")]
    right = [delivery("a", 0, came_s=1), delivery("b", 1, came_s=2), delivery("a", 0, came_s=3)]
    c = Delivery("q", "r", "c", (1, 0), 0, 0)
    assert faults(history(sends, log=log, deliveries=[*right, c])) == []
    wrong = [delivery("b", 1, came_s=1), delivery("a", 0, came_s=2)]
    told = history(sends, log=log, deliveries=[*wrong, c])
    assert faults(told) == ["q: 1 disordered, e.g. k"]
    told.promises["q"] = Promise()
    assert faults(told) == []


def test_troubles_of_the_trial_are_faults():
    told = history([send("a")], ["a"])
    told.troubles.append("a receiver died")
    assert faults(told) == ["a receiver died"]


def test_a_timeline_has_acknowledgements_and_errors_by_the_tenth_of_a_second():
    sends = [
        send("a", 0, 0.05),
        send("b", 0, 0.31, errors=[(0.12, "gone"), (0.19, "gone")]),
        send("c", 0, 0.39),
        send("d", 0, 0.4, outcome="unknown", errors=[(0.4, "gone")]),
    ]
    assert [(tenth.acknowledged, tenth.errors) for tenth in timeline(sends)] == [
        (1, 0), (0, 2), (0, 0), (2, 0), (0, 1),
    ]  # fmt: skip
    assert timeline(sends)[3] == Bin(pytest.approx(0.3), 2, 0)
    assert timeline([]) == []


def test_the_longest_silence_is_found():
    sends = [send("a", 0, 1.0), send("b", 0, 1.5), send("c", 0, 4.0), send("d", 0, 9.0)]
    assert longest_silence_s(sends, 0.5, 4.5) == 2.5
    assert longest_silence_s(sends, 4.5, 8.0) == 3.5
    sends[2].outcome = "unknown"
    assert longest_silence_s(sends, 0.5, 5.0) == 3.5


def test_a_history_is_kept_and_read_again(tmp_path):
    told = history([send("a", errors=[(0.1, "gone")], place=(3, 4))], ["a"])
    told.save(tmp_path / "h.json", schedule=["kill A"])
    assert History.load(tmp_path / "h.json") == told
