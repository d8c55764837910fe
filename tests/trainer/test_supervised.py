"""A trainer learns the answers of a dataset that dataflow serves, without any node."""

from pathlib import Path

import pytest

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import PolicyId, Version
from astraflow.dataflow.config import FlowConfig
from tests import make_torch
from tests.dataflow.running import config, running
from tests.trainer.backends.test_local import local

pytestmark = pytest.mark.long

STEPS = 40


@pytest.mark.anyio
async def test_the_likelihood_of_the_answers_rises(tmp_path: Path) -> None:
    backend = local({"loss": {"kind": "sft"}}, learning_rate=1e-2)
    flow = FlowConfig(
        dataset={"kind": "letters", "operation": "reverse", "length": 2, "alphabet": "ab"},
        workflow={"kind": "dataset_answers"},
        group_size=1,
    )
    run = config(batch_groups=8).model_copy(
        update={"flows": {"train": flow}, "models": {"solver": dict(make_torch.TINY)}}
    )
    nll = []
    async with running(tmp_path, run) as service:
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        for step in range(STEPS):
            batch = await trainer.pull_batch(version=Version(step), wait_s=5.0)
            assert batch is not None
            metrics = backend.step(batch)
            nll.append(metrics["nll"])
            report = StepReport(
                batch=batch.id,
                policy=PolicyId("solver"),
                version=Version(step + 1),
                wait_s=0.0,
                compute_s=1.0,
                publish_s=0.0,
                metrics=metrics,
            )
            await trainer.report_step(report)
        (stream,) = (await service.control.report()).streams

    assert sum(nll[-5:]) < sum(nll[:5]) / 4
    assert stream.training.metrics["nll"] == pytest.approx(nll[-1])
    assert "mismatch_k3" not in stream.training.metrics  # recorded logprobs mean nothing
