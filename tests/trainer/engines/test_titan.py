"""torchtitan's Qwen3 has the gradient of transformers'. Runs where torchtitan is installed
(docs/how-to/trainer-ranks.md)."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.stored import StoredModel
from astraflow.models.titan import hugging_face_names, titan_model
from astraflow.trainer.backends import backends
from astraflow.trainer.engines import titan
from astraflow.trainer.engines.adapters import Adapters
from astraflow.trainer.engines.base import ModelRole, UpdateResult
from astraflow.trainer.engines.fsdp import Sharding
from astraflow.trainer.engines.mesh import RankMesh
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.engines.titan import TitanEngine
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepRunner
from tests import make_torch
from tests.errors import raises_code
from tests.snapshots import snapshot_of
from tests.suites.backend_suite import assert_same
from tests.trainer.backends.test_fsdp import assert_close
from tests.trainer.backends.test_local import batch, local
from tests.trainer.step_gradients import Case, Gradients, largest_difference, reference_gradients, tiny_model

CPU = torch.device("cpu")
BOUND = 1e-5
CASES = {
    "one pack, shared prompts": Case(),
    "each row alone": Case(micro_batch_tokens=1),
    "packs of 64 tokens": Case(micro_batch_tokens=64),
    "untied head": Case(is_tied=False, micro_batch_tokens=160),
    "mean by sequence": Case(aggregation="sequence_mean", micro_batch_tokens=64),
    "two optimizer steps": Case(minibatches=2),
}
KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan, with a placeholder for the only module that needs Triton; the kernels in it are not used."""
    pytest.importorskip("torchtitan")
    if KERNELS not in sys.modules:
        kernels = ModuleType(KERNELS)
        kernels.__getattr__ = _placeholder  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, KERNELS, kernels)


def _placeholder(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_, **__: None


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[RankMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield RankMesh.create(CPU)
    dist.destroy_process_group()


def titan_gradients(case: Case, mesh: RankMesh) -> tuple[list[Gradients], list[list[int]], float]:
    """Returns the gradients of the optimizer steps by Hugging Face name, the rows of each, and the loss."""
    model = tiny_model(is_tied=case.is_tied)
    engine = TitanEngine(
        StoredModel(model=model, read=None),
        EngineSpec(optimizer=OptimizerOptions(learning_rate=1e-30), device=CPU, published_dtype=Dtype.FLOAT32),
        Sharding(mesh=mesh, compute_dtype=torch.float32),
    )
    names = {own: name for name, own in hugging_face_names(engine._trained[ModelRole.POLICY]).items()}
    gradients_by_batch: list[Gradients] = []
    update = engine.update

    def recording(*, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        gradients_by_batch.append(
            {
                names[name]: _whole(parameter.grad)
                for name, parameter in engine._trained[ModelRole.POLICY].named_parameters()
            }
        )
        return update(role=role, is_loss_finite=is_loss_finite)

    engine.update = recording  # type: ignore[method-assign]
    cost = ForwardCost.of_model(model)
    planner = StepPlanner(case.algorithm, data_ranks=1, micro_batch_tokens=case.micro_batch_tokens, cost=cost)
    (share,) = planner.plan(case.batch).shares
    loss = StepRunner(engine, case.algorithm).run(share).loss
    return gradients_by_batch, [part.lengths.nonzero()[:, 0].tolist() for part in share.optimizer_batches], loss


def _whole(gradient: torch.Tensor | None) -> torch.Tensor:
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor().clone()


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore")  # torchtitan's own
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_gradient_is_that_of_transformers(case: Case, mesh: RankMesh) -> None:
    gradients, members, loss = titan_gradients(case, mesh)

    expected = [reference_gradients(case, rows) for rows in members]
    assert len(gradients) == case.minibatches
    for actual, (gradient, _) in zip(gradients, expected, strict=True):
        assert largest_difference(actual, gradient) <= BOUND
    assert loss == pytest.approx(sum(value for _, value in expected) / len(expected), rel=1e-5)


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore")
def test_the_backend_publishes_and_restores_what_others_do(tmp_path: Path) -> None:
    single = local(learning_rate=1e-3)
    single.capture().write(tmp_path)
    spec = {"kind": "titan", "ranks": 1, "device": "cpu", "learning_rate": 1e-3}
    backend = backends.build(spec, make_torch.TINY, {}, seed=0)
    try:
        backend.load(tmp_path)
        assert_same(snapshot_of(backend), snapshot_of(single))
        for step in (1, 2):
            expected, actual = single.step(batch(step)), backend.step(batch(step))
            assert actual["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert_close(snapshot_of(backend), snapshot_of(single), share=0.02)
    finally:
        backend.close()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_computes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    def other_weights(source: Any) -> Any:
        model = titan_model(source)
        torch.nn.init.normal_(model.norm.weight)
        return model

    monkeypatch.setattr("astraflow.trainer.engines.titan.titan_model", other_weights)
    with raises_code(InvalidInput, "trainer.titan_unsupported"):
        titan.scoring_model(tiny_model(is_tied=True), CPU)


def test_without_torchtitan_the_error_has_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["torchtitan", *(name for name in sys.modules if name.startswith("torchtitan."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with raises_code(InvalidInput, "trainer.titan_missing"):
        backends.build({"kind": "titan"}, make_torch.TINY, {}, seed=0)


def test_other_models_are_refused() -> None:
    with raises_code(InvalidInput, "trainer.titan_unsupported", "Qwen3MoeForCausalLM"):
        titan_model(tiny_model(is_tied=True, experts=4))
    scaled = tiny_model(is_tied=True)
    scaled.config.rope_parameters = {**scaled.config.rope_parameters, "rope_type": "yarn"}
    with raises_code(InvalidInput, "trainer.titan_unsupported"):
        titan_model(scaled)


def test_options_that_the_model_does_not_have_are_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "recompute"):
        backends.build({"kind": "titan", "recompute": "full"}, make_torch.TINY, {}, seed=0)
    with raises_code(InvalidInput, "trainer.titan_unsupported", "adapters"):
        TitanEngine(
            StoredModel(model=tiny_model(is_tied=True), read=None),
            EngineSpec(
                optimizer=OptimizerOptions(),
                device=CPU,
                published_dtype=Dtype.FLOAT32,
                adapters=cast("Adapters", object()),
            ),
            cast("Sharding", None),  # refused before it is used
        )
