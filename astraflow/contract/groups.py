"""Group of all episodes of one prompt."""

from dataclasses import dataclass

from astraflow.contract.ids import FlowId, GroupId
from astraflow.contract.tasks import Prompt
from astraflow.contract.trajectories import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All episodes of one prompt: the unit of group-relative advantages. It is never split."""

    id: GroupId
    flow: FlowId
    prompt: Prompt
    episodes: tuple[Episode, ...]
