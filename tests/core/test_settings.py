"""Queue settings: each refusal once, with the value and the remedy; storing and changing them."""

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove import limits
from ringdove.core.settings import SETTING_NAMES, SHAPING, QueueSettings, check_name
from ringdove.errors import ClientError, InvalidArgument, RingdoveError, SettingsRefused

DAY_MS = 24 * 3600 * 1000
YEARS_MS = limits.DURATION_MS_MAX
RANGES = {
    "stripes": (1, 256),
    "lease_ms": (1, YEARS_MS),
    "delay_ms": (0, YEARS_MS),
    "retention_ms": (1, YEARS_MS),
    "keep_done_ms": (0, YEARS_MS),
    "receives_max": (1, 1_000_000),
    "backoff_ms": (0, YEARS_MS),
    "backoff_ms_max": (0, YEARS_MS),
    "bytes_max": (1, 2**50),
    "body_bytes_max": (1, limits.BODY_BYTES_MAX),
    "priority": (0, 9),
    "dedup_ms": (1, YEARS_MS),
}
#: What else must be chosen for a setting to have its lowest or highest value.
COMPANIONS: dict[str, dict[str, Any]] = {
    "delay_ms": {"retention_ms": YEARS_MS},
    "backoff_ms": {"backoff_ms_max": YEARS_MS},
    "backoff_ms_max": {"backoff_ms": 0},
    "bytes_max": {"body_bytes_max": 1},
    "keep_done_ms": {"retention_ms": YEARS_MS},
}


def refusal(**chosen: Any) -> str:
    """Why the settings are refused."""
    with pytest.raises(SettingsRefused) as refused:
        QueueSettings.make(**chosen)
    return str(refused.value)


def test_the_defaults_are_those_of_the_guide():
    settings = QueueSettings.make()
    assert (settings.order, settings.delivery, settings.spread) == ("loose", "at-least-once", 1)
    assert (settings.durability, settings.dequeue, settings.priority) == ("disk", "wake", 0)
    assert (settings.lease_ms, settings.delay_ms) == (30_000, 0)
    assert (settings.retention_ms, settings.keep_done_ms) == (4 * DAY_MS, 0)
    assert (settings.receives_max, settings.dead_letter) == (None, None)
    assert (settings.receive_rate_max, settings.when_full) == (None, "refuse")
    assert not settings.ordered
    assert not settings.exactly_once


# -- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bounds"), RANGES.items())
def test_a_number_outside_its_range_is_refused_with_the_range(name, bounds):
    low, high = bounds
    for value in (low - 1, high + 1, -(2**70)):
        assert f"{name} is {value}; it must be {low} to {high}." in refusal(**{name: value})


@pytest.mark.parametrize(("name", "bounds"), RANGES.items())
def test_both_ends_of_a_range_are_accepted(name, bounds):
    low, high = bounds
    companions = COMPANIONS.get(name, {})
    assert getattr(QueueSettings.make(**companions, **{name: low}), name) == low
    if name != "delay_ms":  # The longest delay would reach the longest retention.
        assert getattr(QueueSettings.make(**companions, **{name: high}), name) == high


@pytest.mark.parametrize("spread", [0, -1, 1_001])
def test_a_spread_outside_its_range_is_refused_with_all_that_is_allowed(spread):
    expected = f"spread is {spread}; it must be 1 to 1000, 'infinite' or 'auto'."
    assert expected in refusal(spread=spread)


@pytest.mark.parametrize("spread", [1, 1_000, "infinite", "auto"])
def test_every_kind_of_spread_is_accepted(spread):
    """B3: K from 1 to "no order", and chosen automatically (B8)."""
    assert QueueSettings.make(spread=spread).spread == spread


@pytest.mark.parametrize("rate", [0, -1.5, math.nan])
def test_a_rate_that_is_not_above_zero_is_refused(rate):
    assert f"receive_rate_max is {float(rate)}; it must be above 0." in refusal(
        receive_rate_max=rate
    )


def test_an_infinite_rate_is_refused():
    assert "receive_rate_max is inf" in refusal(receive_rate_max=math.inf)


def test_a_rate_may_be_whole_or_a_fraction():
    assert QueueSettings.make(receive_rate_max=5).receive_rate_max == 5
    assert QueueSettings.make(receive_rate_max=0.1).receive_rate_max == 0.1


# -- types and words ---------------------------------------------------------------------------

WORDS = {
    "order": ("loose", "key", "strict"),
    "delivery": ("at-least-once", "exactly-once"),
    "durability": ("disk", "memory"),
    "dequeue": ("wake", "retry", "monitor", "poll"),
    "when_full": ("refuse", "drop-oldest"),
}


@pytest.mark.parametrize(("name", "words"), WORDS.items())
def test_every_word_of_a_choice_is_accepted_and_another_is_refused_by_name(name, words):
    for word in words:
        assert getattr(QueueSettings.make(**{name: word}), name) == word
    message = refusal(**{name: "sideways"})
    assert name in message
    assert "'sideways'" in message


