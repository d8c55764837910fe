"""Passes, order and results of a step's run."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.base import ModelRole, Pack, UpdateResult
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.flops import ForwardCost
from astraflow.trainer.shares import Plan
from astraflow.trainer.step_metrics import step_metrics
from astraflow.trainer.steps import StepPlanner, StepResult, StepRunner
from tests.errors import raises_code
from tests.trainer.step_gradients import mixed_batch, tiny_model

COST = ForwardCost(per_token=1000.0, per_pair=10.0, per_target=100.0)


class RecordingEngine(LocalEngine):
    """Records its calls: `s` a policy's pass, `r` a reference's, `l` a learning pass, `L` the last one, `u` an
    update."""

    def __init__(self, *, learning_rate: float = 1e-3, needs_reference: bool = False) -> None:
        super().__init__(
            tiny_model(is_tied=True),
            OptimizerOptions(learning_rate=learning_rate),
            device=torch.device("cpu"),
            published_dtype=Dtype.FLOAT32,
            needs_reference=needs_reference,
        )
        self.calls = ""

    def score(self, pack: Pack, *, role: ModelRole = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        self.calls += {ModelRole.POLICY: "s", ModelRole.REFERENCE: "r"}[role]
        return super().score(pack, role=role, temperature=temperature)

    def learn(
        self, pack: Pack, loss: Callable[[TokenScores], Tensor], *, temperature: float = 1.0, is_last: bool
    ) -> None:
        self.calls += "L" if is_last else "l"
        super().learn(pack, loss, temperature=temperature, is_last=is_last)

    def update(self, *, is_loss_finite: bool) -> UpdateResult:
        self.calls += "u"
        return super().update(is_loss_finite=is_loss_finite)


def run(
    loss: Mapping[str, Any], *, minibatches: int = 1, micro_batch_tokens: int = 1 << 20, **options: Any
) -> tuple[RecordingEngine, Plan, StepResult]:
    algorithm = AlgorithmConfig(loss=dict(loss), minibatches=minibatches, max_mismatch=None)
    engine = RecordingEngine(needs_reference="kl_coefficient" in loss or loss["kind"] == "dpo", **options)
    planner = StepPlanner(algorithm, data_ranks=1, micro_batch_tokens=micro_batch_tokens, cost=COST)
    plan = planner.plan(mixed_batch())
    return engine, plan, StepRunner(engine, algorithm).run(plan.shares[0])


def test_a_loss_without_needs_has_no_pass() -> None:
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


def test_pairs_need_the_reference() -> None:
    engine, _, result = run({"kind": "dpo"})

    assert sorted(engine.calls) == sorted("srLu")
    assert result.passes == 2
    assert result.loss == pytest.approx(0.6931, abs=1e-3)  # log 2: the policy is its own reference


def test_passes_and_training_use_the_same_numbers() -> None:
    _, _, result = run({"kind": "ppo", "anchor": "proximal"})

    assert result.token_means["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert result.token_means["clip_fraction"] == 0


def test_the_second_update_sees_other_weights() -> None:
    _, _, result = run({"kind": "ppo", "anchor": "proximal"}, minibatches=2, learning_rate=1e-2)

    assert result.token_means["ratio_mean"] != pytest.approx(1.0, abs=1e-3)


def test_a_pass_that_no_engine_computes_is_refused() -> None:
    algorithm = AlgorithmConfig(token_advantages=({"kind": "gae"},))
    with raises_code(InvalidInput, "trainer.unsupported_pass"):
        StepRunner(RecordingEngine(), algorithm)


def test_metrics_count_flops_once_for_each_shared_prompt() -> None:
    _, plan, result = run({"kind": "decoupled_ppo"})

    metrics = step_metrics(mixed_batch(), plan, result, duration_s=2.0, peak_flops=1e6)

    packs = [pack for part in plan.shares[0].optimizer_batches for pack in part.packs]
    width = sum(len(pack.input_ids) for pack in packs)
    pairs = sum(
        (segment.end - segment.begin) * (segment.end - segment.begin + 1) / 2
        + (segment.end - segment.begin) * (segment.prefix_end - segment.prefix_begin)
        for pack in packs
        for segment in pack.segments
    )
    targets = sum(len(pack.targets) for pack in packs)
    forward = 1000 * width + 10 * pairs + 100 * targets
    assert metrics["flops_per_s"] == pytest.approx(4 * forward / 2)  # a pass, and three for training
    assert metrics["mfu"] == pytest.approx(metrics["flops_per_s"] / 1e6)
    assert metrics["computed_tokens_per_s"] == width / 2
    assert metrics["tokens_per_s"] == sum(len(row.trajectory.tokens) for row in mixed_batch().rows) / 2
    assert metrics["computed_tokens_per_s"] < metrics["tokens_per_s"]
    assert (metrics["padding_fraction"], metrics["imbalance"], metrics["updates"]) == (0, 1, 1)
    assert {"pass_s", "forward_backward_s", "optimizer_s"} <= metrics.keys()


def test_a_device_without_a_known_peak_has_no_mfu() -> None:
    _, plan, result = run({"kind": "ppo"})

    assert "mfu" not in step_metrics(mixed_batch(), plan, result, duration_s=1.0, peak_flops=None)
