"""What a target is made of: sizes in words, and the λ21 at which a budget is used up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from over import over
from sparsegroup.names import bytes_of
from sparsegroup.optim.step import GroupCensus, l21_for


class TestBytes:
    @over(
        ("text", "count"),
        [(5, 5), ("5", 5), ("200MB", 200_000_000), ("1.5 GiB", 3 << 29), ("2k", 2000), (".5 kib", 512), ("7 B", 7)],
    )
    def test_sizes(self, text: int | str, count: int) -> None:
        assert bytes_of(text) == count

    @over("text", ["", "MB", "1 potato", "-5", -5, 0, "0.1 B", True, "1e9"])
    def test_what_is_none(self, text: Any) -> None:
        with pytest.raises(ValueError, match=r"a size must be"):
            bytes_of(text)


class TestQuantile:
    """`l21_for` on its own: no more than the budget lives, and no group less than could."""

    @settings(max_examples=200)
    @given(
        critical=st.lists(st.just(0.0) | st.floats(1e-20, 1e6), min_size=1, max_size=30),
        share=st.floats(0, 1),
        weight=st.floats(0.5, 100),
        cost=st.integers(1, 72),
    )
    def test_the_budget_is_used_up(self, critical: list[float], share: float, weight: float, cost: int) -> None:
        values = np.array(critical)
        census = GroupCensus(values, weight, 0, len(values) * weight, cost)
        each, budget = weight * cost, share * len(values) * weight * cost
        l21 = l21_for([census], [float(cost)], budget)
        live, dead = values[values > l21], values[values <= l21]
        if l21 == 0:  # nobody dies, those without any gradient neither
            assert len(values) * each <= budget * (1 + 1e-6)
            return
        assert len(live) * each <= budget * (1 + 1e-6)
        ties = int((dead == dead.max()).sum())
        assert (len(live) + ties) * each > budget

    def test_an_expensive_group_lives_if_it_insists(self) -> None:
        cheap = GroupCensus(np.array([1.0, 2.0, 3.0]), 1.0, 3, 3, 1)
        dear = GroupCensus(np.array([2.5]), 1.0, 1, 1, 10)
        l21 = l21_for([cheap, dear], [1.0, 10.0], 11.0)
        assert 2.0 < l21 < 2.5

    def test_groups_without_any_gradient_die_first_and_together(self) -> None:
        census = GroupCensus(np.array([0.0, 0.0, 1e-9, 0.0]), 1.0, 4, 4, 1)
        assert 0 < l21_for([census], [1.0], 2.0) < 1e-9
        assert l21_for([census], [1.0], 4.0) == 0.0

    def test_nobody_is_there(self) -> None:
        assert l21_for([], [], 0.0) == 0.0
        nobody = GroupCensus(np.empty(0), 0.0, 0, 5, 1)
        assert l21_for([nobody], [1.0], 0.5) == 0.0
        somebody = GroupCensus(np.array([1.0, 2.0]), 1.0, 2, 2, 1)
        assert l21_for([nobody, somebody], [1.0, 1.0], 1.0) == 1.5
