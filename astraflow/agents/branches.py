"""Trajectories of token trees: one for each leaf, in which each sampled token is trained once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from astraflow.agents.traces import Reply, TokenTree
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.agent_calls import MAX_CALLS, AgentCall
from astraflow.contract.rollouts.spans import POLICY_SPEAKER, Ending
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.rewards.base import Score
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder

CallRecord: TypeAlias = tuple[AgentCall, str | None]
"""A recorded call, and the id of its reply; None when it got none."""
Scores: TypeAlias = float | Score | Mapping[PolicyId, float | Score]
"""Score of a session: of all its policies, or of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Trajectory that trains a reply, and its turn there."""

    trajectory: int
    turn: int


def build_trajectories(
    trees: Sequence[TokenTree],
    scores: Scores,
    *,
    calls: Sequence[CallRecord],
    roles: Mapping[PolicyId, str],
    ending: Ending | None,
    keeps_superseded: bool,
    metrics: Mapping[str, float],
) -> tuple[Trajectory, ...]:
    """Returns a trajectory of each leaf, in order of commit.

    A reply is trained in the first trajectory that contains it; the others have it as context. ending: limit of the
    session that was reached, for the last trajectory. metrics: of the session, for its first trajectory.
    """
    leaves = [(leaf, tree) for tree in trees for leaf in tree.leaves()]
    superseded = [] if keeps_superseded else [leaf for leaf, tree in leaves if tree.is_superseded(leaf)]
    remaining = sorted((pair for pair in leaves if pair[0] not in superseded), key=lambda pair: pair[0].committed)
    places: dict[str, _Place] = {}
    trajectories: list[Trajectory] = []
    for index, (leaf, tree) in enumerate(remaining):
        policy = tree.policy
        limit = leaf.ending or (ending if index == len(remaining) - 1 else None)
        trajectory = _trajectory(
            policy, leaf, places, index=index, score=scores[policy] if isinstance(scores, Mapping) else scores
        )
        trajectories.append(
            replace(
                trajectory,
                role=roles.get(policy, str(policy)),
                ending=limit or Ending.DONE,
                is_truncated=trajectory.is_truncated or limit is not None,
            )
        )
    if trajectories:
        of_session = {**metrics, "branches": float(len(remaining)), "superseded_replies": float(len(superseded))}
        trajectories[0] = replace(trajectories[0], metrics={**trajectories[0].metrics, **of_session})
    return _with_calls(trajectories, calls, places)


def _trajectory(
    policy: PolicyId, leaf: Reply, places: dict[str, _Place], *, index: int, score: float | Score
) -> Trajectory:
    """Returns the trajectory of a leaf; adds the places of the replies that it trains."""
    builder = TrajectoryBuilder(policy)
    branching: _Place | None = None
    turns = 0
    follows_own = False
    for reply in leaf.path:
        builder.add_context(reply.bridge, speaker=reply.speaker)
        shared = places.get(reply.id)
        if shared is not None:
            branching = shared
            builder.add_context(reply.generation.tokens, speaker=POLICY_SPEAKER)
            continue
        turns += not (follows_own and not len(reply.bridge))  # without context between them, two replies are one turn
        follows_own = True
        places[reply.id] = _Place(trajectory=index, turn=turns - 1)
        builder.add_generation(reply.generation)
    return builder.build(
        score,
        parent=None if branching is None else branching.trajectory,
        parent_turn=None if branching is None else branching.turn,
        metrics={"turns": float(turns)},
    )


def _with_calls(
    trajectories: Sequence[Trajectory], calls: Sequence[CallRecord], places: Mapping[str, _Place]
) -> tuple[Trajectory, ...]:
    """Returns the trajectories with the recorded calls of their turns; the first has those that became no turn."""
    attached: list[list[AgentCall]] = [[] for _ in trajectories]
    for call, reply_id in calls if trajectories else ():
        position = places.get(reply_id or "")
        own = attached[0 if position is None else position.trajectory]
        if len(own) < MAX_CALLS:
            own.append(replace(call, turn=None if position is None else position.turn))
    pairs = zip(trajectories, attached, strict=True)
    return tuple(replace(trajectory, calls=tuple(own)) for trajectory, own in pairs)
