"""Advantages and the counts of groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_client.train.advantages import advantages, group_metrics

GROUPS = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


def test_dr_grpo_subtracts_the_mean_of_the_group():
    assert advantages(GROUPS, "dr_grpo") == [[0.75, -0.25, -0.25, -0.25], [0.0, 0.0], [0.0, 0.0], [-0.5, 0.5]]


def test_grpo_divides_by_the_standard_deviation():
    first, *rest = advantages(GROUPS, "grpo")
    assert first == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])
    assert rest == [[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]


def test_reinforce_subtracts_the_mean_of_the_step():
    assert advantages(GROUPS, "reinforce") == [[0.6, -0.4, -0.4, -0.4], [0.6, 0.6], [-0.4, -0.4], [-0.4, 0.6]]
    assert advantages([[1.0, 1.0], [1.0]], "reinforce") == [[0.0, 0.0], [0.0]]


@given(
    st.lists(st.lists(st.floats(-1, 1), max_size=5), max_size=5),
    st.floats(-1, 1),
    st.sampled_from(["dr_grpo", "grpo", "reinforce"]),
)
def test_equal_rewards_are_worth_exactly_nothing_and_the_shape_stays(groups, reward, kind):
    """Exactly: a rounding error as advantage would be sent, and Adam makes a full step of it."""
    assert [len(group) for group in advantages(groups, kind)] == [len(group) for group in groups]
    equal = [[reward] * len(group) for group in groups]
    assert not any(np.concatenate([*advantages(equal, kind), []]))


def test_groups_are_counted_by_their_outcome():
    assert group_metrics([*GROUPS, []]) == {
        "group/mixed": 2,
        "group/all_solved": 1,
        "group/all_failed": 1,
        "group/reward_std": pytest.approx((3**0.5 / 4 + 0.5) / 4),
    }
    assert group_metrics([])["group/mixed"] == 0
