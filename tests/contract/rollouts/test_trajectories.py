"""Constructing an inconsistent trajectory fails."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Episode, Extremes, Trajectories, Trajectory
from tests import make
from tests.errors import raises_code


def context(length: int) -> Span:
    return Span(author=Author.CONTEXT, length=length)


def written(length: int, version: int) -> Span:
    return Span(author=Author.MODEL, length=length, version=Version(version))


def trajectory(*spans: Span, tokens: int, logprobs: int, reward: float = 1.0) -> Trajectory:
    return Trajectory(
        policy=PolicyId("solver"),
        tokens=np.zeros(tokens, dtype=np.int32),
        logprobs=np.zeros(logprobs, dtype=np.float32),
        spans=spans,
        reward=reward,
    )


def test_the_loss_mask_is_true_for_model_tokens() -> None:
    built_trajectory = trajectory(context(2), written(3, 4), context(1), written(1, 5), tokens=7, logprobs=4)
    assert built_trajectory.loss_mask().tolist() == [False, False, True, True, True, False, True]
    assert built_trajectory.loss_mask().dtype == np.bool_
    assert built_trajectory.model_tokens == 4


def test_the_oldest_version_is_the_minimum_over_the_spans() -> None:
    assert trajectory(written(1, 5), written(1, 3), written(1, 4), tokens=3, logprobs=3).oldest_version == 3
    assert trajectory(context(2), tokens=2, logprobs=0).oldest_version is None
    assert trajectory(tokens=0, logprobs=0).loss_mask().tolist() == []


@pytest.mark.parametrize(
    ("spans", "tokens", "logprobs", "message"),
    [
        ((context(2),), 3, 0, "do not cover its 3 tokens"),
        ((context(4),), 3, 0, "do not cover its 3 tokens"),
        ((written(2, 0),), 2, 1, "2 model tokens but 1 logprobs"),
        ((context(2),), 2, 2, "0 model tokens but 2 logprobs"),
        ((context(0),), 0, 0, "a span has no tokens"),
        ((Span(author=Author.MODEL, length=1),), 1, 1, "model spans carry a version"),
        ((Span(author=Author.CONTEXT, length=1, version=Version(0)),), 1, 0, "others carry none"),
    ],
)
def test_inconsistent_trajectories_are_refused(
    spans: tuple[Span, ...], tokens: int, logprobs: int, message: str
) -> None:
    with raises_code(InvalidInput, "trajectory.invalid", message):
        trajectory(*spans, tokens=tokens, logprobs=logprobs)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with raises_code(InvalidInput, "trajectory.invalid", "reward"):
        make.trajectory(reward=reward)


def test_an_episode_without_a_result_or_a_failure_is_refused() -> None:
    task, node = TaskId("train:0/0"), NodeId("node-1")
    with raises_code(InvalidInput, "episode.empty"):
        Episode(task=task, node=node, trajectories=())
    failure = Failure(boundary=Boundary.ENGINE, message="out of memory")
    assert Episode(task=task, node=node, trajectories=(), failure=failure).failure == failure


TWO_TURNS = trajectory(context(2), written(1, 4), written(2, 5), context(1), written(1, 5), tokens=7, logprobs=4)


def test_a_turn_may_cross_a_version() -> None:
    assert TWO_TURNS.turns == 2
    assert replace(TWO_TURNS, turn_rewards=(0.5, 0.5), turn_discounts=(0.9, 1.0)).turn_rewards == (0.5, 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"turn_rewards": (1.0,)},
        {"turn_rewards": (1.0, float("nan"))},
        {"turn_discounts": (0.5, 0.5, 0.5)},
        {"turn_discounts": (0.5, 1.5)},
        {"parent": -1},
    ],
    ids=str,
)
def test_a_turn_or_parent_that_does_not_exist_is_refused(changes: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "trajectory.invalid"):
        replace(TWO_TURNS, **changes)


def test_parents_precede_their_children() -> None:
    child = replace(make.trajectory(), parent=0, parent_turn=0)
    task, node = TaskId("train:0/0"), NodeId("node-1")
    assert Episode(task=task, node=node, trajectories=(make.trajectory(), child)).trajectories[1].parent == 0
    with raises_code(InvalidInput, "episode.parent_order"):
        Episode(task=task, node=node, trajectories=(child, make.trajectory()))


@pytest.mark.parametrize(("tokens", "logprobs", "spanned"), [(3, 2, 3), (3, 3, 2), (0, 0, 1)])
def test_a_generation_of_unequal_lengths_is_refused(tokens: int, logprobs: int, spanned: int) -> None:
    with raises_code(InvalidInput, "generation.length_mismatch"):
        Generation(
            tokens=np.zeros(tokens, dtype=np.int32),
            logprobs=np.zeros(logprobs, dtype=np.float32),
            spans=(VersionSpan(version=Version(0), length=spanned),),
            finish=Finish.STOP,
        )


@pytest.mark.parametrize(
    ("tokens", "logprobs", "extremes"),
    [
        ([], [], Extremes(0, 0.0, 0.0)),
        ([3, 7, 5], [-0.5, -2.0], Extremes(7, -2.0, -0.5)),
        ([3, -1], [0.5], Extremes(2**32 - 1, 0.5, 0.5)),
        ([0], [-float("inf"), -1.0], Extremes(0, -float("inf"), -1.0)),
    ],
)
def test_extremes_show_negative_tokens_as_large_ones(
    tokens: list[int], logprobs: list[float], extremes: Extremes
) -> None:
    assert Extremes.of(np.array(tokens, np.int32), np.array(logprobs, np.float32), {}) == extremes


def test_a_logprob_that_is_no_number_makes_both_extremes_of_logprobs_nan() -> None:
    extremes = Extremes.of(np.zeros(1, np.int32), np.array([-1.0, np.nan, -2.0] * 9, np.float32), {})
    assert np.isnan([extremes.lowest_logprob, extremes.highest_logprob]).all()


def test_a_part_of_columns_has_extremes_of_its_own() -> None:
    first, second = (
        replace(trajectory(context(2), tokens=2, logprobs=0), tokens=np.full(2, id_, np.int32)) for id_ in (1, 9)
    )
    both = Trajectories.of([first, second])
    assert [both.extremes.largest_token, both[:1].extremes.largest_token, both[1:].extremes.largest_token] == [9, 1, 9]
