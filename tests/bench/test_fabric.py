"""`ringdove bench fabric`, a short run on real Redis processes."""

from ringdove.bench import fabric


def test_both_ways_carry_every_message(tmp_path):
    result = fabric.run(tmp_path, messages=20_000, rounds=1, seconds=0.3, fsync="everysec")
    assert [row["way"] for row in result["fabric"]] == ["bare", "controller"]
    for row in result["fabric"]:
        assert (row["messages"], row["lost"]) == (20_000, 0)
        assert row["messages_per_s"] > 0
    assert result["single_sends_per_s"] > 0
    assert not list(tmp_path.iterdir()), "something was left behind"
