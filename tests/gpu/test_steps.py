"""Gradients of bfloat16 steps match the plain float32 loop, with compiled blocks, recomputed activations and packs."""

from typing import Any

import pytest
import torch

from astraflow.contract.batches import Batch
from benchmarks.trainer_step.rows import batch_of
from tests.gpu.step_speed import peak_bytes
from tests.gpu.steps import DeviceSteps, compiled_graphs
from tests.trainer.step_gradients import VOCABULARY, Case, largest_difference, mixed_batch, reference_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch itself, where the compiler is imported
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # of torch's compiler, which reads it
]

BOUND = 2e-2
"""Largest accepted difference, as a share of the largest gradient: bfloat16 has 8 bits."""
MAX_NEW_GRAPHS = 4
"""Graphs that packs of other widths may compile."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norms computed again": {"recompute": "selective"},
    "all computed again": {"recompute": "full"},
    "compiled": {"compile_blocks": True},
    "compiled, all computed again": {"compile_blocks": True, "recompute": "full"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("micro_batch_tokens", [1 << 20, 64])
def test_the_gradient_is_that_of_the_plain_loop(
    device: torch.device, options: dict[str, Any], micro_batch_tokens: int
) -> None:
    batch = mixed_batch()
    members = [index for index, row in enumerate(batch.rows) if row.trajectory.model_tokens]
    gradients, loss = reference_gradients(Case(), members)

    step = DeviceSteps(device, **options).run(batch, micro_batch_tokens=micro_batch_tokens)

    assert largest_difference(dict(step.gradients), gradients) <= BOUND
    assert step.loss == pytest.approx(loss, rel=BOUND, abs=1e-3)


def test_the_gradient_in_float8_is_near_that_of_the_plain_loop(device: torch.device) -> None:
    batch = mixed_batch()
    members = [index for index, row in enumerate(batch.rows) if row.trajectory.model_tokens]
    gradients, _ = reference_gradients(Case(), members)

    step = DeviceSteps(device, float8=True).run(batch, micro_batch_tokens=64)

    gradient, reference_gradient = (
        torch.cat([part[name].double().flatten() for name in gradients]) for part in (step.gradients, gradients)
    )
    assert 0.95 < float(gradient @ reference_gradient / (gradient.norm() * reference_gradient.norm())) < 0.9999


def test_packs_of_any_width_compile_few_graphs(device: torch.device) -> None:
    steps = DeviceSteps(device, compile_blocks=True)
    steps.run(rows_of([40, 30]), micro_batch_tokens=1 << 20)
    before = compiled_graphs()

    for lengths in ([200, 9], [17], [33, 64, 65], [128] * 3, [300], [5, 6, 7, 8]):
        steps.run(rows_of(lengths), micro_batch_tokens=1 << 20)

    assert before > 0
    assert compiled_graphs() - before <= MAX_NEW_GRAPHS


def test_a_long_pack_needs_no_memory_of_its_width_squared(device: torch.device) -> None:
    width = 65_536 if device.type == "cuda" else 8_192
    batch = rows_of([width // 16 - 8] * 16)
    steps = DeviceSteps(device)
    steps.run(rows_of([16]), micro_batch_tokens=width)
    before = peak_bytes(device)

    whole = steps.run(batch, micro_batch_tokens=width)
    grown = peak_bytes(device) - before

    assert whole.packs == 1
    assert grown <= width**2  # a mask alone has as many bytes
    parts = steps.run(batch, micro_batch_tokens=width // 8)
    assert parts.packs >= 8
    assert largest_difference(dict(parts.gradients), dict(whole.gradients)) <= BOUND


def rows_of(lengths: list[int]) -> Batch:
    """Returns rows with a prompt of 8 tokens and answers of these lengths."""
    return batch_of([(8, [length]) for length in lengths], VOCABULARY)
