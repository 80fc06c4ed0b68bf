"""The layout of a fabric: two rings, for any number of servers (T3.3, T3.4)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.core.ring import SERVERS_MAX, SLOTS, Process, Rings, Shard, server_name, server_number
from ringdove.errors import InvalidArgument

SHARE = 2

rings = st.builds(Rings, st.integers(1, 40), st.integers(1, 3), st.booleans())


@st.composite
def failed_rings(draw):
    found = draw(rings)
    return found, draw(st.sets(st.integers(0, found.servers - 1)))


def neighbours(servers):
    return [{server, (server + 1) % servers} for server in range(servers)]


def test_five_servers_run_thirty_processes():
    placement = Rings(5).placement()
    assert [len(processes) for processes in placement] == [6] * 5
    everything = [process for processes in placement for process in processes]
    assert sum(process.rank == 0 for process in everything) == 10
    assert sum(process.rank > 0 for process in everything) == 20


def test_ring_1_copies_to_the_next_and_ring_2_to_the_previous_servers():
    five = Rings(5)
    assert five.names == ["A", "B", "C", "D", "E"]
    assert {shard.name: "".join(map(server_name, five.holders(shard))) for shard in five.shards} == {
        "A1": "ABC", "B1": "BCD", "C1": "CDE", "D1": "DEA", "E1": "EAB",
        "A2": "AED", "B2": "BAE", "C2": "CBA", "D2": "DCB", "E2": "EDC",
    }  # fmt: skip
    assert five.placement()[0] == [
        Process(0, Shard(0, 1), 0), Process(0, Shard(4, 1), 1), Process(0, Shard(3, 1), 2),
        Process(0, Shard(0, 2), 0), Process(0, Shard(1, 2), 1), Process(0, Shard(2, 2), 2),
    ]  # fmt: skip


def test_rings_in_the_same_direction_copy_to_the_same_servers():
    same = Rings(5, 3, counter_rotating=False)
    assert same.holders(Shard(4, 1)) == same.holders(Shard(4, 2)) == [4, 0, 1]


@untimed
@given(rings)
def test_each_shard_is_at_home_once_and_copied_to_distinct_other_servers(layout):
    placed = [process for processes in layout.placement() for process in processes]
    assert len(placed) == len(set(placed)) == 2 * layout.servers * layout.holders_count
    for shard in layout.shards:
        home, *copies = layout.holders(shard)
        assert home == layout.home(shard) == shard.origin
        assert home not in copies
        assert len(set(copies)) == len(copies) == min(layout.copies, layout.servers) - 1


@untimed
@given(rings)
def test_every_server_has_one_master_of_each_ring_and_equally_many_copies(layout):
    for server, processes in enumerate(layout.placement()):
        assert {process.server for process in processes} == {server}
        masters = [process.shard for process in processes if process.rank == 0]
        assert masters == [Shard(server, 1), Shard(server, 2)]
        assert len(processes) == 2 * layout.holders_count


@pytest.mark.parametrize("servers", [*range(1, 30), SERVERS_MAX])
def test_slots_are_covered_exactly_once_and_balanced_within_one(servers):
    layout = Rings(servers)
    ranges = [layout.slots(shard) for shard in layout.shards]
    assert [slot for slots in ranges for slot in slots] == list(range(SLOTS))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("servers", range(4, 20))
def test_two_neighbouring_failures_leave_at_most_twice_the_share(servers):
    for failed in neighbours(servers):
        load = Rings(servers).load(failed)
        assert max(load.values()) == 2 * SHARE
        assert sum(load.values()) == servers * SHARE


@pytest.mark.parametrize("servers", range(4, 20))
def test_rings_in_the_same_direction_leave_three_times_the_share(servers):
    for failed in neighbours(servers):
        load = Rings(servers, counter_rotating=False).load(failed)
        assert max(load.values()) == 3 * SHARE


@pytest.mark.parametrize("servers", range(3, 20))
def test_the_load_of_one_failed_server_is_split_between_its_neighbours(servers):
    for failed in range(servers):
        load = Rings(servers).load({failed})
        beside = {(failed - 1) % servers, (failed + 1) % servers}
        assert {server for server, masters in load.items() if masters > SHARE} == beside
        assert max(load.values()) == SHARE + 1


@untimed
@given(failed_rings())
def test_promotion_goes_on_in_ring_order_and_load_counts_it(sample):
    layout, failed = sample
    load = dict.fromkeys(set(range(layout.servers)) - failed, 0)
    for shard in layout.shards:
        holders = layout.holders(shard)
        promoted = layout.promoted(shard, failed)
        if promoted is None:
            assert set(holders) <= failed
        else:
            assert promoted not in failed
            assert set(holders[: holders.index(promoted)]) <= failed
            load[promoted] += 1
    assert layout.load(failed) == load


@untimed
@given(failed_rings())
def test_fewer_failures_than_copies_leave_no_shard_without_a_holder(sample):
    layout, failed = sample
    unheld = [shard for shard in layout.shards if layout.promoted(shard, failed) is None]
    if len(failed) < layout.holders_count:
        assert unheld == []
    standing = layout.after(failed)
    assert standing.voters == 2 * (layout.servers - len(failed))
    assert standing.goes_on == (2 * standing.voters > 2 * layout.servers)
    if standing.goes_on:
        assert standing.unserved == unheld


def test_without_a_majority_nobody_is_promoted():
    assert Rings(3).after({0}).goes_on
    assert not Rings(2).after({0}).goes_on
    after_both = Rings(3).after({0}, {1})
    assert (after_both.voters, after_both.majority) == (3, 4)
    assert [shard.name for shard in after_both.unserved] == ["A1", "B1", "B2"]
    assert not Rings(4).after({0, 1}).goes_on
    assert Rings(4).after({0}, {1}).goes_on
    assert Rings(5).after({0, 1}).goes_on


@pytest.mark.parametrize(
    ("layout", "sentences"),
    [
        (Rings(1), ["When the server fails, everything stops until it returns."]),
        (Rings(2), ["everything stops until it returns: of 4 masters 2 are left"]),
        (
            Rings(3),
            [
                "everything goes on, with at most 3 masters",
                "after copies of the first were promoted, everything stops until the second one",
                "When two fail at once, everything stops until they return",
            ],
        ),
        (
            Rings(4),
            [
                "everything goes on, with at most 3 masters",
                "were promoted, 4 of 8 shards stand still until a server returns",
                "When two fail at once, everything stops until they return: of 8 masters 4",
                "Queues without order go on elsewhere.",
            ],
        ),
        (
            Rings(5),
            [
                "everything goes on, with at most 3 masters",
                "When a second one fails, in 2 of 4 cases 4 of 10 shards stand still until",
                "Queues without order go on elsewhere.",
            ],
        ),
        (
            Rings(5).added(),
            [
                "in 2 of 6 cases everything goes on, with at most 2 masters on a server; in 4 of 6",
                "in 6 of 30 cases everything goes on, with at most 3 masters on a server",
                "Queues without order go on elsewhere.",
            ],
        ),
        (
            Rings(5, 1),
            [
                "2 of 10 shards are out of reach until it returns",
                "When a second one fails, 4 of 10 shards are out of reach until they return",
            ],
        ),
    ],
    ids=str,
)
def test_what_failures_do_is_told_in_words(layout, sentences):
    told = layout.tell_failures()
    assert len(told) == len(sentences)
    for sentence, part in zip(told, sentences, strict=True):
        assert part in sentence


# -- growing and shrinking ----------------------------------------------------------------------


@st.composite
def changed_rings(draw):
    """A layout that some servers were added to and some removed from, in any order."""
    layout = draw(st.builds(Rings, st.integers(1, 12), st.integers(1, 3), st.booleans()))
    for grow in draw(st.lists(st.booleans(), max_size=12)):
        if grow and len(layout.order) < len(layout.homes):
            layout = layout.added()
        elif not grow and len(layout.order) > layout.holders_count:
            layout = layout.removed(draw(st.sampled_from(layout.order)))
    return layout


def homes_count(layout, server):
    return layout.homes.count(server)


def moves_needed(before, order):
    """The fewest homes that any way of spreading shards evenly over these servers moves."""
    least, more = divmod(len(before.homes), len(order))
    counts = sorted((homes_count(before, server) for server in order), reverse=True)
    stay = [min(count, least + (place < more)) for place, count in enumerate(counts)]
    return len(before.homes) - sum(stay)


@untimed
@given(changed_rings())
def test_homes_are_spread_evenly_and_copies_are_on_distinct_servers(layout):
    counts = [homes_count(layout, server) for server in layout.order]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1
    assert sum(counts) == 2 * layout.servers
    for shard in layout.shards:
        holders = layout.holders(shard)
        assert holders[0] == layout.home(shard)
        assert len(set(holders)) == len(holders) == min(layout.copies, len(layout.order))
        assert set(holders) <= set(layout.order)
        step = layout.direction(shard.ring)
        places = [layout.order.index(server) for server in holders]
        assert all((b - a - step) % len(layout.order) == 0 for a, b in pairwise(places))


@untimed
@given(changed_rings(), st.data())
def test_a_change_of_servers_moves_as_few_homes_as_possible(before, data):
    if data.draw(st.booleans()) and len(before.order) < len(before.homes):
        after = before.added()
        assert after.order[:-1] == before.order
    elif len(before.order) > before.holders_count:
        gone = data.draw(st.sampled_from(before.order))
        after = before.removed(gone)
        assert set(before.order) - set(after.order) == {gone}
    else:
        after = before.on(before.order)
    moved = sum(a != b for a, b in zip(before.homes, after.homes, strict=True))
    assert moved == moves_needed(before, after.order)
    assert [after.slots(s) for s in after.shards] == [before.slots(s) for s in before.shards]


@untimed
@given(changed_rings(), st.data())
def test_what_failures_do_is_counted_on_uneven_layouts_too(layout, data):
    failed = data.draw(st.sets(st.sampled_from(layout.order)))
    load = layout.load(failed)
    assert set(load) == set(layout.order) - failed
    held = [shard for shard in layout.shards if set(layout.holders(shard)) - failed]
    assert sum(load.values()) == len(held)
    assert layout.tell_failures()


def test_a_sixth_server_takes_one_shard_and_the_copies_beside_it():
    six = Rings(5).added()
    assert six.names == ["A", "B", "C", "D", "E", "F"]
    assert {shard.name: "".join(map(server_name, six.holders(shard))) for shard in six.shards} == {
        "A1": "FAB", "B1": "BCD", "C1": "CDE", "D1": "DEF", "E1": "EFA",
        "A2": "AFE", "B2": "BAF", "C2": "CBA", "D2": "DCB", "E2": "EDC",
    }  # fmt: skip


def test_a_removed_server_leaves_a_gap_and_its_shards_go_to_their_first_copies():
    four = Rings(5).removed(1)
    assert four.names == ["A", "C", "D", "E"]
    assert four.home(Shard(1, 1)) == 2
    assert four.home(Shard(1, 2)) == 0
    assert four.added().names == ["A", "C", "D", "E", "F"]


def test_shards_return_to_the_server_whose_name_they_bear():
    with_room = Rings(10).on(range(5))
    assert len(with_room.shards) == 20
    assert with_room.load() == dict.fromkeys(range(5), 4)
    six = with_room.added()
    assert {six.home(Shard(5, ring)) for ring in (1, 2)} == {5}


def test_too_many_servers_and_too_few_are_refused():
    with pytest.raises(InvalidArgument, match="3 copies on as many servers, and without C there a"):
        Rings(3).removed(2)
    with pytest.raises(InvalidArgument, match="made with 2 shards: 1 to 2 servers can share them"):
        Rings(1).added().added()
    for order, homes in (((0, 0), (0, 0)), ((1,), (0, 1)), ((0,), (0,))):
        with pytest.raises(InvalidArgument, match="home"):
            Rings(1, order=order, homes=homes)


def test_servers_have_letters_and_then_two():
    assert [server_name(n) for n in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip
    assert all(server_number(server_name(number)) == number for number in range(800))
    for name in ("", "a", "A1"):
        with pytest.raises(InvalidArgument):
            server_number(name)


@pytest.mark.parametrize(("servers", "copies"), [(0, 3), (-1, 3), (167, 3), (5, 0), (5, 4)])
def test_shapes_that_make_no_sense_are_refused(servers, copies):
    with pytest.raises(InvalidArgument, match=f"{'servers' if copies == 3 else 'copies'}, not"):
        Rings(servers, copies)
