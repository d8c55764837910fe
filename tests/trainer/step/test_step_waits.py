"""How often a step makes the host wait for the device does not depend on the number of packs, whatever the loss."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.attention.kernels import SdpaBlock, SdpaKernel
from astraflow.trainer.engines.base import Segment
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepRunner
from tests.algorithms.golden_curves import ALGORITHMS
from tests.trainer.step_gradients import mixed_batch, tiny_model

pytestmark = pytest.mark.long

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2"}
"""Operations whose result, or the shape of it, the host needs."""
INDEXING = {"index", "index_put_", "_index_put_impl_"}
"""Operations that wait where the index is a mask."""


class Waits(TorchDispatchMode):
    """Counts the operations that make the host wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        has_mask = name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        self.count += name in WAITING or has_mask
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def host_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the plan of the CPU's kernel, whose tensors are on the host."""
    original = SdpaKernel.plan

    def plan(
        self: SdpaKernel, segments: Sequence[Segment], device: torch.device, window: int | None = None
    ) -> list[SdpaBlock]:
        with _disable_current_modes():
            return original(self, segments, device, window)

    monkeypatch.setattr(SdpaKernel, "plan", plan)


def waits(algorithm: AlgorithmConfig, *, micro_batch_tokens: int, moments: str) -> tuple[int, int]:
    """Returns the number of packs of a step, and how often it waits."""
    model, options = tiny_model(is_tied=True), OptimizerOptions.parse({"moments_dtype": moments}, where="")
    engine = LocalEngine(
        model,
        EngineSpec(
            optimizer=options,
            critic=options if algorithm.critic is not None else None,
            device=torch.device("cpu"),
            published_dtype=Dtype.FLOAT32,
            needs_reference=True,
        ),
    )
    planner = StepPlanner(
        algorithm, data_ranks=1, micro_batch_tokens=micro_batch_tokens, cost=ForwardCost.of_model(model)
    )
    (share,) = planner.plan(mixed_batch()).shares
    runner = StepRunner(engine, algorithm)
    with Waits() as counted:  # type: ignore[no-untyped-call]
        runner.run(share)
    return len(share.optimizer_batches[0].packs), counted.count


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("gspo", "uint8"),
        ("m2po", "float32"),
        ("whitened_with_penalties", "float32"),
        ("ppo_with_critic", "bfloat16"),
        ("dpo", "float32"),
    ],
)
def test_more_packs_make_a_step_wait_no_more_often(name: str, moments: str) -> None:
    algorithm = AlgorithmConfig.model_validate(ALGORITHMS[name])

    packs, expected = waits(algorithm, micro_batch_tokens=1 << 20, moments=moments)
    more_packs, actual = waits(algorithm, micro_batch_tokens=1, moments=moments)

    assert packs < more_packs
    assert actual == expected
    assert expected > 0
