"""Measuring in turns."""

from experiments.beside import ratio
from experiments.rounds import in_turns


def test_cells_take_turns_and_give_their_best_rounds():
    seen = []

    def cell(name, rates):
        def work():
            seen.append(name)
            rate = rates.pop()
            return {"per_s": rate, "share": rate / 10}

        return {"name": name}, work

    rows = in_turns("test", [cell("a", [1, 9, 2]), cell("b", [7, 7, 7])], 3)
    assert seen == ["a", "b"] * 3
    assert rows == [
        {"name": "a", "per_s": 9, "share": 0.9},
        {"name": "b", "per_s": 7, "share": 0.7},
    ]


def test_a_ratio_to_nothing_is_nothing():
    assert ratio(3, 2) == 1.5
    assert ratio(3, 0) is None
