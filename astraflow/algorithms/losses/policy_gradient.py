"""Base of all policy-gradient losses: objective x corrections x weights, minus divergence, plus entropy.

A new loss is an options class and one method, `objective`; see `sapo.py`. Formulas use l for the current logprob of a
token, l_b for the one recorded at sampling, l_p for the one at the start of the batch, A for the advantage.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from astraflow.algorithms.centering import score_drift
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.corrections.base import Correction, TokenMismatch
from astraflow.algorithms.distillation import teacher_gap
from astraflow.algorithms.divergence import bounded_exp, corrected_divergence, kl
from astraflow.algorithms.losses.base import MicroBatchLoss, token_weights
from astraflow.algorithms.losses.options import PolicyOptions
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, TokenData, TokenScores

Options = TypeVar("Options", bound=PolicyOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """Tokens of one micro-batch as an objective reads them; the first two with gradient. All are `[tokens]`."""

    logprobs: Tensor
    log_ratio: Tensor
    """Current minus anchor logprobs, not bounded."""
    behaviour_logprobs: Tensor
    """The current ones, without gradient, where none was recorded."""
    advantages: Tensor
    mismatch: TokenMismatch

    @property
    def ratio(self) -> Tensor:
        """Policy ratio to the anchor."""
        return bounded_exp(self.log_ratio)

    @property
    def behaviour_log_ratio(self) -> Tensor:
        """Current minus behaviour logprobs, with gradient."""
        return self.logprobs - self.behaviour_logprobs

    @property
    def behaviour_ratio(self) -> Tensor:
        """Policy ratio to the behaviour policy."""
        return bounded_exp(self.behaviour_log_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Result of an objective. All are `[tokens]`."""

    gain: Tensor
    """To be maximized, with gradient."""
    is_clipped: Tensor
    """bool: the token is outside the trust region."""
    penalty: Tensor | None = None
    """To be minimized, with gradient, for all tokens that have a recorded logprob; no correction applies to it."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Further metrics of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """Result of `prepare`."""

    entropy_coefficient: float | Tensor
    objective: Any
    """Result of `prepare_objective`."""


class PolicyGradient(ABC, Generic[Options]):
    """Loss of which subclasses define the objective.

    Tokens whose recorded logprob is not a finite number are dropped: they have no gradient, stay in the denominators,
    and are counted by the metric `missing_logprobs`.
    """

    objective_needs: frozenset[Pass] = frozenset()
    """Passes that `objective` and `prepare_objective` read, beyond those of the options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._corrections = [(str(spec["kind"]), corrections.build(spec)) for spec in options.corrections]
        self._corrections += self.own_corrections()

    def own_corrections(self) -> list[tuple[str, Correction]]:
        """Returns corrections that are part of the loss, by name."""
        return []

    @abstractmethod
    def objective(self, tokens: PolicyTokens, state: Any) -> Objective:
        """Returns the objective of each token. state: result of `prepare_objective`."""

    def prepare_objective(self, tokens: TokenData, batch: BatchStatistics, ranks: Ranks) -> Any:
        """Computes what the objective needs of the whole optimizer batch; collective."""
        return None

    @property
    def needs(self) -> frozenset[Pass]:
        """Passes of the objective, the anchor and the divergence penalty."""
        needs = set(self.objective_needs)
        if self.options.ratio_anchor == "proximal":
            needs.add(Pass.PROXIMAL)
        if self.options.kl_coefficient > 0:
            needs.add(Pass.REFERENCE)
        if self.options.teacher_coefficient > 0:
            needs.add(Pass.TEACHER)
        return frozenset(needs)

    def prepare(self, tokens: TokenData, batch: BatchStatistics, ranks: Ranks) -> PolicyState:
        """Computes the state of the objective and the weight of the entropy bonus."""
        objective = self.prepare_objective(tokens, batch, ranks)
        return PolicyState(entropy_coefficient=self._entropy_coefficient(tokens, ranks), objective=objective)

    def __call__(
        self, scores: TokenScores, tokens: TokenData, batch: BatchStatistics, state: PolicyState
    ) -> MicroBatchLoss:
        policy_tokens = self._policy_tokens(scores.logprobs, tokens, batch)
        is_valid = policy_tokens.mismatch.is_valid
        result = self.objective(policy_tokens, state.objective)
        factors = [(name, correction, correction(policy_tokens.mismatch)) for name, correction in self._corrections]
        gain = result.gain
        for _, _, factor in factors:
            gain = gain * factor
        if result.penalty is not None:
            gain = gain - result.penalty
        if self.options.entropy_coefficient > 0:
            gain = gain + state.entropy_coefficient * scores.entropy
        metrics = {**_ratio_metrics(policy_tokens, result), **_correction_metrics(factors), **result.metrics}
        factors_of_rows = [factor for _, correction, factor in factors if correction.level == "sequence"]
        score_weights = self._score_weights(policy_tokens, factors_of_rows, state)
        metrics["kl_corrected"] = corrected_divergence(policy_tokens.mismatch.current_log_ratios, score_weights)
        if self.options.centering:
            drift = score_drift(scores, tokens, partial(self._weights, policy_tokens, factors_of_rows, state))
            gain = gain - drift.gain
            metrics |= {
                "head_mass": drift.head_mass,
                "outside_head": drift.is_outside.to(gain.dtype),
                "centering_size": drift.size,
                "policy_size": score_weights * tokens.advantages.abs(),
            }
        if self.options.kl_coefficient > 0:
            divergence = self._divergence(policy_tokens, tokens)
            gain = gain - self.options.kl_coefficient * divergence
            metrics["kl_reference"] = divergence
        if self.options.teacher_coefficient > 0:
            gap = teacher_gap(scores, tokens, mixture=self.options.teacher_mixture)
            gain = gain - self.options.teacher_coefficient * gap.divergence
            metrics |= {"kl_teacher": gap.divergence, "teacher_head_mass": gap.head_mass}
        if self.options.entropy_target is not None:
            metrics["entropy_coefficient"] = torch.as_tensor(state.entropy_coefficient).to(gain).expand_as(gain)
        weights = token_weights(tokens, batch, self.options, dtype=gain.dtype)
        sums = {name: values.detach().where(is_valid, 0.0).sum() for name, values in metrics.items()}
        sums["missing_logprobs"] = (~is_valid).sum()
        return MicroBatchLoss(loss=-(weights * gain.where(is_valid, 0.0)).sum(), metric_sums=sums)

    def _policy_tokens(self, logprobs: Tensor, tokens: TokenData, batch: BatchStatistics) -> PolicyTokens:
        current = logprobs.detach()
        is_valid = tokens.behaviour_logprobs.isfinite()
        # Replaced before any arithmetic: the gradient of a product with 0 would still be NaN.
        behaviour = tokens.behaviour_logprobs.where(is_valid, current)
        anchor = self.options.ratio_anchor
        proximal = tokens.result(Pass.PROXIMAL) if anchor == "proximal" else current
        mismatch = TokenMismatch(
            log_ratios=(proximal - behaviour).where(is_valid, 0.0),
            current_log_ratios=current - behaviour,
            advantages=tokens.advantages,
            is_valid=is_valid,
            row_indices=tokens.row_indices,
            rows=len(batch.lengths),
        )
        return PolicyTokens(
            logprobs=logprobs,
            log_ratio=logprobs - (behaviour if anchor == "behaviour" else proximal),
            behaviour_logprobs=behaviour,
            advantages=tokens.advantages,
            mismatch=mismatch,
        )

    def _score_weights(self, tokens: PolicyTokens, row_factors: list[Tensor], state: PolicyState) -> Tensor:
        """Returns the weight of each sampled token's score beside its advantage, `[tokens]`; where that is 0, the
        weight that an advantage of 1 would have."""
        advantages = tokens.advantages.where(tokens.advantages != 0, 1.0)
        sampled = [logprobs.detach()[:, None] for logprobs in (tokens.logprobs, tokens.behaviour_logprobs)]
        factors = self._weights(replace(tokens, advantages=advantages), row_factors, state, *sampled)
        return (factors[:, 0] / advantages).clamp(min=0)

    def _weights(
        self, tokens: PolicyTokens, row_factors: list[Tensor], state: PolicyState, trainer: Tensor, engine: Tensor
    ) -> Tensor:
        """Returns the factor of the score of each candidate, `[tokens, candidates]`: the gradient of its gain.

        row_factors: factors that the sampled trajectories have as a whole. trainer, engine: logprobs of candidates. The
        proximal policy counts as the current one, which it is in the first optimizer step of a batch.
        """

        def of_candidates(values: Tensor) -> Tensor:
            return values[:, None].expand_as(trainer).flatten()

        with torch.enable_grad():
            logprobs = trainer.flatten().requires_grad_()
            current, behaviour = logprobs.detach(), engine.flatten()
            is_relative = self.options.ratio_anchor == "behaviour"
            mismatch = TokenMismatch(
                log_ratios=current - behaviour,
                current_log_ratios=current - behaviour,
                advantages=of_candidates(tokens.advantages),
                is_valid=torch.ones_like(current, dtype=torch.bool),
                row_indices=of_candidates(tokens.mismatch.row_indices),
                rows=tokens.mismatch.rows,
            )
            candidates = PolicyTokens(
                logprobs=logprobs,
                log_ratio=logprobs - (behaviour if is_relative else current),
                behaviour_logprobs=behaviour,
                advantages=mismatch.advantages,
                mismatch=mismatch,
            )
            gain = self.objective(candidates, state.objective).gain
            for _, correction in self._corrections:
                gain = gain * correction(mismatch) if correction.level == "token" else gain
            if not gain.requires_grad:  # such as a loss that is a penalty alone
                return torch.zeros_like(trainer)
            (factors,) = torch.autograd.grad(gain.sum(), logprobs)
        for factor in row_factors:
            factors = factors * of_candidates(factor)
        return factors.view_as(trainer)

    def _divergence(self, policy_tokens: PolicyTokens, tokens: TokenData) -> Tensor:
        reference = tokens.result(Pass.REFERENCE)
        divergence = kl(policy_tokens.logprobs, reference, estimator=self.options.kl_estimator)
        # The tokens are samples of the behaviour policy, whatever the anchor of the objective.
        return policy_tokens.behaviour_ratio * divergence if self.options.kl_unbiased else divergence

    def _entropy_coefficient(self, tokens: TokenData, ranks: Ranks) -> float | Tensor:
        options = self.options
        if options.entropy_target is None:
            return options.entropy_coefficient
        logprobs = tokens.behaviour_logprobs.double()
        is_valid = logprobs.isfinite()
        total, count = ranks.sum(torch.stack([logprobs.where(is_valid, 0.0).sum(), is_valid.sum().double()]))
        entropy = -total / count.clamp(min=1)
        shortfall: Tensor = (1 - entropy / options.entropy_target).clamp(0, 1)
        return shortfall.to(tokens.behaviour_logprobs.dtype) * options.entropy_coefficient


def _ratio_metrics(tokens: PolicyTokens, result: Objective) -> dict[str, Tensor]:
    log_ratio = tokens.mismatch.current_log_ratios
    return {
        "clip_fraction": result.is_clipped.to(log_ratio.dtype),
        "ratio_mean": tokens.ratio,
        "kl_behaviour": bounded_exp(log_ratio) - 1 - log_ratio,
    }


def _correction_metrics(factors: list[tuple[str, Correction, Tensor]]) -> dict[str, Tensor]:
    """Returns for each correction the share of tokens that it cuts, and the mean of its factors."""
    metrics: dict[str, Tensor] = {}
    for name, correction, factor in factors:
        is_cut = factor == 0
        if correction.cap is not None:
            is_cut = is_cut | (factor >= correction.cap)
        metrics |= {f"{name}_cut": is_cut.to(factor.dtype), f"{name}_mean": factor}
    return metrics
