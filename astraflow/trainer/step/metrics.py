"""Metrics of a training step: rewards, loss, throughput, and where the time went."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from astraflow.contract.batches import Batch, Rows
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import NO_VERSION
from astraflow.trainer.step.runner import StepResult
from astraflow.trainer.step.shares import Plan


def step_metrics(
    batch: Batch, plan: Plan, result: StepResult, *, duration_s: float, peak_flops: float | None
) -> dict[str, float]:
    """Returns the finite metrics of a step in natural units.

    peak_flops: FLOP/s of all devices together; None where unknown, and then there is no `mfu`. Rows count whole in
    `tokens_per_s`, which is the rate of served tokens; `computed_tokens_per_s` counts shared ones once.
    """
    columns = Rows.of(batch.rows).columns
    all_tokens = len(columns.tokens)
    ages = [int(batch.version) - version for version in columns.oldest_versions if version != NO_VERSION]
    facts = plan.facts
    needed_flops = (facts.training_flops if result.updates else 0) + facts.forward_flops * result.passes
    needed_flops += (facts.forward_flops - facts.head_flops) * result.critic_passes  # its own head is negligible
    metrics = {
        "loss": result.loss,
        "reward_mean": _mean(columns.rewards),
        "staleness_mean": _mean(ages),
        "staleness_max": float(max(ages, default=0)),
        "groups": float(len(set(Rows.of(batch.rows).groups))),
        "tokens": float(all_tokens),
        "tokens_mean": len(columns.logprobs) / max(len(columns), 1),
        "truncated_fraction": _mean(columns.is_truncated),
        **_update_metrics(result),
        "tokens_per_s": all_tokens / duration_s,
        "computed_tokens_per_s": facts.width / duration_s,
        "trained_tokens": float(facts.tokens),
        "distinct_tokens": float(facts.distinct),
        "computed_tokens": float(facts.width),
        "flops_per_s": needed_flops / duration_s,
        "padding_fraction": facts.padding / max(facts.width, 1),
        "imbalance": facts.imbalance,
        **result.critic,
        **result.token_means,
        **result.mismatch,
        **result.seconds,
        **_centering_share(result.token_means),
    }
    kept_tokens = (columns.token_columns.get(TokenColumn.SUPPORT, np.empty((0, 1))) >= 0).sum(1)
    if kept_tokens.any():
        metrics["kept_tokens"] = float(kept_tokens[kept_tokens > 0].mean())
    if plan.teacher_s is not None:
        metrics["teacher_s"] = plan.teacher_s
    if peak_flops is not None:
        metrics["mfu"] = needed_flops / duration_s / peak_flops
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _update_metrics(result: StepResult) -> dict[str, float]:
    """Returns the metrics of the optimizer updates; without those of the policy when only the critic was trained."""
    metrics = {
        "updates": float(len(result.updates)),
        "skipped": float(sum(update.is_skipped for update in (*result.updates, *result.critic_updates))),
    }
    if result.updates:
        metrics["grad_norm"] = _mean([update.grad_norm for update in result.updates])
        metrics["learning_rate"] = result.updates[-1].learning_rate
    return metrics


def _centering_share(means: Mapping[str, float]) -> dict[str, float]:
    """Returns the size of the centering term against the policy term; empty without centering, or without a signal."""
    return {"centering_share": means["centering_size"] / size} if (size := means.get("policy_size")) else {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
