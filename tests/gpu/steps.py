"""One training step on a device: gradients before the update, and how much was compiled for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from astraflow.contract.batches import Batch
from astraflow.contract.weights import Dtype
from astraflow.models.causal import cast
from astraflow.trainer.engines.base import ModelRole
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepRunner
from tests.trainer.step_gradients import Case, tiny_model


@dataclass(frozen=True, kw_only=True)
class DeviceStep:
    """Result of a step."""

    gradients: Mapping[str, Tensor]
    """float32, on the CPU."""
    loss: float
    packs: int


class DeviceSteps:
    """Steps of the local engine in bfloat16, without a change of any weight."""

    def __init__(self, device: torch.device, **options: Any) -> None:
        """options: of the engine."""
        self._model = cast(tiny_model(is_tied=True), device=device, dtype=torch.bfloat16)
        self._engine = LocalEngine(
            self._model,
            EngineSpec(
                optimizer=OptimizerOptions(learning_rate=1e-30),
                device=device,
                published_dtype=Dtype.BFLOAT16,
                needs_reference=False,
                **options,
            ),
        )

    def run(self, batch: Batch, *, micro_batch_tokens: int) -> DeviceStep:
        """Runs a step over the batch."""
        case = Case(batch=batch, micro_batch_tokens=micro_batch_tokens)
        planner = StepPlanner(
            case.algorithm,
            data_ranks=1,
            micro_batch_tokens=micro_batch_tokens,
            cost=ForwardCost.of_model(self._model),
        )
        share = planner.plan(batch).shares[0]
        gradients: dict[str, Tensor] = {}
        optimizer = self._engine._optimizers[ModelRole.POLICY]
        norm = MasterOptimizer._norm

        def recording(step_gradients: Mapping[str, Tensor]) -> Tensor:
            gradients.update({name: gradient.cpu().clone() for name, gradient in step_gradients.items()})
            return norm(optimizer, step_gradients)

        optimizer._norm = recording  # type: ignore[assignment, method-assign]
        loss = StepRunner(self._engine, case.algorithm).run(share).loss
        return DeviceStep(gradients=gradients, loss=loss, packs=len(share.optimizer_batches[0].packs))


def compiled_graphs() -> int:
    """Returns the number of graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
