"""The Petri-net engine, on nets with known answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove.errors import InvalidArgument
from ringdove.models.petri.engine import Simulation
from ringdove.models.petri.net import (
    ColourSet,
    Count,
    Give,
    Net,
    Observe,
    Page,
    Place,
    Substitution,
    Take,
    Transition,
)
from ringdove.models.replications import estimate
from ringdove.models.stations import Service, Station

COLOURS = [ColourSet("INT", int), ColourSet("WORD", str), ColourSet("PAIR", tuple)]


def net(places, transitions, monitors=(), substitutions=()):
    page = Page("Net", list(places), list(transitions), list(substitutions))
    return Net(page, COLOURS, list(monitors))


def total(simulation):
    return sum(simulation.marking(name).total() for name in simulation.places)


def test_producer_and_consumer_share_a_buffer_of_three():
    bounded = net(
        [
            Place("Free", "INT", "[0] * 3"),
            Place("Full", "INT"),
            Place("Made", "INT", "[1]"),
            Place("Used", "INT"),
        ],
        [
            Transition(
                "Produce",
                [Take("Free", "slot"), Take("Made", "n")],
                [Give("Full", "n"), Give("Made", "n + 1", delay="1")],
                guard="n <= 20",
            ),
            Transition(
                "Consume",
                [Take("Full", "n")],
                [Give("Free", "0", delay="2"), Give("Used", "n")],
            ),
        ],
        [Count("free", "Free"), Observe("used", "Consume", "n")],
    )
    simulation = Simulation(bounded, checked=True)
    simulation.run()
    assert simulation.seen("used") == list(range(1, 21))
    assert simulation.marking("Used").total() == 20
    assert simulation.marking("Free") == {0: 3}
    assert simulation.fired == 40


def test_three_slots_of_two_seconds_limit_a_fast_producer():
    limited = net(
        [Place("Free", "INT", "[0] * 3"), Place("Made", "INT", "[1]")],
        [
            Transition(
                "Produce",
                [Take("Free", "slot"), Take("Made", "n")],
                [Give("Free", "0", delay="2"), Give("Made", "n + 1")],
            )
        ],
    )
    simulation = Simulation(limited)
    simulation.run(99)
    assert simulation.fired == 3 * 50
    assert simulation.now_s == 99


def philosophers(count, *, polite):
    """Each takes both forks at once, or (impolite) first the left one."""
    at_the_table = [
        Place("Thinking", "INT", "list(range(count))", pick="random"),
        Place("Forks", "INT", "list(range(count))", key="token"),
        Place("Eating", "INT", pick="random"),
        Place("Holding", "INT", pick="random"),
    ]
    eat = Transition(
        "Eat",
        [
            Take("Thinking", "p"),
            Take("Forks", "a", by="p"),
            Take("Forks", "b", by="(p + 1) % count"),
        ],
        [Give("Eating", "p", delay="random()")],
    )
    grab = Transition(
        "Grab", [Take("Thinking", "p"), Take("Forks", "a", by="p")], [Give("Holding", "p")]
    )
    both = Transition(
        "Both",
        [Take("Holding", "p"), Take("Forks", "b", by="(p + 1) % count")],
        [Give("Eating", "p", delay="random()")],
    )
    think = Transition(
        "Think",
        [Take("Eating", "p")],
        [Give("Thinking", "p"), Give("Forks", "p"), Give("Forks", "(p + 1) % count")],
    )
    acts = [eat, think] if polite else [grab, both, think]
    monitors = [Observe("meals", "Think", "p"), Count("eating", "Eating")]
    return Simulation(net(at_the_table, acts, monitors), {"count": count}, seed=3, checked=True)


def test_philosophers_who_take_both_forks_all_eat_and_neighbours_never_together():
    table = philosophers(5, polite=True)
    for _ in range(400):
        table.run(firings_max=1)
        eating = set(table.marking("Eating"))
        assert not any((p + 1) % 5 in eating for p in eating)
        assert table.marking("Forks").total() == 5 - 2 * len(eating)
    assert set(table.seen("meals")) == set(range(5))
    assert table.mean("eating") <= 2


def test_philosophers_who_take_one_fork_first_end_in_a_deadlock():
    table = philosophers(2, polite=False)
    table.run(1_000)
    fired = table.fired
    table.run(100_000)
    assert table.fired == fired
    assert table.marking("Holding") == {0: 1, 1: 1}


def test_one_station_agrees_with_its_formula():
    station = net(
        [
            Place("Next", "WORD", "['x']"),
            Place("Line", "PAIR", pick="first"),
            Place("Idle", "WORD", "['t'] * threads"),
            Place("Busy", "PAIR"),
        ],
        [
            Transition(
                "Arrive",
                [Take("Next", "x")],
                [Give("Next", "x", delay="exponential(7)"), Give("Line", "('m', now)")],
            ),
            Transition(
                "Begin",
                [Take("Line", "(m, at)"), Take("Idle", "t")],
                [Give("Busy", "(t, at)", delay="exponential(10)")],
            ),
            Transition("End", [Take("Busy", "(t, at)")], [Give("Idle", "t")]),
        ],
        [Observe("sojourn", "End", "now - at"), Count("line", "Line"), Count("busy", "Busy")],
    )
    expected = Station(7.0, Service(0.1), 1)
    figures = {"sojourn": [], "line": [], "busy": [], "any": []}
    for seed in range(8):
        simulation = Simulation(station, {"threads": 1}, seed)
        simulation.run(50)
        simulation.forget()
        simulation.run(650)
        times_s = simulation.seen("sojourn")
        figures["sojourn"].append(sum(times_s) / len(times_s))
        figures["line"].append(simulation.mean("line"))
        figures["busy"].append(simulation.mean("busy"))
        figures["any"].append(simulation.busy("busy"))
    assert estimate(figures["sojourn"], 0.99, 4).covers(expected.sojourn_s)
    assert estimate(figures["line"], 0.99, 4).covers(expected.waiting)
    assert estimate(figures["busy"], 0.99, 4).covers(expected.utilisation)
    assert estimate(figures["any"], 0.99, 4).covers(expected.busy_probability)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_transitions_that_take_one_and_give_one_keep_the_number_of_tokens(tokens, arcs, seed):
    places = [Place(f"P{n}", "INT", "[0] * tokens" if n == 0 else "[]") for n in range(4)]
    moves = [
        Transition(f"T{n}", [Take(f"P{a}", "x")], [Give(f"P{b}", "x", delay="random()")])
        for n, (a, b) in enumerate(arcs)
    ]
    simulation = Simulation(net(places, moves), {"tokens": tokens}, seed)
    simulation.run(firings_max=200)
    assert total(simulation) == tokens


def test_a_seed_repeats_a_run_and_another_does_not():
    def run(seed):
        table = philosophers(5, polite=True)
        table._random.seed(seed)
        table.run(50)
        return table.seen("meals")

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_which_of_two_transitions_fires_is_left_to_chance():
    choice = net(
        [Place("In", "INT", "[0] * 2000"), Place("A", "INT"), Place("B", "INT")],
        [
            Transition("ToA", [Take("In", "x")], [Give("A", "x")]),
            Transition("ToB", [Take("In", "x")], [Give("B", "x")]),
        ],
    )
    simulation = Simulation(choice)
    simulation.run()
    assert 850 < simulation.marking("A").total() < 1150
    assert total(simulation) == 2000


def test_a_higher_priority_goes_first():
    choice = net(
        [Place("In", "INT", "[0] * 20"), Place("A", "INT"), Place("B", "INT")],
        [
            Transition("Last", [Take("In", "x")], [Give("B", "x")], priority=1),
            Transition("First", [Take("In", "x")], [Give("A", "x")]),
        ],
    )
    simulation = Simulation(choice)
    simulation.run()
    assert simulation.marking("A").total() == 20


def test_a_token_may_be_asked_for_by_key_before_its_time():
    timers = net(
        [
            Place("Timer", "INT", key="token"),
            Place("Start", "INT", "[1, 2, 3]"),
            Place("Cancel", "INT"),
            Place("Rung", "INT"),
        ],
        [
            Transition(
                "Set",
                [Take("Start", "n")],
                [Give("Timer", "n", delay="10 * n"), Give("Cancel", "n", delay="5", when="n == 2")],
            ),
            Transition("Stop", [Take("Cancel", "n"), Take("Timer", "t", by="n", ahead=True)], []),
            Transition("Ring", [Take("Timer", "n")], [Give("Rung", "n")]),
        ],
        [Observe("rung", "Ring", "(n, now)"), Observe("stopped", "Stop", "(n, now)")],
    )
    simulation = Simulation(timers, checked=True)
    simulation.run()
    assert simulation.seen("rung") == [(1, 10), (3, 30)]
    assert simulation.seen("stopped") == [(2, 5)]
    assert not simulation.marking("Timer")


def test_a_token_asked_for_by_key_in_time_is_waited_for():
    waiting = net(
        [
            Place("Due", "INT", key="token"),
            Place("Start", "INT", "[1]"),
            Place("Ask", "INT", "[1]"),
            Place("Other", "INT"),
        ],
        [
            Transition("Set", [Take("Start", "n")], [Give("Due", "n", delay="7")]),
            Transition("Get", [Take("Ask", "n"), Take("Due", "d", by="n")], []),
            Transition("Early", [Take("Other", "n"), Take("Due", "d", by="n", ahead=True)], []),
        ],
        [Observe("got", "Get", "now")],
    )
    simulation = Simulation(waiting)
    simulation.run()
    assert simulation.seen("got") == [7]


def test_variables_that_are_bound_twice_must_be_equal():
    joining = net(
        [
            Place("Left", "PAIR", "[(1, 'a'), (2, 'b')]"),
            Place("Right", "PAIR", "[(3, 'x'), (2, 'y')]"),
        ],
        [Transition("Join", [Take("Left", "(n, l)"), Take("Right", "(n, r)")], [])],
        [Observe("joined", "Join", "(n, l, r)")],
    )
    simulation = Simulation(joining)
    simulation.run()
    assert simulation.seen("joined") == [(2, "b", "y")]


def test_two_arcs_from_one_place_take_two_tokens():
    pairs = net(
        [Place("In", "INT", "[1, 1, 2, 3, 4]"), Place("Out", "INT")],
        [
            Transition(
                "Sum", [Take("In", "a"), Take("In", "b")], [Give("Out", "a + b")], guard="a >= b"
            )
        ],
    )
    simulation = Simulation(pairs)
    simulation.run()
    assert simulation.fired == 2
    assert sum((simulation.marking("In") + simulation.marking("Out")).elements()) == 11


def test_a_page_stands_in_for_a_transition():
    twice = Page(
        "Twice",
        [Place("From", "INT", port=True), Place("Middle", "INT"), Place("To", "INT", port=True)],
        [
            Transition("One", [Take("From", "n")], [Give("Middle", "n + 1")]),
            Transition("Two", [Take("Middle", "n")], [Give("To", "2 * n")]),
        ],
    )
    whole = net(
        [Place("A", "INT", "[1]"), Place("B", "INT"), Place("C", "INT")],
        [],
        [Observe("middle", "Second.One", "n")],
        [
            Substitution("First", twice, {"From": "A", "To": "B"}),
            Substitution("Second", twice, {"From": "B", "To": "C"}),
        ],
    )
    simulation = Simulation(whole, checked=True)
    simulation.run()
    assert simulation.marking("C") == {10: 1}
    assert simulation.seen("middle") == [4]
    assert "First.Middle" in simulation.places


def test_a_token_of_another_colour_is_refused():
    wrong = net(
        [Place("In", "INT", "[1]"), Place("Out", "WORD")],
        [Transition("Move", [Take("In", "n")], [Give("Out", "n")])],
    )
    with pytest.raises(InvalidArgument, match="Out got 1; its tokens are WORD"):
        Simulation(wrong, checked=True).run()


def test_a_net_that_never_rests_is_stopped(monkeypatch):
    monkeypatch.setattr("ringdove.models.petri.engine._FIRINGS_AT_ONCE_MAX", 1_000)
    spinning = net(
        [Place("In", "INT", "[1]")], [Transition("Spin", [Take("In", "n")], [Give("In", "n")])]
    )
    with pytest.raises(InvalidArgument, match="never rests"):
        Simulation(spinning).run(1)


@pytest.mark.parametrize(
    ("places", "transitions", "monitors", "told"),
    [
        ([Place("A", "INT")], [Transition("T", [Take("B", "x")], [])], [], "no place: B"),
        ([Place("A", "FISH")], [], [], "no colour set: FISH"),
        ([Place("A", "INT")], [Transition("T", [Take("A", "x", by="1")], [])], [], "no key"),
        (
            [Place("A", "INT", key="token")],
            [Transition("T", [Take("A", "x", ahead=True)], [])],
            [],
            "ask by key",
        ),
        ([Place("A", "INT")], [Transition("T", [Take("A", "x + 1")], [])], [], "can bind"),
        ([Place("A", "INT")], [], [Count("n", "B")], "looks at B"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(places, transitions, monitors, told):
    with pytest.raises(InvalidArgument, match=told):
        Simulation(net(places, transitions, monitors))