@pytest.mark.parametrize(("name", "words"), [*WORDS.items(), ("spread", ("infinite", "auto"))])
def test_a_refused_word_is_answered_with_those_that_are_allowed(name, words):
    message = refusal(**{name: "sideways"})
    assert all(repr(word) in message for word in words)


@pytest.mark.parametrize("value", ["5", 1.5, True, None, [5]])
def test_a_value_of_another_type_is_refused_naming_the_setting_and_what_it_takes(value):
    message = refusal(lease_ms=value)
    assert "lease_ms" in message
    assert "it must be a whole number from 1 to 316224000000." in message


def test_a_value_of_another_type_is_named():
    assert "'30s'" in refusal(lease_ms="30s")


# -- unknown names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("leese_ms", "lease_ms"),
        ("retention", "retention_ms"),
        ("stripe", "stripes"),
        ("max_receives", "receives_max"),
        ("deadletter", "dead_letter"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest(wrong, near):
    assert refusal(**{wrong: 1}) == f"There is no setting {wrong!r}. Did you mean {near!r}?"


def test_an_unknown_setting_far_from_all_is_answered_with_all():
    message = refusal(qqqqq=1)
    assert message.startswith("There is no setting 'qqqqq'. Known: ")
    assert all(name in message for name in SETTING_NAMES)


# -- combinations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        ({"order": "strict", "stripes": 4}, ["'strict'", "not 4", "use order 'key'"]),
        ({"order": "strict", "priority": 3}, ["priority 3", "'strict'", "use order 'loose'"]),
        ({"order": "key", "priority": 1}, ["priority 1", "'key'", "one queue per priority"]),
        ({"order": "key", "spread": 2}, ["spread 2", "'key'", "use spread 1"]),
        ({"order": "strict", "spread": "auto"}, ["spread 'auto'", "'strict'", "use spread 1"]),
        ({"order": "key", "spread": "infinite"}, ["spread 'infinite'", "use spread 1"]),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused_with_the_reason_and_the_remedy(chosen, parts):
    message = refusal(**chosen)
    assert all(part in message for part in parts)


CONFLICTS = [
    ({"keep_done_ms": 2_000, "retention_ms": 1_000}, "keep_done_ms exceeds retention_ms"),
    ({"delay_ms": 1_000, "retention_ms": 1_000}, "delay_ms reaches retention_ms"),
    ({"backoff_ms": 900_001}, "backoff_ms exceeds backoff_ms_max"),
    ({"bytes_max": 1_000}, "body_bytes_max exceeds bytes_max"),
]


@pytest.mark.parametrize(("chosen", "reason"), CONFLICTS)
def test_two_numbers_that_contradict_each_other_are_refused_with_the_reason(chosen, reason):
    assert reason in refusal(**chosen)


@pytest.mark.parametrize(("chosen", "reason"), CONFLICTS)
def test_two_numbers_that_contradict_each_other_are_named(chosen, reason):
    message = refusal(**chosen)
    assert all(str(value) in message for value in chosen.values())


@pytest.mark.parametrize(
    "chosen",
    [
        {"keep_done_ms": 1_000, "retention_ms": 1_000},
        {"delay_ms": 999, "retention_ms": 1_000},
        {"backoff_ms": 900_000},
        {"bytes_max": limits.BODY_BYTES_MAX_DEFAULT},
        {"order": "strict", "stripes": 1},
        {"order": "key", "stripes": 256},
        {"order": "loose", "priority": 9, "spread": "infinite"},
    ],
)
def test_combinations_at_the_edge_of_sense_are_accepted(chosen):
    settings = QueueSettings.make(**chosen)
    assert {name: getattr(settings, name) for name in chosen} == chosen


def test_every_reason_is_given_at_once():
    message = refusal(order="strict", stripes=2, priority=99, lease_ms=0, backoff_ms=900_001)
    for part in ("stripes must be 1", "priority is 99", "lease_ms is 0", "backoff_ms exceeds"):
        assert part in message


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "_a", "9", "orders.eu-west_1", "x" * 80])
def test_a_name_of_the_allowed_characters_is_returned(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "a b", "a/b", "a\n", "\u00e4", "a\u0301", "x" * 97, None, 7, b"a"]
)
def test_any_other_name_is_refused_with_what_is_allowed(name):
    with pytest.raises(InvalidArgument) as refused:
        check_name(name, "subscription")
    message = str(refused.value)
    assert message.startswith(f"{name!r} is no subscription name: use 1 to 96 letters, digits")
    assert isinstance(refused.value, ClientError)


@pytest.mark.parametrize("name", ["", "a b", "x" * 97])
def test_a_dead_letter_queue_needs_a_name_that_a_queue_can_have(name):
    with pytest.raises(ClientError, match="is no dead-letter queue name: use 1 to 96"):
        QueueSettings.make(dead_letter=name)
    assert QueueSettings.make(dead_letter="failed", receives_max=3).dead_letter == "failed"


