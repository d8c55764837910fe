"""A divergence of one node excludes that node; a divergence of all of them stops training."""

import pytest

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.errors import InvalidInput
from astraflow.trainer.step.step_limits import EXCLUDED_STEPS, RECENT_STEPS, NodeMismatch
from tests import make
from tests.errors import raises_code
from tests.trainer.step.test_row_check import batch_of

CONFIG = AlgorithmConfig(max_mismatch=0.02, max_mismatch_steps=3)
BATCH = batch_of(make.trajectory(), make.trajectory())
"""Rows of the nodes `n-0` and `n-1`."""


def observe(mismatch: NodeMismatch, *k3: float | None) -> None:
    """Notes a step in which the nodes have these means, over ten tokens each; None: nothing was measured."""
    tokens = [0.0 if value is None else 10.0 for value in k3]
    sums = [0.0 if value is None else 10 * value for value in k3]
    mean = sum(sums) / sum(tokens) if any(tokens) else None
    batch = BATCH if len(k3) == 2 else batch_of(make.trajectory())
    mismatch.observe(batch, (tokens, sums), {} if mean is None else {"mismatch_k3": mean})


def test_a_node_that_differs_is_excluded_while_another_one_matches() -> None:
    mismatch = NodeMismatch(CONFIG)
    for _ in range(2):
        observe(mismatch, 0.001, 4e8)
        assert mismatch.excluded == frozenset()
    observe(mismatch, 0.001, 4e8)
    assert mismatch.excluded == {"n-1"}
    for _ in range(EXCLUDED_STEPS):
        observe(mismatch, 0.001)
    assert mismatch.excluded == frozenset(), "it may have been mended"
    observe(mismatch, 0.001, 4e8)
    assert mismatch.excluded == {"n-1"}, "once is enough now"


def test_training_stops_when_no_node_matches() -> None:
    mismatch = NodeMismatch(CONFIG)
    observe(mismatch, 1.0, 2.0)
    observe(mismatch, 1.0, None)
    with raises_code(InvalidInput, "algorithm.mismatch"):
        observe(mismatch, 1.0, 2.0)


def test_a_node_that_matched_before_shows_that_the_trainer_is_right() -> None:
    """One node may fill whole batches with rows of the trainer's version; those of the others are older."""
    mismatch = NodeMismatch(CONFIG)
    observe(mismatch, 0.001, None)
    for _ in range(10):
        observe(mismatch, None, 1.0)
    assert mismatch.excluded == {"n-1"}


def test_a_node_that_is_gone_shows_nothing() -> None:
    mismatch = NodeMismatch(CONFIG)
    mismatch.observe(BATCH, ([0.0, 10.0], [0.0, 0.0]), {"mismatch_k3": 0.0})
    with raises_code(InvalidInput, "algorithm.mismatch"):
        for _ in range(RECENT_STEPS + 3):
            observe(mismatch, 1.0)


@pytest.mark.parametrize("measured", [(), ([0.0, 0.0], [0.0, 0.0])])
def test_steps_without_a_measurement_change_nothing(measured: tuple[list[float], ...]) -> None:
    mismatch = NodeMismatch(CONFIG)
    for _ in range(5):
        mismatch.observe(BATCH, measured, {})
    assert mismatch.excluded == frozenset()


def test_without_a_bound_nothing_is_excluded() -> None:
    mismatch = NodeMismatch(AlgorithmConfig(max_mismatch=None))
    for _ in range(5):
        observe(mismatch, 0.0, 1e9)
    assert mismatch.excluded == frozenset()
