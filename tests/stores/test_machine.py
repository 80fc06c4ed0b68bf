"""Random operations on the memory store, the embedded store, the fabric and the naive model (I2-I7).

`RINGDOVE_EXAMPLES` raises the number of runs and makes them differ from time to time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ringdove.core.settings import QueueSettings
from stores.machine import Sides

if TYPE_CHECKING:
    from fabric.redis import RedisProcess

_EXAMPLES = os.environ.get("RINGDOVE_EXAMPLES")
_RUNS = settings(
    max_examples=int(_EXAMPLES or 24),
    stateful_step_count=40,
    deadline=None,
    derandomize=_EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
)

WAITS_MS = st.sampled_from([0, 1, 10, 100, 1000])
LEASES_MS = st.sampled_from([10, 10, 100, 400])
SUBS = st.sampled_from(["default", "default", "default", "one"])
SHARES = st.floats(0, 1)
KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b""]), min_size=1, max_size=6)
BLOCKS = st.lists(st.tuples(KEYS, st.sampled_from([0, 0, 0, 0, 5, 300])), min_size=1, max_size=3)
#: Which lease, counted from the latest; which part of it; what is wrong with the claim.
PICKS = st.tuples(
    st.integers(0, 5) | st.integers(0, 100),
    st.sampled_from([0.0, 0.0, 0.3, 0.5, 0.9]),
    st.sampled_from([0.0, 0.0, 0.4, 1.0]),
    st.sampled_from(["", "", "", "", "", "epoch", "token"]),
)


class StoreMachine(RuleBasedStateMachine):
    """What users of one stripe may do, in any order."""

    order: ClassVar[str] = "loose"
    redis: ClassVar[RedisProcess]

    def __init__(self) -> None:
        super().__init__()
        self.sides: Sides | None = None
        self.next_body = 0

    @initialize(
        blocks=BLOCKS,
        receives_max=st.sampled_from([None, None, 1, 2]),
        retention_ms=st.sampled_from([500, 5000, 10_000_000]),
        keep_done_ms=st.sampled_from([0, 0, 400]),
        dedup_ms=st.sampled_from([50, 2000]),
    )
    def make(self, blocks: list[tuple[list[bytes], int]], **chosen: Any) -> None:
        self.sides = Sides(
            QueueSettings.make(
                durability="memory", order=self.order, backoff_ms=20, backoff_ms_max=70, **chosen
            ),
            self.redis,
        )
        self.append(blocks)

    def teardown(self) -> None:
        if self.sides is not None:
            self.sides.close()

    def do(self, verb: str, *arguments: Any) -> None:
        assert self.sides is not None
        self.sides.do(verb, *arguments)

    def known(self, sub: str) -> str:
        """A subscription that exists, this one if possible."""
        subs = self.subs()
        return sub if sub in subs else subs[0]

    def subs(self) -> list[str]:
        assert self.sides is not None
        return sorted(self.sides.memory.model.subs)

    def anything_leased(self) -> bool:
        assert self.sides is not None
        return all(side.leases for side in self.sides.all)

    # -- the daily work -------------------------------------------------------------------------

    @rule(blocks=BLOCKS)
    def append(self, blocks: list[tuple[list[bytes], int]]) -> None:
        made = []
        for keys, delay_ms in blocks:
            bodies = [b"%d" % (self.next_body + n) for n in range(len(keys))]
            self.next_body += len(keys)
            made.append((bodies, keys, delay_ms))
        self.do("append", made)

    @rule(
        claim=st.fixed_dictionaries(
            {
                "producer": st.sampled_from([b"p", b"q"]),
                "sequence": st.integers(0, 6),
                "span": st.integers(1, 3),
                "gaps": st.booleans(),
            }
        )
        | st.fixed_dictionaries({"message_id": st.sampled_from([b"x", b"y"])})
    )
    def append_judged(self, claim: dict[str, Any]) -> None:
        self.do("append_judged", claim)

    @precondition(lambda self: self.subs())
    @rule(sub=SUBS, want=st.sampled_from([1, 2, 3, 5, 1000]), lease_ms=LEASES_MS)
    def lease(self, sub: str, want: int, lease_ms: int) -> None:
        self.do("lease", self.known(sub), want, lease_ms)

    @precondition(lambda self: self.subs())
    @rule(sub=SUBS, wants=st.lists(st.integers(1, 2), min_size=2, max_size=4), lease_ms=LEASES_MS)
    def lease_often(self, sub: str, wants: list[int], lease_ms: int) -> None:
        for want in wants:
            self.do("lease", self.known(sub), want, lease_ms)

    @precondition(anything_leased)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=4))
    def acknowledge(self, picks: list[tuple[int, float, float, str]]) -> None:
        self.do("settle", "acknowledge", picks, None)

    @precondition(anything_leased)
    @rule(pick=st.integers(0, 4))
    def acknowledge_all(self, pick: int) -> None:
        self.do("settle", "acknowledge", [(pick, 0.0, 1.0, "")], None)

    @precondition(anything_leased)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=2), lease_ms=WAITS_MS)
    def extend(self, picks: list[tuple[int, float, float, str]], lease_ms: int) -> None:
        self.do("settle", "extend", picks, lease_ms)

    @precondition(anything_leased)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=2), delay_ms=WAITS_MS | st.none())
    def release(self, picks: list[tuple[int, float, float, str]], delay_ms: int | None) -> None:
        self.do("settle", "release", picks, delay_ms)

    @rule(duration_ms=st.sampled_from([1, 5, 10, 10, 20, 100, 400]))
    def sleep(self, duration_ms: int) -> None:
        assert self.sides is not None
        self.sides.clock.sleep_ms(duration_ms)

    # -- rare events ----------------------------------------------------------------------------

    @rule(
        sub=st.sampled_from(["default", "one", "two"]),
        kind=st.sampled_from(["earliest", "latest", "offset", "time", "none", "none"]),
        value=st.integers(0, 40),
    )
    def subscribe(self, sub: str, kind: str, value: int) -> None:
        if kind != "none":
            self.do("subscribe", sub, kind, value)
        elif sub in self.subs():
            self.do("unsubscribe", sub)

    @precondition(lambda self: self.subs())
    @rule(sub=SUBS, share=SHARES, everything=st.booleans())
    def give_up(self, sub: str, share: float, everything: bool) -> None:
        if everything and share > 0.5:
            self.do("purge")
        else:
            self.do("commit", self.known(sub), share / 2)

    @rule(
        chosen=st.sampled_from(
            [
                {"keep_done_ms": 0},
                {"keep_done_ms": 300},
                {"retention_ms": 600},
                {"retention_ms": 8000},
                {"backoff_ms": 5},
                {"receives_max": 3},
            ]
        )
    )
    def configure(self, chosen: dict[str, Any]) -> None:
        self.do("configure", chosen)

    @rule()
    def reopen(self) -> None:
        assert self.sides is not None
        self.sides.reopen()

    @invariant()
    def everything_holds(self) -> None:
        if self.sides is not None:
            self.sides.check()


class KeyMachine(StoreMachine):
    order = "key"


class StrictMachine(StoreMachine):
    order = "strict"


StoreMachine.TestCase.settings = _RUNS
KeyMachine.TestCase.settings = _RUNS
StrictMachine.TestCase.settings = _RUNS


@pytest.fixture(autouse=True)
def _redis(redis: RedisProcess) -> None:
    """A state machine takes no fixtures."""
    StoreMachine.redis = redis


class TestLooseQueue(StoreMachine.TestCase):
    pass


class TestKeyQueue(KeyMachine.TestCase):
    pass


class TestStrictQueue(StrictMachine.TestCase):
    pass
