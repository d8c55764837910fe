"""Loss, gradient and metrics of a batch do not depend on its division into micro-batches and ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow import algorithms
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import PolicyOptions
from tests.algorithms.data import assert_close, batch_of, outcome, random_rows

ROWS = 12
SPLITS: dict[str, list[list[list[int]]]] = {
    "one micro-batch for each row": [[[row] for row in range(ROWS)]],
    "two ranks": [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]],
    "two ranks, rows interleaved and out of order": [[[10, 0], [4, 2, 8, 6]], [[11, 1, 3], [9, 5, 7]]],
    "four ranks, one without rows, one with an empty micro-batch": [
        [[0, 1, 2, 3], [4]],
        [[], [5]],
        [[6, 7, 8, 9, 10, 11]],
        [[]],
    ],
}
KL = {"kl_coefficient": 0.1, "kl_estimator": "k3+", "kl_unbiased": True}
ENTROPY = {"entropy_coefficient": 0.01, "entropy_target": 2.0}


def test_algorithms_do_not_communicate_by_themselves() -> None:
    folder = Path(algorithms.__path__[0])
    assert [path for path in folder.rglob("*.py") if "distributed" in path.read_text()] == []


def specs() -> list[dict[str, Any]]:
    """Returns every loss with every aggregation, and every policy loss with every correction."""
    loss_specs: list[dict[str, Any]] = []
    for kind in losses.kinds():
        options = losses.options(kind)
        if "aggregation" not in options.model_fields:
            loss_specs.append({"kind": kind})
            continue
        loss_specs += [{"kind": kind, "aggregation": name} for name in ("token_mean", "sequence_mean")]
        loss_specs.append({"kind": kind, "aggregation": "fixed_length", "fixed_length": 16})
        if issubclass(options, PolicyOptions):
            wide = {"geometric_mask": {"low": 0.8, "high": 1.25}, "opsm": {"delta": 0.01}}
            loss_specs += [
                {"kind": kind, "corrections": ({"kind": name, **wide.get(name, {})},), **KL, **ENTROPY}
                for name in corrections.kinds()
            ]
    return loss_specs


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_any_split_has_the_same_loss_gradient_and_metrics(spec: dict[str, Any]) -> None:
    batch = batch_of(random_rows(torch.Generator().manual_seed(7), rows=ROWS, tokens=6), groups=[0, 0, 1, 1, 2, 2] * 2)
    loss = losses.build(spec)
    whole = outcome(loss, batch)

    for split in SPLITS.values():
        result = outcome(loss, batch, split)
        assert result.loss == pytest.approx(whole.loss, rel=1e-9, abs=1e-9)
        assert_close(result.logprob_grad, whole.logprob_grad)
        assert_close(result.entropy_grad, whole.entropy_grad)
        assert_close(result.value_grad, whole.value_grad)
        assert result.metrics == pytest.approx(whole.metrics, rel=1e-9, abs=1e-9)
    assert whole.value_grad.any() if spec["kind"] == "critic" else whole.logprob_grad.any()
