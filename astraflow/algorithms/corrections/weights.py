"""Importance weights for mismatch between engine and trainer, bounded in three ways: `tis`, `icepop`, `mis`.

rho = exp(log ratio) of a token; its product over a trajectory at sequence level. Log ratios are bounded by 20 before
the exponential.
"""

from pydantic import Field, model_validator
from torch import Tensor

from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.corrections.base import Level, TokenMismatch
from astraflow.algorithms.divergence import bounded_exp
from astraflow.runtime.config.base import Config

_TOKEN_CAP, _SEQUENCE_CAP = 2.0, 5.0


class TisOptions(Config):
    """Options of truncated importance sampling."""

    level: Level = "token"
    """`token`: weight of each token; `sequence`: product over the trajectory, unbiased but of high variance."""
    cap: float | None = Field(default=None, gt=0)
    """Largest weight; None: 2 for tokens (slime, verl, SkyRL), 5 for sequences (SkyRL)."""


@corrections.register("tis", options=TisOptions)
class Tis:
    """Truncated importance sampling.

    Formula: min(rho, cap); at sequence level rho is the product over the trajectory.
    Source: F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025).
    """

    is_weight = True

    def __init__(self, options: TisOptions) -> None:
        self.level: Level = options.level
        default = _TOKEN_CAP if options.level == "token" else _SEQUENCE_CAP
        self.cap: float | None = default if options.cap is None else options.cap

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`."""
        log_ratios = mismatch.log_ratios
        return bounded_exp(log_ratios if self.level == "token" else mismatch.row_sums(log_ratios)).clamp(max=self.cap)


class IcePopOptions(Config):
    """Range of accepted weights."""

    low: float = Field(default=0.5, ge=0)
    """Smallest weight that is not cut."""
    high: float = Field(default=5.0, gt=0)
    """Largest weight that is not cut."""

    @model_validator(mode="after")
    def _check_range(self) -> "IcePopOptions":
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}; exchange them")
        return self


@corrections.register("icepop", options=IcePopOptions)
class IcePop:
    """Importance weight that cuts tokens outside its range.

    Formula: rho inside [low, high], 0 outside.
    Source: Ring team, "Small leak can sink a great ship: boost RL training on MoE with IcePop" (2025);
    arXiv:2510.18855.
    """

    is_weight = True
    level: Level = "token"
    cap: float | None = None

    def __init__(self, options: IcePopOptions) -> None:
        self._options = options

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`."""
        rho = bounded_exp(mismatch.log_ratios)
        return rho.where((rho >= self._options.low) & (rho <= self._options.high), 0.0)


class MisOptions(Config):
    """Options of masked importance sampling."""

    cap: float = Field(default=3.0, gt=0)
    """Trajectories with a larger product of ratios are cut. (TRL)"""


@corrections.register("mis", options=MisOptions)
class Mis:
    """Masked importance sampling of trajectories.

    Formula: product of rho over the trajectory, 0 above the cap.
    Source: J. Liu et al., "When speed kills stability: demystifying RL collapse from the training-inference mismatch"
    (2025).
    """

    is_weight = True
    level: Level = "sequence"
    cap: float | None = None

    def __init__(self, options: MisOptions) -> None:
        self._cap = options.cap

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`."""
        rho = bounded_exp(mismatch.row_sums(mismatch.log_ratios))
        return rho.where(rho <= self._cap, 0.0)
