"""Decoupled PPO (AReaL, arXiv:2505.24298): trust region around a recent policy, weight for the sampling policy."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from astraflow.algorithms.corrections.base import Correction
from astraflow.algorithms.corrections.weights import IcePop, IcePopOptions, Tis, TisOptions
from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import Anchor
from astraflow.algorithms.losses.ppo import ClipOptions, ClippedRatio
from astraflow.runtime.config.setting_permissions import SettableBy


class DecoupledPpoOptions(ClipOptions):
    """Clip range, and bound of the weight."""

    fixed_anchor: ClassVar[Anchor] = "proximal"
    has_own_weight: ClassVar[bool] = True

    weight_cap: float = Field(default=5.0, gt=1)
    """Largest weight exp(l_p - l_b). (AReaL)"""
    weight_mode: Annotated[Literal["truncate", "mask"], SettableBy.AGENT] = "truncate"
    """Larger weights become the cap, or 0. Masked tokens stay in the denominators."""


@losses.register("decoupled_ppo", options=DecoupledPpoOptions)
class DecoupledPpo(ClippedRatio[DecoupledPpoOptions]):
    """PPO relative to the proximal policy, weighted by proximal over behaviour policy.

    Formula: -min(exp(l_p - l_b), cap) min(rA, clip(r, 1 - low, 1 + high)A), r = exp(l - l_p).
    Source: arXiv:2505.24298.
    """

    def own_corrections(self) -> list[tuple[str, Correction]]:
        """Returns the weight."""
        cap = self.options.weight_cap
        if self.options.weight_mode == "truncate":
            return [("decoupled", Tis(TisOptions(cap=cap)))]
        return [("decoupled", IcePop(IcePopOptions(low=0.0, high=cap)))]
