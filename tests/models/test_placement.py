"""Placement on paper: the same rings as the real ones, and what failures do."""

import pytest

from ringdove.core.ring import SERVERS_MAX, Rings
from ringdove.errors import InvalidArgument
from ringdove.models import placement
from ringdove.models.placement import LAYOUTS, place, study
from ringdove.models.scaling import NodeCosts, response_s, servers_for, throughput_per_s


@pytest.mark.parametrize("servers", [5, 17, SERVERS_MAX])
@pytest.mark.parametrize("counter", [True, False])
def test_beyond_one_fabric_rings_follow_the_same_rule(servers, counter, monkeypatch):
    rings = Rings(servers, counter_rotating=counter)
    real = [tuple(rings.holders(shard)) for shard in rings.shards]
    assert placement._rings(servers, counter=counter) == real
    monkeypatch.setattr(placement, "SERVERS_MAX", 0)
    assert placement._rings(servers, counter=counter) == real


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("servers", [5, 7, 50, 500])
def test_every_shard_is_on_three_servers_and_every_server_has_its_share(layout, servers):
    found = place(layout, servers)
    assert len(found.holders) == 2 * servers
    assert all(len(set(holders)) == 3 for holders in found.holders)
    assert set(found.loads([])) == {1.0}
    assert min(found.left([])) == 3


def test_loads_after_failures_are_those_of_the_real_rings():
    rings = Rings(9)
    found = place("counter-rotating", 9)
    for failed in ([2], [2, 3], [1, 5, 6]):
        expected = [masters / 2 for masters in rings.load(failed).values()]
        assert found.loads(failed) == expected


def test_two_neighbours_leave_twice_or_three_times_the_share():
    for servers in (5, 50):
        same = study(place("same direction", servers), 2, neighbours=True)
        counter = study(place("counter-rotating", servers), 2, neighbours=True)
        assert same["load_worst"] == 3
        assert counter["load_worst"] == 2
        assert same["lost_share"] == counter["lost_share"] == 0


def test_three_neighbours_lose_a_shard_of_a_ring():
    counter = study(place("counter-rotating", 20), 3, neighbours=True)
    assert counter["loss_chance"] == 1
    assert counter["lost_share"] == pytest.approx(2 / 40)
    scattered = study(place("copysets", 200), 3, neighbours=True)
    assert scattered["loss_chance"] < 0.1


def test_the_fewer_sets_of_servers_the_rarer_is_a_loss():
    by_layout = {layout: place(layout, 60) for layout in LAYOUTS}
    assert by_layout["copysets"].sets == 40
    assert by_layout["counter-rotating"].sets == by_layout["single"].sets == 60
    assert by_layout["random"].sets > 115
    # The formula is what drawing failures finds.
    monte_carlo = study(place("random", 12), 3)
    assert monte_carlo["loss_chance"] == pytest.approx(place("random", 12).loss_chance)
    assert monte_carlo["tried"] == 220


def test_many_servers_are_drawn_at_random():
    found = study(place("random", 200), 3, seed=1)
    assert found["tried"] == 500
    assert found == study(place("random", 200), 3, seed=1)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidArgument, match="no layout"):
        place("star", 5)
    with pytest.raises(InvalidArgument, match="cannot hold"):
        place("single", 2)
    with pytest.raises(InvalidArgument, match="cannot fail"):
        study(place("single", 5), 5)


def test_throughput_grows_with_servers_in_a_line():
    costs = NodeCosts(0.001, 0.000_5)
    assert costs.message_s == pytest.approx(0.002)
    assert [throughput_per_s(costs, n) for n in (1, 10, 70)] == pytest.approx([500, 5_000, 35_000])
    assert servers_for(costs, 4_000) == 10
    # Below 80 % of saturation a response takes less than five service times, with any number.
    assert response_s(costs, 70, 0.79) < 5 * costs.message_s
    assert response_s(costs, 70, 0.79, shared=True) < 1.1 * costs.message_s


def test_work_that_does_not_spread_limits_the_fabric():
    costs = NodeCosts(0.001, serial=0.1)
    assert throughput_per_s(costs, 1_000) < 10_000
    with pytest.raises(InvalidArgument, match="No number of servers"):
        servers_for(costs, 20_000)
    with pytest.raises(InvalidArgument):
        NodeCosts(0)
