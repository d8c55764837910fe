"""What a selector hears."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import FlowId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.tasks import Json
from astraflow.contract.trajectories import Boundary, Episode, Failure
from astraflow.dataflow.issuing.issuer import Issuer
from astraflow.dataflow.issuing.selection import Rewards
from astraflow.datasets import datasets
from tests import make


class Listening:
    """A selector that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def select(self) -> int:
        return 3

    def observe(self, index: int, rewards: Rewards) -> None:
        self.heard.append((index, dict(rewards)))

    def advance(self, version: Version) -> None:
        self.heard.append(version)

    def state_dict(self) -> dict[str, Json]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


def issuer(selector: Listening) -> Issuer:
    dataset = datasets.build({"kind": "letters"}, 0)
    return Issuer(FlowId("train"), dataset, ("listening", selector), group_size=3)


def test_a_selector_hears_of_each_version_once_over_restarts_too() -> None:
    first, second = Listening(), Listening()
    before, after = issuer(first), issuer(second)
    for version in (0, 1, 1, 3, 2):
        before.advance(Version(version))
    after.load_state_dict(before.state_dict())
    for version in (3, 4):
        after.advance(Version(version))
    assert (first.heard, second.heard) == ([1, 3], [4])


def test_a_selector_hears_rewards_by_policy_and_nothing_of_members_that_failed() -> None:
    selector = Listening()
    source = issuer(selector)
    group = source.next_group()
    both = (make.trajectory(reward=1.0), make.trajectory(policy="verifier", reward=0.5))
    failure = Failure(boundary=Boundary.REWARD, message="timed out")
    group.episodes = {
        0: Episode(task=TaskId(f"{group.id}/0"), node=NodeId("node"), trajectories=both),
        1: Episode(task=TaskId(f"{group.id}/1"), node=NodeId("node"), trajectories=both[:1], failure=failure),
        2: Episode(task=TaskId(f"{group.id}/2"), node=NodeId("node"), trajectories=both),
    }
    source.observe(group)
    assert selector.heard == [(3, {PolicyId("solver"): (1.0, 1.0), PolicyId("verifier"): (0.5, 0.5)})]
