"""Limits of results: what a workflow can produce, and what a trainer can train."""

from dataclasses import dataclass
from typing import Final

from astraflow.contract.rollouts.recording import Mixture

MIN_LOGPROB: Final = -1000.0
"""Lowest logprob of a sampled token. A float32 softmax gives no token less than e^-104 unless it is never sampled; the
marker -9999 of some servers, and the lowest float32 of others, are no logprobs."""

MAX_LOGPROB: Final = 1e-3
"""Highest logprob of a sampled token: engines subtract float32 numbers, whose rounding may leave up to 1e-5 above 0."""

MAX_METRIC: Final = 1e12
"""Largest magnitude of a metric of a trajectory: sums of squares stay finite in float32."""

MAX_ABS_REWARD: Final = 1e9
"""Largest magnitude of a reward and of a reward term: sums and squares of rewards stay far from overflow."""

MAX_TRAJECTORIES: Final = 1024
"""Trajectories of an episode whose workflow states no bound. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Rows that a trainer can train: stated when it attaches. A trainer that states nothing admits any row."""

    vocabulary: int | None = None
    """Rows of the embedding: token ids are below it. None: unknown."""
    tokens: int | None = None
    """Tokens of the longest row. None: unknown."""
    mixture: Mixture | None = None
    """Shape of the mixture of experts. None: unknown, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeBounds:
    """Bounds of what a workflow produces from its options. A bound that it does not know is None."""

    trajectories: int | None = None
    """Trajectories of an episode. Count."""
    tokens: int | None = None
    """Tokens of a trajectory, context included."""
    written: int | None = None
    """Tokens of a trajectory that the policy wrote."""
    context: int | None = None
    """Tokens of context of a trajectory beside the texts of its prompt: of system messages and the chat template."""
