"""Measuring in turns."""

from experiments.beside import ratio
from experiments.rounds import in_turns


def test_cells_take_turns_and_give_their_medians():
    seen = []

    def cell(name, values):
        def work():
            seen.append(name)
            return {"per_s": values.pop(), "share": 0.5}

        return {"name": name}, work

    rows = in_turns("test", [cell("a", [1, 900, 2]), cell("b", [7, 7, 7])], 3)
    assert seen == ["a", "b"] * 3
    assert rows == [
        {"name": "a", "per_s": 2, "share": 0.5},
        {"name": "b", "per_s": 7, "share": 0.5},
    ]


def test_a_ratio_to_nothing_is_nothing():
    assert ratio(3, 2) == 1.5
    assert ratio(3, 0) is None
