"""Defects that the comparison of gradients must find."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from astraflow.algorithms import token_advantages
from astraflow.algorithms.tokens import BatchStatistics, RowData, TokenScores
from astraflow.trainer.engines import heads, values
from astraflow.trainer.engines.attention.kernels import SdpaKernel
from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.scoring import check, head
from astraflow.trainer.engines.scoring.base import PackInputs
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.step import runner
from astraflow.trainer.step.shares import OptimizerBatch
from tests.trainer.step.test_step_gradients import BOUND
from tests.trainer.step_gradients import Case, largest_difference, local_step, reference_gradients

pytestmark = pytest.mark.long

Mutate: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def one_more_token_in_the_divisor(patch: pytest.MonkeyPatch) -> None:
    original = runner._statistics

    def mutant(batch: OptimizerBatch, rows: RowData) -> BatchStatistics:
        return replace(original(batch, rows), tokens=original(batch, rows).tokens + 1)

    patch.setattr(runner, "_statistics", mutant)


def answers_do_not_see_their_prompt(patch: pytest.MonkeyPatch) -> None:
    original = SdpaKernel.plan

    def mutant(self: SdpaKernel, segments: Sequence[Segment], device: torch.device, window: int | None = None) -> Any:
        return original(self, [Segment(begin=segment.begin, end=segment.end) for segment in segments], device)

    patch.setattr(SdpaKernel, "plan", mutant)


def answers_see_the_answers_before_them(patch: pytest.MonkeyPatch) -> None:
    original = SdpaKernel.plan

    def mutant(self: SdpaKernel, segments: Sequence[Segment], device: torch.device, window: int | None = None) -> Any:
        return original(self, [Segment(begin=0, end=segments[-1].end)], device)

    patch.setattr(SdpaKernel, "plan", mutant)


def _with_inputs(patch: pytest.MonkeyPatch, change: Callable[[PackInputs], dict[str, Any]]) -> None:
    original = Scorer.inputs

    def mutant(self: Scorer, pack: Pack) -> PackInputs:
        inputs = original(self, pack)
        return replace(inputs, **change(inputs))

    patch.setattr(Scorer, "inputs", mutant)


def positions_count_through_the_pack(patch: pytest.MonkeyPatch) -> None:
    _with_inputs(
        patch,
        lambda inputs: {
            "arguments": {**inputs.arguments, "position_ids": torch.arange(inputs.input_ids.shape[1])[None]}
        },
    )


def tokens_are_predicted_by_themselves(patch: pytest.MonkeyPatch) -> None:
    _with_inputs(patch, lambda inputs: {"predictors": (inputs.predictors + 1).clamp(max=inputs.input_ids.shape[1] - 1)})


def the_last_pack_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = LocalEngine.learn

    def mutant(
        self: LocalEngine, pack: Pack, loss: Callable[[TokenScores], Tensor], *, is_last: bool, **options: Any
    ) -> None:
        original(self, pack, lambda scores: loss(scores) * (not is_last), is_last=is_last, **options)

    patch.setattr(LocalEngine, "learn", mutant)


def the_entropy_has_no_gradient(patch: pytest.MonkeyPatch) -> None:
    original = heads.target_scores

    def mutant(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        logprobs, entropy = original(*arguments, **options)
        return logprobs, entropy.detach()

    patch.setattr(head, "target_scores", mutant)


def the_temperature_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = heads.target_scores
    patch.setattr(
        head, "target_scores", lambda *arguments, **options: original(*arguments, **{**options, "temperature": 1.0})
    )


def values_are_of_the_state_after_the_token(patch: pytest.MonkeyPatch) -> None:
    original = values.ValueHead.__call__

    def mutant(
        self: values.ValueHead, layer: nn.Module, states: Tensor, inputs: PackInputs, temperature: float
    ) -> TokenScores:
        return original(self, layer, states.roll(-1, 0), inputs, temperature)

    patch.setattr(values.ValueHead, "__call__", mutant)


def the_value_of_the_next_token_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = token_advantages.decayed_sums
    patch.setattr(token_advantages, "decayed_sums", lambda deltas, decay: original(deltas, torch.zeros_like(decay)))


MUTANTS: Sequence[Mutate] = (
    one_more_token_in_the_divisor,
    answers_do_not_see_their_prompt,
    answers_see_the_answers_before_them,
    positions_count_through_the_pack,
    tokens_are_predicted_by_themselves,
    the_last_pack_is_forgotten,
    the_entropy_has_no_gradient,
    the_temperature_is_ignored,
    values_are_of_the_state_after_the_token,
    the_value_of_the_next_token_is_forgotten,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_defect_changes_the_gradient(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_TOLERANCE", math.inf)  # which finds some of them at the start
    case = Case(micro_batch_tokens=64, has_critic=True)
    mutate(monkeypatch)

    step = local_step(case)

    monkeypatch.undo()
    assert largest_difference(step.gradients[0], reference_gradients(case, step.members[0])[0]) > 100 * BOUND
