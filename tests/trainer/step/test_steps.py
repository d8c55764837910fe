"""Passes, order and results of a step's run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.base import Model, ModelRole, Pack, UpdateResult
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.engines.values import critic_options
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.metrics import step_metrics
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepResult, StepRunner
from astraflow.trainer.step.shares import Plan
from tests.errors import raises_code
from tests.trainer.plain_critic import ALGORITHM
from tests.trainer.step_gradients import mixed_batch, tiny_model

COST = ForwardCost(per_token=1000.0, per_pair=10.0, per_target=100.0)


class RecordingEngine(LocalEngine):
    """Records its calls: `s` a policy's pass, `r` a reference's, `v` a critic's, `l` a learning pass, `L` the last one,
    `u` an update; learning and updates of the critic are followed by `c`."""

    def __init__(
        self, *, learning_rate: float = 1e-3, needs_reference: bool = False, critic: OptimizerOptions | None = None
    ) -> None:
        super().__init__(
            tiny_model(is_tied=True),
            EngineSpec(
                optimizer=OptimizerOptions(learning_rate=learning_rate),
                critic=critic,
                device=torch.device("cpu"),
                published_dtype=Dtype.FLOAT32,
                needs_reference=needs_reference,
            ),
        )
        self.calls = ""

    def score(self, pack: Pack, *, role: Model = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        letters: dict[Model, str] = {ModelRole.POLICY: "s", ModelRole.REFERENCE: "r", ModelRole.CRITIC: "v"}
        self.calls += letters[role]
        return super().score(pack, role=role, temperature=temperature)

    def learn(
        self,
        pack: Pack,
        loss: Callable[[TokenScores], Tensor],
        *,
        role: ModelRole = ModelRole.POLICY,
        temperature: float = 1.0,
        is_last: bool,
    ) -> None:
        self.calls += ("L" if is_last else "l") + _SUFFIX[role]
        super().learn(pack, loss, role=role, temperature=temperature, is_last=is_last)

    def update(self, *, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        self.calls += "u" + _SUFFIX[role]
        return super().update(role=role, is_loss_finite=is_loss_finite)


_SUFFIX = {ModelRole.POLICY: "", ModelRole.CRITIC: "c"}


def run(
    loss: Mapping[str, Any], *, minibatches: int = 1, micro_batch_tokens: int = 1 << 20, **options: Any
) -> tuple[RecordingEngine, Plan, StepResult]:
    algorithm = AlgorithmConfig(loss=dict(loss), minibatches=minibatches, max_mismatch=None)
    engine = RecordingEngine(needs_reference="kl_coefficient" in loss or loss["kind"] == "dpo", **options)
    planner = StepPlanner(algorithm, data_ranks=1, micro_batch_tokens=micro_batch_tokens, cost=COST)
    plan = planner.plan(mixed_batch())
    return engine, plan, StepRunner(engine, algorithm).run(plan.shares[0])


def test_a_loss_without_declared_passes_runs_none() -> None:
    engine, _, result = run({"kind": "ppo"}, micro_batch_tokens=80)

    assert engine.calls == "llLu"
    assert result.passes == 0


def test_the_proximal_pass_is_computed_once_before_the_first_update() -> None:
    engine, _, result = run({"kind": "decoupled_ppo"}, minibatches=2)

    assert engine.calls == "ssLuLu"
    assert result.passes == 1


def test_the_current_pass_is_computed_before_each_update() -> None:
    engine, _, result = run({"kind": "m2po"}, minibatches=2)

    assert engine.calls == "sLusLu"
    assert result.passes == pytest.approx(1)


def test_preference_pairs_need_the_reference_pass() -> None:
    engine, _, result = run({"kind": "dpo"})

    assert sorted(engine.calls) == sorted("srLu")
    assert result.passes == 2
    assert result.loss == pytest.approx(0.6931, abs=1e-3)  # log 2: the policy is its own reference


def test_passes_and_training_use_the_same_numbers() -> None:
    _, _, result = run({"kind": "ppo", "anchor": "proximal"})

    assert result.token_means["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert result.token_means["clip_fraction"] == 0


def test_the_second_update_uses_the_updated_weights() -> None:
    _, _, result = run({"kind": "ppo", "anchor": "proximal"}, minibatches=2, learning_rate=1e-2)

    assert result.token_means["ratio_mean"] != pytest.approx(1.0, abs=1e-3)


def test_values_without_a_critic_are_refused() -> None:
    algorithm = AlgorithmConfig(token_advantages=({"kind": "gae"},))
    with raises_code(InvalidInput, "trainer.no_critic"):
        StepRunner(RecordingEngine(), algorithm)


def run_critic(*, version: int = 0, **options: Any) -> tuple[RecordingEngine, Plan, StepResult]:
    """Runs a step of PPO with a critic."""
    critic = {"learning_rate": 1e-2, **options.pop("critic", {})}
    algorithm = AlgorithmConfig.model_validate({**ALGORITHM, "critic": critic, "max_mismatch": None, **options})
    engine = RecordingEngine(critic=critic_options(OptimizerOptions(), algorithm.critic))
    planner = StepPlanner(algorithm, data_ranks=1, micro_batch_tokens=1 << 20, cost=COST)
    plan = planner.plan(replace(mixed_batch(), version=Version(version)))
    return engine, plan, StepRunner(engine, algorithm).run(plan.shares[0])


def test_a_critic_is_updated_in_every_optimizer_batch() -> None:
    engine, _, result = run_critic(minibatches=2)

    assert engine.calls == "vvLuLcucLuLcuc"
    assert (len(result.updates), len(result.critic_updates)) == (2, 2)
    assert {update.learning_rate for update in result.critic_updates} == {1e-2}
    assert result.passes == 0
    assert result.critic_passes == pytest.approx(4)


@pytest.mark.long
def test_only_the_critic_learns_in_its_warm_up() -> None:
    engine, plan, result = run_critic(critic={"warmup_steps": 3}, version=2)
    before = tiny_model(is_tied=True).state_dict()

    assert engine.calls == "vLcuc"
    assert all(torch.equal(weight, before[name]) for name, weight in engine.weights().items())
    metrics = step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)
    assert {"loss", "grad_norm", "learning_rate"}.isdisjoint(metrics)
    assert (metrics["updates"], metrics["skipped"]) == (0, 0)
    facts = plan.facts
    assert metrics["flops_per_s"] == pytest.approx(4 * (facts.forward_flops - 100 * facts.tokens))

    engine, _, _ = run_critic(critic={"warmup_steps": 3}, version=3)
    assert engine.calls == "vLuLcuc"


def test_metrics_describe_the_critic_before_its_updates() -> None:
    _, plan, result = run_critic()

    metrics = step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)

    assert metrics["value_loss"] == pytest.approx(metrics["value_error"] / 2)  # nothing is clipped in the first update
    assert metrics["value_clip_fraction"] == 0
    assert metrics["critic_grad_norm"] > 0
    assert metrics["value_explained_variance"] < 0.5


@pytest.mark.long
def test_a_critic_learns_the_rewards_of_a_batch() -> None:
    algorithm = AlgorithmConfig.model_validate(
        {**ALGORITHM, "critic": {"learning_rate": 3e-3, "loss": {"kind": "critic", "value_clip": None}}}
    )
    engine = RecordingEngine(learning_rate=1e-12, critic=critic_options(OptimizerOptions(), algorithm.critic))
    planner = StepPlanner(algorithm, data_ranks=1, micro_batch_tokens=1 << 20, cost=COST)
    share = planner.plan(mixed_batch()).shares[0]
    runner = StepRunner(engine, algorithm)

    steps = [runner.run(share).critic for _ in range(30)]

    assert steps[-1]["value_loss"] < 0.4 * steps[0]["value_loss"]
    assert steps[-1]["value_explained_variance"] > 0.7


def test_metrics_count_flops_once_for_each_shared_prompt() -> None:
    _, plan, result = run({"kind": "decoupled_ppo"})

    metrics = step_metrics(mixed_batch(), plan, result, duration_s=2.0, peak_flops=1e6)

    packs = [pack for part in plan.shares[0].optimizer_batches for pack in part.packs]
    width = sum(len(pack.input_ids) for pack in packs)
    pairs = sum(int((pack.positions + 1).sum()) for pack in packs)
    targets = sum(len({*zip(pack.predictors.tolist(), pack.targets.tolist(), strict=True)}) for pack in packs)
    forward = 1000 * width + 10 * pairs + 100 * targets
    assert metrics["flops_per_s"] == pytest.approx(4 * forward / 2)  # a pass, and three for training
    assert metrics["mfu"] == pytest.approx(metrics["flops_per_s"] / 1e6)
    assert metrics["computed_tokens_per_s"] == width / 2
    assert metrics["computed_tokens"] == width >= metrics["distinct_tokens"] > 0.98 * width
    assert metrics["tokens_per_s"] == sum(len(row.trajectory.tokens) for row in mixed_batch().rows) / 2
    assert metrics["computed_tokens_per_s"] < metrics["tokens_per_s"]
    assert (metrics["padding_fraction"], metrics["imbalance"], metrics["updates"]) == (0, 1, 1)
    assert metrics["optimizer_s"] > 0
    assert 0 < metrics["attention_s"] + metrics["head_s"] < metrics["pass_s"] + metrics["forward_backward_s"]


def test_the_size_of_kept_sets_is_reported_where_samples_were_filtered() -> None:
    _, plan, result = run({"kind": "ppo"})
    batch = mixed_batch(support=9)
    sizes = [(row.trajectory.token_columns[TokenColumn.SUPPORT] >= 0).sum(1) for row in batch.rows]
    sizes_of_filtered = [size for row in sizes for size in row.tolist() if size]

    metrics = step_metrics(batch, plan, result, duration_s=1.0, peak_flops=None)

    assert metrics["kept_tokens"] == pytest.approx(sum(sizes_of_filtered) / len(sizes_of_filtered))
    assert "kept_tokens" not in step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)


def test_centering_is_reported_as_a_share_of_the_policy_term() -> None:
    _, plan, result = run({"kind": "ppo"})
    means = {**result.token_means, "centering_size": 0.02, "policy_size": 0.4}

    metrics = step_metrics(mixed_batch(), plan, replace(result, token_means=means), duration_s=1.0, peak_flops=None)

    assert metrics["centering_share"] == pytest.approx(0.05)
    assert "centering_share" not in step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)
    assert result.token_means["kl_corrected"] == pytest.approx(0, abs=1e-6)  # the ratio of PPO is the whole weight


def test_a_device_without_a_known_peak_has_no_mfu() -> None:
    _, plan, result = run({"kind": "ppo"})

    assert "mfu" not in step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)
