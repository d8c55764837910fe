"""Turns a selector's choices into groups."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import FlowId, GroupId
from astraflow.contract.tasks import Json
from astraflow.dataflow.issuing.groups import OpenGroup
from astraflow.dataflow.issuing.selection import Selector
from astraflow.datasets.base import Dataset


class Issuer:
    """The source of a flow's groups. Its state is the data cursor: a resumed run neither skips nor repeats a prompt."""

    def __init__(self, flow: FlowId, dataset: Dataset, selector: Selector, *, group_size: int) -> None:
        self._flow = flow
        self._dataset = dataset
        self._selector = selector
        self._group_size = group_size
        self.issued = 0
        """Groups issued since the run began; the ordinal of the next one."""

    def next_group(self) -> OpenGroup:
        """Issue one group of the prompt that the selector chooses."""
        index = self._selector.select()
        group = OpenGroup(
            id=GroupId(f"{self._flow}:{self.issued}"),
            flow=self._flow,
            prompt=self._dataset.prompt(index),
            index=index,
            size=self._group_size,
        )
        self.issued += 1
        return group

    def observe(self, group: OpenGroup) -> None:
        """Tell the selector how a group came out, before any filter."""
        rewards = tuple(trajectory.reward for episode in group.episodes.values() for trajectory in episode.trajectories)
        self._selector.observe(group.index, rewards)

    def state_dict(self) -> dict[str, Json]:
        """Cursor and selector."""
        return {"issued": self.issued, "selector": self._selector.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.issued = state["issued"]
        self._selector.load_state_dict(state["selector"])
