"""Check of trajectories against what their policy read and wrote."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.workflows.scripted.policies import Request


def assert_token_exact(trajectories: Sequence[Trajectory], requests: Sequence[Request]) -> None:
    """Checks that each trajectory is a concatenation of what the policy read and wrote, and that each token that the
    policy wrote is trained exactly once.

    requests: all requests of the policy, whose prompts and generations tell them apart.
    """
    remaining = list(requests)
    for trajectory in trajectories:
        for start, end, logprobs in model_runs(trajectory):
            request = next((item for item in remaining if _is_written_by(item, trajectory, start, end)), None)
            assert request is not None, f"tokens {start} to {end} are no generation that is not trained yet"
            np.testing.assert_array_equal(logprobs, request.generation.logprobs)
            remaining.remove(request)
        assert trajectory.loss_mask()[-1], "the trajectory goes on after the last token of the policy"
    assert not remaining, f"{len(remaining)} of {len(requests)} generations are not trained"


def model_runs(trajectory: Trajectory) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields start and end of each run of tokens that the policy wrote, and their logprobs."""
    mask = trajectory.loss_mask()
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    logprobs = iter(
        np.split(trajectory.logprobs, np.cumsum([end - start for start, end in pairwise(edges) if mask[start]]))
    )
    for start, end in pairwise(edges):
        if mask[start]:
            yield start, end, next(logprobs)


def _is_written_by(request: Request, trajectory: Trajectory, start: int, end: int) -> bool:
    tokens = trajectory.tokens
    return np.array_equal(tokens[:start], request.prompt) and np.array_equal(
        tokens[start:end], request.generation.tokens
    )
