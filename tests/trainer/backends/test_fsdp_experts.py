"""Two ranks train a mixture of experts, shard it by expert, and publish what one process publishes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from astraflow.trainer.model_preparation import prepare_model
from astraflow.trainer.ranks import launch
from tests import make_torch
from tests.fakes.forking import ForkingProgram
from tests.snapshots import Snapshot, snapshot_of
from tests.suites.backend_suite import assert_same
from tests.trainer.backends.test_fsdp import LEARNING_RATE, fsdp
from tests.trainer.backends.test_local import batch, local

pytestmark = pytest.mark.long


def assert_same_but_for_rounding(first: Snapshot, second: Snapshot) -> None:
    """Asserts that few elements differ, and by less than a hundredth of a step: Muon's iterations amplify rounding, so
    small elements differ by more than one unit in the last place."""
    assert first.tensors.keys() == second.tensors.keys()
    for name in first.tensors:
        actual, expected = (
            (snapshot.tensors[name][2].astype(np.uint32) << 16).view(np.float32) for snapshot in (first, second)
        )
        np.testing.assert_allclose(actual, expected, rtol=2**-7, atol=LEARNING_RATE / 100, err_msg=name)
        assert (actual != expected).mean() <= 0.02, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_ranks_train_and_publish_experts_as_one_process_does(
    optimizer: str, tmp_path: Path, rank_python: ForkingProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "RANK_COMMAND", (*rank_python.command, *launch.RANK_COMMAND[1:]))
    moe = {**make_torch.TINY, "experts": 5}
    options: dict[str, Any] = {"learning_rate": LEARNING_RATE, "optimizer": optimizer}
    single = local(model=moe, **options)
    single.capture().write(tmp_path)
    pair = fsdp(moe, algorithm={}, ranks=2, **options)
    try:
        pair.load(tmp_path)
        assert_same(snapshot_of(pair), snapshot_of(single))
        for step in (1, 2):
            expected, actual = single.step(batch(step)), pair.step(batch(step))
            assert actual["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        assert_same_but_for_rounding(snapshot_of(pair), snapshot_of(single))
    finally:
        pair.close()
    (file,) = prepare_model(moe).glob("*.safetensors")
    with safe_open(file, framework="np") as stored:
        assert set(pair.published_shapes) == set(stored.keys())
