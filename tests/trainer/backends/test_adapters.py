"""Backends that train adapters pass the backend suite, and publish, save and restore nothing but the adapters."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.stored import StoredModel
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import Backend, FrozenBase
from astraflow.trainer.backends.fsdp import FsdpBackend
from astraflow.trainer.backends.local import LocalBackend
from astraflow.trainer.engines.adapters import Adapters, LoraOptions
from astraflow.weights.publish.staging_buffers import StagedVersion, tensor_views
from astraflow.weights.tensors import build_layout
from tests import make_torch
from tests.errors import raises_code
from tests.snapshots import snapshot_of
from tests.suites.backend_suite import BackendSuite, assert_same
from tests.trainer.backends.test_fsdp import assert_close, digest
from tests.trainer.backends.test_local import batch
from tests.trainer.plain_critic import ALGORITHM

LORA = {"rank": 4, "alpha": 8}


def with_adapters(kind: str = "local", algorithm: dict[str, Any] | None = None, **options: Any) -> Backend:
    spec = {"kind": kind, "learning_rate": 1e-2, "device": "cpu", "lora": LORA, **options}
    return backends.build(spec, make_torch.TINY, {"max_mismatch": None, **(algorithm or {})}, seed=0)


@pytest.mark.long
class TestLocalAdapters(BackendSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Backend]:
        return with_adapters

    @pytest.fixture
    def batches(self) -> Sequence[Batch]:
        return [batch(step) for step in range(1, 5)]


@pytest.fixture(scope="module")
def pair() -> Iterator[FsdpBackend]:
    """Backend of two ranks; a test leaves it working, with any adapters."""
    backend = with_adapters("fsdp", {"loss": {"kind": "ppo", "kl_coefficient": 0.1}}, ranks=2, rank_timeout_s=60)
    assert isinstance(backend, FsdpBackend)
    yield backend
    backend.close()


def base_of(backend: Backend) -> FrozenBase:
    assert backend.frozen_base is not None
    return backend.frozen_base


def base_root(base: FrozenBase) -> bytes:
    """Returns the root hash of what the backend writes as its base."""
    draft = StagedVersion.private(base.shapes)
    base.write(draft)
    views = tensor_views(draft.specs, draft.buffer.bits)
    tensors = {name: (dtype, shape, views[name]) for name, (dtype, shape) in base.shapes.items()}
    return build_layout(tensors, policy=PolicyId("solver.base"), version=Version(0))[0].root_hash


def test_versions_hold_adapters_and_the_base_has_the_names_of_the_model() -> None:
    backend = with_adapters()
    model = make_torch.model()

    names = list(backend.published_shapes)
    base = base_of(backend)

    assert names[:2] == [f"model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB"]
    assert len(names) == 2 * 2 * 7
    assert backend.published_shapes[names[0]] == (Dtype.BFLOAT16, (4, 32))
    assert base.shapes == {name: (Dtype.BFLOAT16, tuple(w.shape)) for name, w in named_weights(model).items()}
    assert base.scale == 2.0


@pytest.mark.long
def test_the_base_is_the_prepared_model_before_and_after_training() -> None:
    backend = with_adapters()
    expected = make_torch.published(make_torch.model()).manifest.root_hash
    assert base_of(backend).root_hash == base_root(base_of(backend)) == expected

    backend.step(batch())

    assert base_root(base_of(backend)) == expected


@pytest.mark.long
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_the_base_has_neither_masters_nor_gradients(compute_dtype: str) -> None:
    backend = with_adapters(compute_dtype=compute_dtype)
    assert isinstance(backend, LocalBackend)
    engine, adapters = backend._engine, backend._adapters
    assert adapters is not None
    backend.step(batch())

    elements = sum(weight.numel() for weight in adapters.weights().values())
    state = engine.state_tensors()
    assert sum(value.nbytes for name, value in state.items() if name != "updates") == 12 * elements
    assert {value.dtype for value in engine.weights().values()} == {torch.float32}
    for weight in adapters.base_weights().values():
        assert weight.grad is None
        assert str(weight.dtype) == f"torch.{compute_dtype}"


@pytest.mark.long
def test_the_reference_is_the_base() -> None:
    backend = with_adapters(algorithm={"loss": {"kind": "ppo", "kl_coefficient": 0.1}})
    probes = [snapshot_of(backend).probe]

    divergences = [backend.step(batch(step))["kl_reference"] for step in (1, 2, 3)]

    assert divergences[0] == 0
    assert divergences[2] > divergences[1] > 0
    assert snapshot_of(backend).probe != probes[0]


def test_two_ranks_train_the_same_adapters_on_the_same_base(pair: FsdpBackend, tmp_path: Path) -> None:
    single = with_adapters(algorithm={"loss": {"kind": "ppo", "kl_coefficient": 0.1}})
    single.capture().write(tmp_path)
    pair.load(tmp_path)
    assert_same(snapshot_of(pair), snapshot_of(single))
    assert base_of(pair).root_hash == base_root(base_of(pair)) == base_of(single).root_hash

    for step in (1, 2, 3):
        expected, actual = single.step(batch(step)), pair.step(batch(step))
        for name in ("loss", "grad_norm", "kl_reference"):
            assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
        assert actual["flops_per_s"] > 0

    assert_close(snapshot_of(pair), snapshot_of(single), share=0.02)


def test_ranks_begin_with_the_adapters_of_one_process() -> None:
    drawn = []
    for device_seed in (1, 2):
        torch.manual_seed(device_seed)
        adapters = Adapters.add(
            make_torch.model(), LoraOptions(rank=4), published_dtype=Dtype.BFLOAT16, seed=3
        ).weights()
        drawn.append(adapters)
        assert all(bool(weight.any()) == (".lora_A." in name) for name, weight in adapters.items())
    assert all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items())


@pytest.mark.long
def test_what_two_ranks_saved_one_process_restores(pair: FsdpBackend, tmp_path: Path) -> None:
    pair.step(batch(5))
    state = pair.capture()
    state.write(tmp_path)
    single = with_adapters(algorithm={"loss": {"kind": "ppo", "kl_coefficient": 0.1}})

    single.load(tmp_path)

    assert digest(snapshot_of(single)) == digest(snapshot_of(pair))
    elements = sum(int(np.prod(shape)) for _, shape in pair.published_shapes.values())
    assert state.size_bytes == pytest.approx(12 * elements, abs=64)


@pytest.mark.parametrize(
    ("options", "model", "code"),
    [
        ({}, {"seed": 1}, "checkpoint.other_base"),
        ({"weights_dtype": "float32"}, {}, "checkpoint.other_base"),
        ({"lora": {"rank": 2, "alpha": 4}}, {}, "checkpoint.other_adapters"),
        ({"lora": {**LORA, "alpha": 16}}, {}, "checkpoint.other_adapters"),
        ({"lora": {**LORA, "target_modules": ["q_proj"]}}, {}, "checkpoint.other_adapters"),
        ({"lora": None}, {}, "checkpoint.other_adapters"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused(
    tmp_path: Path, options: dict[str, Any], model: dict[str, Any], code: str
) -> None:
    with_adapters().capture().write(tmp_path)
    spec = {"kind": "local", "device": "cpu", "lora": LORA, **options}
    other = backends.build(spec, {**make_torch.TINY, **model}, {}, seed=0)

    with raises_code(InvalidInput, code):
        other.load(tmp_path)


@pytest.mark.long
def test_a_checkpoint_of_a_whole_model_is_refused(tmp_path: Path) -> None:
    with_adapters(lora=None).capture().write(tmp_path)

    with raises_code(InvalidInput, "checkpoint.other_adapters"):
        with_adapters().load(tmp_path)


def test_unknown_target_modules_are_refused_with_the_known_ones() -> None:
    with raises_code(InvalidInput, "trainer.unknown_adapter_targets", "down_proj, gate_proj, k_proj"):
        with_adapters(lora={"target_modules": ["q_proj", "query"]})


def test_adapters_with_a_critic_are_refused() -> None:
    with raises_code(InvalidInput, "trainer.critic_and_adapters"):
        with_adapters(algorithm=dict(ALGORITHM))


def test_the_base_of_a_mixture_of_experts_has_the_names_of_its_checkpoint() -> None:
    model = {**make_torch.TINY, "experts": 4}
    backend = backends.build({"kind": "local", "device": "cpu", "lora": LORA}, model, {}, seed=0)
    base = base_of(backend)

    assert base.shapes.keys() == make_torch.published_weights(models.build(model).architecture()).keys()
    assert base.root_hash == base_root(base)
    assert {name.split(".")[4] for name in backend.published_shapes} == {"q_proj", "k_proj", "v_proj", "o_proj"}

    before = snapshot_of(backend)
    backend.step(batch(1))
    backend.step(batch(2))
    assert digest(snapshot_of(backend)) != digest(before)


@pytest.mark.parametrize("experts", [0, 4])
def test_adapters_of_a_stored_model_are_those_of_the_loaded_one(experts: int) -> None:
    source = models.build({**make_torch.TINY, "experts": experts})
    stored = StoredModel.open(source, source.prepare())
    assert stored.read is not None
    options: Any = {"published_dtype": Dtype.BFLOAT16, "seed": 0}

    loaded = Adapters.add(source.load(source.prepare()), LoraOptions(), **options)
    adapters = Adapters.add(stored.model, LoraOptions(), read=stored.read, **options)

    assert adapters.base_root == loaded.base_root
    assert all(weight.is_meta for weight in adapters.base_weights().values())
    expected = loaded.weights()
    assert adapters.weights().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in adapters.weights().items())


def test_the_simulated_trainer_has_no_adapters() -> None:
    with raises_code(InvalidInput, "config.invalid"):
        backends.build({"kind": "scripted", "lora": {}}, {"kind": "scripted"}, {}, seed=0)


@pytest.mark.long
def test_dropout_acts_in_training_only() -> None:
    backend = with_adapters(lora={**LORA, "dropout": 0.5})
    probe = snapshot_of(backend).probe
    assert snapshot_of(backend).probe == probe

    others = [with_adapters(lora={**LORA, "dropout": share}) for share in (0.0, 0.5)]
    for other in others:
        other.step(batch(1))
        other.step(batch(2))
    plain, dropped = (snapshot_of(other).tensors for other in others)
    assert any((plain[name][2] != dropped[name][2]).any() for name in plain)


def test_a_model_without_linear_layers_in_its_blocks_is_refused() -> None:
    model = models.build(make_torch.TINY).architecture()
    for block in model.get_decoder().layers:
        block.self_attn, block.mlp = torch.nn.Identity(), torch.nn.Identity()
    with raises_code(InvalidInput, "trainer.unknown_adapter_targets"):
        Adapters.add(model, LoraOptions(), published_dtype=Dtype.BFLOAT16, seed=0)
