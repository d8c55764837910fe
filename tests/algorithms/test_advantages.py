"""Advantages against slow, obvious loops."""

import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.base import advantages
from astraflow.contract.errors import InvalidInput

Members = list[tuple[float, int, bool]]
"""Reward, group and whether it counts."""

members = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0, -3.0]), st.integers(0, 4), st.booleans()), min_size=1, max_size=30
)


def by_loop(found: Members, one: Callable[[float, list[float]], float]) -> list[float]:
    """`one(reward, rewards of its group that count)` for each that counts, else 0."""
    return [
        one(reward, [r for r, g, counts in found if g == group and counts]) if is_counted else 0.0
        for reward, group, is_counted in found
    ]


def relative(reward: float, group: list[float]) -> float:
    spread = statistics.stdev(group) if len(group) > 1 else 0.0
    return (reward - statistics.fmean(group)) / (spread + 1e-4)


def centred(reward: float, group: list[float]) -> float:
    return reward - statistics.fmean(group)


def against_others(reward: float, group: list[float]) -> float:
    return reward - (sum(group) - reward) / (len(group) - 1) if len(group) > 1 else 0.0


def tensors(found: Members) -> tuple[Tensor, Tensor, Tensor]:
    rewards, groups, counted = zip(*found, strict=True)
    return torch.tensor(rewards), torch.tensor(groups), torch.tensor(counted)


@pytest.mark.parametrize(
    ("kind", "one"), [("group_relative", relative), ("group_centred", centred), ("leave_one_out", against_others)]
)
@given(found=members)
def test_group_advantages_are_those_of_a_loop(
    kind: str, one: Callable[[float, list[float]], float], found: Members
) -> None:
    result = advantages.build({"kind": kind})(*tensors(found))

    torch.testing.assert_close(result, torch.tensor(by_loop(found, one)), atol=1e-4, rtol=1e-4)


@given(members)
def test_whitened_advantages_are_those_of_a_loop(found: Members) -> None:
    counted = [reward for reward, _, counts in found if counts]

    result = advantages.build({"kind": "batch_whitened"})(*tensors(found))

    expected = [relative(reward, counted) if counts else 0.0 for reward, _, counts in found]
    torch.testing.assert_close(result, torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_a_group_of_equal_rewards_carries_no_signal() -> None:
    for kind in ("group_relative", "group_centred", "leave_one_out"):
        result = advantages.build({"kind": kind})(torch.ones(8), torch.zeros(8).long(), torch.ones(8).bool())
        assert not result.any()


def test_an_uncounted_member_changes_nothing_for_the_others() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 55.0]), torch.zeros(4).long()

    for kind in advantages.kinds():
        advantage = advantages.build({"kind": kind})
        masked = advantage(rewards, groups, torch.tensor([True, True, True, False]))
        absent = advantage(rewards[:3], groups[:3], torch.ones(3).bool())
        torch.testing.assert_close(masked, torch.cat([absent, torch.zeros(1)]))


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'group_relative'"):
        advantages.build({"kind": "group_relativ"})
