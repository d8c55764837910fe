"""The range of rewards that a flow declares: what is beyond it was not scored by the flow's reward."""

from dataclasses import replace

from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.trajectories import Episode


def bounded_rewards(episode: Episode, reward_range: tuple[float, float]) -> Episode:
    """The same episode when all its rewards are in the range, else a failure at the boundary `reward`."""
    low, high = reward_range
    beyond = [one.reward for one in episode.trajectories if not low <= one.reward <= high]
    if not beyond:
        return episode
    message = (
        f"reward {beyond[0]:g} is beyond the flow's range from {low:g} to {high:g}; "
        "check the reward, or set the flow's reward_range"
    )
    return replace(episode, trajectories=(), failure=Failure(boundary=Boundary.REWARD, message=message))
