"""Rejection of whole trajectories whose sampling policy differs too much: `geometric_mask`, `opsm`."""

from pydantic import Field
from torch import Tensor

from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.corrections.base import Level, TokenMismatch
from astraflow.algorithms.divergence import bounded_exp
from astraflow.runtime.config.base import Config


class GeometricMaskOptions(Config):
    """Range of accepted geometric means of the ratio of trainer to engine."""

    low: float = Field(default=0.99, gt=0, lt=1)
    """Smallest mean that is not cut."""
    high: float = Field(default=1.01, gt=1)
    """Largest mean that is not cut."""


@corrections.register("geometric_mask", options=GeometricMaskOptions)
class GeometricMask:
    """Rejects trajectories by their geometric mean, which does not grow with the length, unlike the product.

    Formula: 1 where exp(mean of log rho over the trajectory) is inside [low, high], else 0.
    Source: SkyRL, `geometric` off-policy mask; J. Liu et
    al., "When speed kills stability" (2025).
    """

    is_weight = False
    level: Level = "sequence"
    cap: float | None = None

    def __init__(self, options: GeometricMaskOptions) -> None:
        self._options = options

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`."""
        mean = bounded_exp(mismatch.row_means(mismatch.log_ratios))
        return ((mean >= self._options.low) & (mean <= self._options.high)).to(mean.dtype)


class OpsmOptions(Config):
    """Options of off-policy sequence masking."""

    delta: float = Field(default=0.5, gt=0)
    """Largest mean of behaviour minus current logprob. Nats per token. (0.5: TRL; slime, relative to the trainer's own
    logprobs, 1e-4)"""


@corrections.register("opsm", options=OpsmOptions)
class Opsm:
    """Off-policy sequence masking: rejects bad trajectories that the policy has left behind.

    Formula: 0 for A < 0 and mean of l_b - l over the trajectory > delta, else 1.
    Source: DeepSeek-V3.2, arXiv:2512.02556, equation 9, where the old policy is the recorded one, so that mismatch and
    age count.
    """

    is_weight = False
    level: Level = "sequence"
    cap: float | None = None

    def __init__(self, options: OpsmOptions) -> None:
        self._delta = options.delta

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`."""
        is_far = -mismatch.row_means(mismatch.current_log_ratios) > self._delta
        return (~(is_far & (mismatch.advantages < 0))).to(mismatch.log_ratios.dtype)
