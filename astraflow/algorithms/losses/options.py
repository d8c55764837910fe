"""Options that losses share. Free of torch, so that a recipe is checked quickly."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from astraflow.algorithms.corrections import corrections
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "fixed_length"]

Anchor: TypeAlias = Literal["behaviour", "proximal", "current"]

KlEstimator: TypeAlias = Literal["k1", "k2", "k3", "k3+"]


class AggregationOptions(Config):
    """Weights of tokens in the mean."""

    aggregation: Annotated[Aggregation, SettableBy.AGENT] = "token_mean"
    """`token_mean`: every token has the same weight (DAPO, arXiv:2503.14476). `sequence_mean`: every trajectory has the
    same weight, shared by its tokens (GRPO, arXiv:2402.03300). `fixed_length`: every token has the weight it would have
    in a trajectory of that length, so long wrong answers are penalized in full (Dr. GRPO, arXiv:2503.20783)."""
    fixed_length: int | None = Field(default=None, ge=1)
    """Tokens; required by the aggregation `fixed_length`, usually the generation limit."""

    @model_validator(mode="after")
    def _check_fixed_length(self) -> "AggregationOptions":
        if self.aggregation == "fixed_length" and self.fixed_length is None:
            raise ValueError("aggregation 'fixed_length' has no length; set fixed_length to a number of tokens")
        if self.aggregation != "fixed_length" and self.fixed_length is not None:
            raise ValueError(
                f"aggregation {self.aggregation!r} ignores fixed_length; remove it, or use aggregation 'fixed_length'"
            )
        return self


class PolicyOptions(AggregationOptions):
    """Options of every policy-gradient loss: corrections, divergence from the initial weights, entropy."""

    fixed_anchor: ClassVar[Anchor] = "behaviour"
    """Anchor of the losses that have no option for it."""
    has_sequence_ratio: ClassVar[bool] = False
    """True when all tokens of a trajectory share one ratio, so factors of single tokens contradict the loss."""
    has_own_weight: ClassVar[bool] = False
    """True when the loss already multiplies by the ratio of proximal to behaviour policy."""

    corrections: Annotated[tuple[dict[str, Any], ...], SettableBy.AGENT] = ()
    """Factors that correct the mismatch of engine and trainer, multiplied; each with `kind` and its options."""
    centering: int = Field(default=0, ge=0, le=TokenColumn.TOP_TOKENS.max_width)
    """Number of most likely tokens that engines record, such as 8, so that the mean of the weighted scores over the
    engine's distribution is subtracted: it is not zero where engine and trainer differ, as with stale, quantized or
    filtered rollouts. 0: not subtracted. (arXiv:2609.20807)"""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the penalty for divergence from the initial weights; with 0 no copy of them is stored."""
    kl_estimator: Annotated[KlEstimator, SettableBy.AGENT] = "k3"
    """`k1`: unbiased value, but its gradient is zero in expectation unless `kl_unbiased` is on. `k2`: half the squared
    log ratio, whose gradient is that of the divergence. `k3`: unbiased value that is never negative. `k3+`: value of
    k3, gradient of k2. (J. Schulman, "Approximating KL divergence"; verl)"""
    kl_unbiased: Annotated[bool, SettableBy.AGENT] = False
    """Multiplies the estimate by the ratio to the recorded logprob, with gradient, so that the gradient is that of the
    divergence also for tokens of older versions. (DeepSeek-V3.2, arXiv:2512.02556)"""
    teacher_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the teacher over its most likely tokens; 0: none. Its gradient is exact: no
    advantage estimates it."""
    teacher_tokens: int = Field(default=8, ge=1, le=TokenColumn.TOP_TOKENS.max_width)
    """Number of the teacher's most likely tokens; all further ones count as one."""
    teacher_mixture: Annotated[float, SettableBy.AGENT] = Field(default=0.0, ge=0, le=1)
    """0: KL(teacher || policy), which covers all answers of the teacher. 1: KL(policy || teacher), which prefers its
    likeliest ones. Between: the generalized Jensen-Shannon divergence with that weight. (GKD, arXiv:2306.13649)"""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    entropy_target: float | None = Field(default=None, gt=0)
    """Nats. The bonus has its full weight at entropy 0, none at this entropy or above, and grows linearly between them;
    None: constant weight. The entropy is that of the sampling policy, estimated by the mean of the recorded logprobs of
    the optimizer batch, so no state outlives a step. TRL's default, 0.2, acts only near collapse."""

    @model_validator(mode="after")
    def _check_policy_options(self) -> "PolicyOptions":
        if self.entropy_target is not None and self.entropy_coefficient == 0:
            raise ValueError("entropy_target has no effect without a bonus; set entropy_coefficient, such as 0.01")
        if self.kl_unbiased and self.kl_coefficient == 0:
            raise ValueError("kl_unbiased has no effect without a penalty; set kl_coefficient, such as 0.001")
        if self.centering and self.has_sequence_ratio:
            raise ValueError("centering is by token, and this loss has one ratio for each trajectory; remove it")
        for spec in self.corrections:
            corrections.check(spec)
        return self

    @property
    def ratio_anchor(self) -> Anchor:
        """Logprobs that the ratio is relative to."""
        anchor: Anchor = getattr(self, "anchor", self.fixed_anchor)
        return anchor


class AnchoredOptions(PolicyOptions):
    """Options of losses whose ratio may be relative to any of the anchors."""

    anchor: Annotated[Anchor, SettableBy.AGENT] = "behaviour"
    """Logprobs that the ratio is relative to. `behaviour`: those recorded at sampling. `proximal`: those of the weights
    at the start of the batch, at the cost of a forward pass. `current`: those of the training pass itself, without
    gradient; the same as `proximal`, without its pass, while a batch is one optimizer step. Corrections that are
    weights need `proximal` or `current`: with `behaviour` the ratio contains the mismatch already."""
