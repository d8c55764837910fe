"""Checks rewards against the range that a flow declares."""

from dataclasses import replace

from astraflow.contract.rollouts.agent_calls import MAX_CALLS
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.trajectories import Episode, Trajectories


def bounded_rewards(episode: Episode, reward_range: tuple[float, float]) -> Episode:
    """Returns the episode if all its rewards are in the range, else a failure at the boundary `reward`."""
    low, high = reward_range
    out_of_range = [reward for reward in Trajectories.of(episode.trajectories).rewards if not low <= reward <= high]
    if not out_of_range:
        return episode
    message = (
        f"cannot use reward {out_of_range[0]:g}: outside the flow's range from {low:g} to {high:g}; "
        "correct the reward, or set the flow's reward_range"
    )
    calls = tuple(replace(call, turn=None) for trajectory in episode.trajectories for call in trajectory.calls)
    failure = Failure(boundary=Boundary.REWARD, message=message)
    return replace(episode, trajectories=(), failure=failure, failed_calls=calls[:MAX_CALLS])
