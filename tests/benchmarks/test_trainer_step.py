"""The benchmark of the training step compares two loops that train the same."""

import pytest

from benchmarks.trainer_step.hybrid import loop_of
from benchmarks.trainer_step.loops import BareLoop, LocalLoop, Setting
from benchmarks.trainer_step.rows import SMALL_VOCABULARY, batch_of

pytestmark = pytest.mark.long


def test_both_loops_have_the_same_losses() -> None:
    batch = batch_of([(6, [5, 9]), (3, [14])], SMALL_VOCABULARY)
    setting = Setting(vocabulary=SMALL_VOCABULARY, micro_batch_tokens=40)
    local, bare = LocalLoop(setting), BareLoop(setting)

    losses = [(local.step(batch), bare.step(batch)) for _ in range(3)]

    for mine, other in losses:
        assert mine == pytest.approx(other, abs=1e-5)
    assert losses[-1][0] < losses[0][0]


def test_a_hybrid_has_the_same_losses_as_a_tree_as_rows_and_in_a_bare_loop() -> None:
    batch = batch_of([(300, [5, 9, 8, 7, 3]), (3, [14])], SMALL_VOCABULARY)
    loops = [loop_of(name) for name in ("tree", "rows", "bare")]

    for _ in range(2):
        tree, rows, bare = (loop.step(batch) for loop in loops)
        assert tree == pytest.approx(bare, abs=1e-5)
        assert rows == pytest.approx(bare, abs=1e-5)
