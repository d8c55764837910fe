"""Advantages against slow, obvious loops."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.base import advantages
from astraflow.algorithms.tokens import RowData
from astraflow.contract.errors import InvalidInput
from tests.algorithms.data import assert_close
from tests.errors import raises_code

Members = list[tuple[float, int, bool]]
"""Reward, group and whether it counts."""

members = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0, -3.0]), st.integers(0, 4), st.booleans()), min_size=1, max_size=30
)


def by_loop(group_members: Members, advantage: Callable[[float, list[float]], float]) -> list[float]:
    """`one(reward, rewards of its group that count)` for each that counts, else 0."""
    return [
        advantage(reward, [r for r, g, counts in group_members if g == group and counts]) if is_counted else 0.0
        for reward, group, is_counted in group_members
    ]


def relative(reward: float, group: list[float]) -> float:
    spread = statistics.stdev(group) if len(group) > 1 else 0.0
    return (reward - statistics.fmean(group)) / (spread + 1e-4)


def centred(reward: float, group: list[float]) -> float:
    return reward - statistics.fmean(group)


def against_others(reward: float, group: list[float]) -> float:
    return reward - (sum(group) - reward) / (len(group) - 1) if len(group) > 1 else 0.0


def by_success_rate(reward: float, group: list[float]) -> float:
    mean = math.fsum(group) / len(group)
    return (reward - mean) / (mean + 1e-6) if mean > 0 else 0.0


GROUP_KINDS: dict[str, Callable[[float, list[float]], float]] = {
    "group_relative": relative,
    "group_centred": centred,
    "leave_one_out": against_others,
    "maxrl": by_success_rate,
}


def row_data(groups: list[int], counted: list[bool], slots: list[int] | None = None) -> RowData:
    return RowData(
        groups=torch.tensor(groups),
        slots=torch.tensor(slots or [0] * len(groups)),
        is_counted=torch.tensor(counted),
        weights=torch.tensor(counted).float(),
        lengths=torch.ones(len(groups), dtype=torch.long),
        is_truncated=torch.zeros(len(groups), dtype=torch.bool),
    )


def tensors(group_members: Members) -> tuple[Tensor, RowData]:
    rewards, groups, counted = zip(*group_members, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), row_data(list(groups), list(counted))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "advantage"), GROUP_KINDS.items())
@given(group_members=members)
def test_group_advantages_match_a_loop(
    kind: str, advantage: Callable[[float, list[float]], float], group_members: Members
) -> None:
    result = advantages.build({"kind": kind})(*tensors(group_members))

    assert_close(result, by_loop(group_members, advantage))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "advantage"), GROUP_KINDS.items())
@given(group_members=members, data=st.data())
def test_per_slot_compares_rows_of_one_slot(
    kind: str, advantage: Callable[[float, list[float]], float], group_members: Members, data: st.DataObject
) -> None:
    slots = data.draw(st.lists(st.integers(0, 2), min_size=len(group_members), max_size=len(group_members)))
    values, rows = tensors(group_members)

    result = advantages.build({"kind": kind, "per_slot": True})(values, replace(rows, slots=torch.tensor(slots)))

    by_role = [
        (reward, 10 * group + slot, counts) for (reward, group, counts), slot in zip(group_members, slots, strict=True)
    ]
    assert_close(result, by_loop(by_role, advantage))


@pytest.mark.long
@given(members)
def test_whitened_advantages_match_a_loop(group_members: Members) -> None:
    counted = [reward for reward, _, counts in group_members if counts]

    result = advantages.build({"kind": "batch_whitened"})(*tensors(group_members))

    expected = [relative(reward, counted) if counts else 0.0 for reward, _, counts in group_members]
    assert_close(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", GROUP_KINDS)
@given(reward=st.floats(-9, 9, width=32), size=st.integers(1, 33))
def test_a_group_of_equal_rewards_has_zero_advantages(dtype: torch.dtype, kind: str, reward: float, size: int) -> None:
    values = torch.full((size,), reward / 3, dtype=dtype)

    assert not advantages.build({"kind": kind})(values, row_data([0] * size, [True] * size)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(correct=st.lists(st.integers(0, 8), min_size=1, max_size=64))
def test_whitening_after_a_comparison_of_groups_leaves_rows_without_signal_at_zero(
    dtype: torch.dtype, correct: list[int]
) -> None:
    """Their sign would make them candidates of M2PO, although they have no gradient."""
    values = torch.tensor([float(index < count) for count in correct for index in range(8)], dtype=dtype)
    rows = row_data([group for group in range(len(correct)) for _ in range(8)], [True] * len(values))

    for kind in ("group_relative", "batch_whitened"):
        values = advantages.build({"kind": kind})(values, rows)

    assert (values == 0).tolist() == [count in (0, 8) for count in correct for _ in range(8)]


def test_an_excluded_member_does_not_affect_the_others() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 55.0])

    for kind in advantages.kinds():
        advantage = advantages.build({"kind": kind, **({"max_tokens": 9000} if kind == "overlong_penalty" else {})})
        masked = advantage(rewards, row_data([0] * 4, [True, True, True, False]))
        absent = advantage(rewards[:3], row_data([0] * 3, [True] * 3))
        torch.testing.assert_close(masked, torch.cat([absent, torch.zeros(1)]))


def test_maxrl_is_zero_where_the_mean_is_not_positive() -> None:
    rewards = torch.tensor([0.0, 0.0, -1.0, 0.5, -1.0, 1.0])

    result = advantages.build({"kind": "maxrl"})(rewards, row_data([0, 0, 1, 1, 2, 2], [True] * 6))

    assert result.tolist() == [0.0] * 6


@pytest.mark.parametrize(("length", "expected"), [(1, 1.0), (80, 1.0), (90, 0.5), (95, 0.25), (100, 0.0), (170, 0.0)])
def test_the_overlong_penalty_grows_over_the_last_stretch(length: int, expected: float) -> None:
    rows = replace(row_data([0], [True]), lengths=torch.tensor([length]))

    result = advantages.build({"kind": "overlong_penalty", "max_tokens": 100, "buffer_tokens": 20})(
        torch.tensor([1.0], dtype=torch.float64), rows
    )

    assert_close(result, [expected])


def test_a_penalty_over_more_than_the_limit_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "buffer_tokens"):
        advantages.build({"kind": "overlong_penalty", "max_tokens": 100})
    whole = advantages.build({"kind": "overlong_penalty", "max_tokens": 100, "buffer_tokens": 100, "penalty": 2.0})
    half = replace(row_data([0], [True]), lengths=torch.tensor([50]))
    assert_close(whole(torch.tensor([1.0], dtype=torch.float64), half), [0.0])


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind", "'group_relative'"):
        advantages.build({"kind": "group_relativ"})
