"""Group rewards that need no server."""

import asyncio
from typing import Any

import pytest

from astraflow.rewards import group_rewards
from astraflow.rewards.base import GroupMember
from tests import make


def scores(spec: dict[str, Any], members: list[GroupMember]) -> list[float]:
    return list(asyncio.run(group_rewards.build(spec).scores(make.prompt(), members)))


def texts(*values: str) -> list[GroupMember]:
    return [GroupMember(text=value, reward=1.0, answer=value[:1]) for value in values]


def rewarded(*rewards: float) -> list[GroupMember]:
    return [GroupMember(text="x" * (index + 1), reward=reward) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (("a b c", "a b c", "a b c"), [0, 0, 0]),
        (("a b c", "d e f", "g h i"), [1, 1, 1]),
        (("a b c", "a b c", "x y z"), [0.5, 0.5, 1]),
        (("A B", "a  b"), [0, 0]),
        (("", ""), [0, 0]),
        (("alone",), [0]),
        (("a b c", "b c d"), [2 / 3, 2 / 3]),
    ],
)
def test_diversity_is_the_mean_distance_from_the_others(members: tuple[str, ...], expected: list[float]) -> None:
    assert scores({"kind": "diversity"}, texts(*members)) == pytest.approx(expected)


def test_diversity_of_answers_and_only_among_good_members() -> None:
    assert scores({"kind": "diversity", "compares": "answers"}, texts("a 1", "a 2", "b 3")) == [0.5, 0.5, 1]
    members = [GroupMember(text="a b", reward=1), GroupMember(text="c d", reward=0)]
    assert scores({"kind": "diversity", "min_reward": 0.5}, members) == [1, 0]


def test_diversity_of_long_texts_is_bounded() -> None:
    assert scores({"kind": "diversity"}, texts("a" * 10_000_000, "b " * 5_000_000)) == [1, 1]


@pytest.mark.parametrize(
    ("options", "rewards", "expected"),
    [
        ({}, (1, 3, 2), [0, 1, 0]),
        ({}, (3, 3, 2), [0.5, 0.5, 0]),
        ({}, (1, 1, 1), [1 / 3] * 3),
        ({"winners": 2}, (1, 3, 2), [0, 1, 1]),
        ({"winners": 2}, (1, 1, 2), [0.5, 0.5, 1]),
        ({"winners": 9}, (1, 2), [1, 1]),
        ({"prefers_short": True}, (3, 3, 2), [1, 0, 0]),
    ],
)
def test_the_best_share_the_places(options: dict[str, Any], rewards: tuple[float, ...], expected: list[float]) -> None:
    assert scores({"kind": "best_of", **options}, rewarded(*rewards)) == pytest.approx(expected)