def test_a_bad_dead_letter_name_is_one_reason_among_others():
    message = refusal(dead_letter="a b", lease_ms=0)
    assert "'a b' is no dead-letter queue name" in message
    assert "lease_ms is 0" in message


# -- storing and changing ----------------------------------------------------------------------


@st.composite
def valid_settings(draw: st.DrawFn) -> QueueSettings:
    """Settings that make sense, with values from the whole of each range."""
    order = draw(st.sampled_from(WORDS["order"]))
    loose = order == "loose"
    retention_ms = draw(st.integers(1, YEARS_MS))
    backoff_ms_max = draw(st.integers(0, YEARS_MS))
    body_bytes_max = draw(st.integers(1, limits.BODY_BYTES_MAX))
    spreads = st.integers(1, 1_000) | st.sampled_from(["infinite", "auto"])
    return QueueSettings.make(
        order=order,
        **{name: draw(st.sampled_from(WORDS[name])) for name in WORDS if name != "order"},
        spread=draw(spreads) if loose else 1,
        priority=draw(st.integers(0, 9)) if loose else 0,
        stripes=1 if order == "strict" else draw(st.integers(1, 256)),
        lease_ms=draw(st.integers(1, YEARS_MS)),
        retention_ms=retention_ms,
        delay_ms=draw(st.integers(0, retention_ms - 1)),
        keep_done_ms=draw(st.integers(0, retention_ms)),
        receives_max=draw(st.none() | st.integers(1, 1_000_000)),
        dead_letter=draw(st.none() | st.just("failed")),
        backoff_ms=draw(st.integers(0, backoff_ms_max)),
        backoff_ms_max=backoff_ms_max,
        body_bytes_max=body_bytes_max,
        bytes_max=draw(st.integers(body_bytes_max, 2**50)),
        receive_rate_max=draw(st.none() | st.floats(0.001, 1e9)),
        dedup_ms=draw(st.integers(1, YEARS_MS)),
    )


@untimed
@given(valid_settings())
def test_settings_survive_their_stored_form_and_their_dictionary(settings):
    assert QueueSettings.decode(settings.encode()) == settings
    assert QueueSettings.make(**settings.to_dict()) == settings
    assert tuple(settings.to_dict()) == SETTING_NAMES
    assert settings.replace() == settings


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({"stripes": 0}, id="range"),
        pytest.param({"order": "strict", "priority": 3}, id="combination"),
        pytest.param({"order": "sideways"}, id="word"),
        pytest.param({"from_the_future": 1}, id="unknown"),
    ],
)
def test_a_stored_form_that_makes_no_sense_is_refused(stored):
    with pytest.raises(SettingsRefused):
        QueueSettings.decode(msgspec.msgpack.encode(stored))


def test_a_damaged_stored_form_raises_an_error_of_our_own():
    with pytest.raises(RingdoveError):
        QueueSettings.decode(QueueSettings.make(stripes=9).encode()[:-1])


def test_replace_changes_what_it_is_told_and_leaves_the_original_alone():
    settings = QueueSettings.make(order="key", stripes=8)
    changed = settings.replace(lease_ms=5_000)
    assert (changed.order, changed.stripes, changed.lease_ms) == ("key", 8, 5_000)
    assert settings.lease_ms == 30_000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"priority": 3}, "priority 3 would overtake"),
        ({"order": "strict"}, "stripes must be 1, not 8"),
        ({"lease_ms": -1}, "lease_ms is -1"),
        ({"leasems": 1}, "Did you mean 'lease_ms'"),
        ({"delivery": "twice"}, "'twice'"),
    ],
)
def test_replace_checks_again_together_with_what_was_chosen_before(change, reason):
    settings = QueueSettings.make(order="key", stripes=8)
    with pytest.raises(SettingsRefused, match=reason):
        settings.replace(**change)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        QueueSettings.make().lease_ms = 1


def test_the_settings_that_shape_stored_data_exist():
    assert set(SHAPING) <= set(SETTING_NAMES)


# -- derived values ----------------------------------------------------------------------------


def test_only_key_and_strict_promise_order():
    ordered = {order: QueueSettings.make(order=order).ordered for order in WORDS["order"]}
    assert ordered == {"loose": False, "key": True, "strict": True}


def test_only_exactly_once_drops_repetitions():
    assert QueueSettings.make(delivery="exactly-once").exactly_once
    assert not QueueSettings.make(delivery="at-least-once").exactly_once


def test_the_back_off_doubles_with_every_receive_up_to_its_limit():
    settings = QueueSettings.make(backoff_ms=100, backoff_ms_max=1_000)
    waits = [settings.backoff_after_ms(receives) for receives in range(7)]
    assert waits == [100, 100, 200, 400, 800, 1_000, 1_000]
    assert settings.backoff_after_ms(10**9) == 1_000


def test_without_a_first_back_off_there_is_none():
    assert QueueSettings.make(backoff_ms=0).backoff_after_ms(50) == 0


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_every_setting_says_what_it_takes(name):
    message = refusal(**{name: object()})
    assert re.fullmatch(rf"{name} is <object .*>; it must be .*\.", message)
