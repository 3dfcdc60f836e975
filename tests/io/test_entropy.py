"""Chance: within its bounds, replayed by a seed, and never one of Kafka's reserved ids."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from hypothesis import given, strategies as st

from mqd.io.entropy import RandomEntropy


def draws(entropy: RandomEntropy) -> list[Any]:
    return [entropy.uuid(), entropy.random(), entropy.below(1000), entropy.uuid()]


def test_a_seed_replays_and_another_does_not() -> None:
    assert draws(RandomEntropy(random.Random(7))) == draws(RandomEntropy(random.Random(7)))
    assert draws(RandomEntropy(random.Random(7))) != draws(RandomEntropy(random.Random(8)))
    assert draws(RandomEntropy()) != draws(RandomEntropy())


class Stuck(random.Random):
    """Draws the same bits always."""

    def __init__(self, bit: int) -> None:
        super().__init__()
        self.bit = bit

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1 if self.bit else 0


def test_ids_are_version_4_and_none_of_the_reserved_ones() -> None:
    for source in (random.Random(1), Stuck(0), Stuck(1)):
        found = RandomEntropy(source).uuid()
        assert found.version == 4
        assert found not in (UUID(int=0), UUID(int=1))


@given(st.integers(1, 2**40), st.integers(0, 2**32))
def test_numbers_are_within_their_bounds(bound: int, seed: int) -> None:
    entropy = RandomEntropy(random.Random(seed))
    assert 0 <= entropy.below(bound) < bound
    assert 0 <= entropy.random() < 1
