"""The simulated trainer passes the backend suite, and changes weights as training does."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import Backend
from astraflow.trainer.backends.scripted import bfloat16_bits
from tests import make
from tests.errors import raises_code
from tests.snapshots import snapshot_of
from tests.suites.backend_suite import BackendSuite


def scripted(*, seed: int = 0, **options: Any) -> Backend:
    return backends.build({"kind": "scripted", "step_s": 0.0, **options}, {"kind": "scripted"}, {}, seed=seed)


def published(backend: Backend) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return np.concatenate([bits for _, _, bits in snapshot_of(backend).tensors.values()])


class TestScriptedBackend(BackendSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Backend]:
        return scripted

    @pytest.fixture
    def batches(self) -> Sequence[Batch]:
        return [make.batch(step) for step in range(1, 5)]


@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.02, 0.1])
def test_the_configured_share_of_elements_changes_in_every_step(density: float) -> None:
    backend = scripted(density=density, width=128)
    for step in range(5):
        before = published(backend)
        backend.step(make.batch(step))
        assert np.mean(before != published(backend)) == pytest.approx(density, rel=0.15)


def test_small_weights_change_more_often_than_large_ones() -> None:
    backend = scripted(density=0.05, width=128)
    before = published(backend)
    backend.step(make.batch())
    has_changed = before != published(backend)
    exponents = (before >> 7) & 0xFF
    is_small = exponents < np.median(exponents)
    assert has_changed[is_small].mean() > 2 * has_changed[~is_small].mean()


def test_tensors_are_bf16_and_named_like_a_model() -> None:
    tensors = snapshot_of(scripted(width=8, layers=1)).tensors
    assert {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()} == {
        "model.layers.0.self_attn.qkv_proj.weight": (Dtype.BFLOAT16, (24, 8)),
        "model.layers.0.self_attn.o_proj.weight": (Dtype.BFLOAT16, (8, 8)),
        "model.layers.0.input_layernorm.weight": (Dtype.BFLOAT16, (8,)),
    }


def test_metrics_describe_the_batch() -> None:
    metrics = scripted().step(make.batch(version=5, born=3, members=4))
    assert metrics == {"reward_mean": 0.5, "staleness_mean": 2.0, "staleness_max": 2.0, "tokens_mean": 5.0}


def test_weights_depend_on_the_seed() -> None:
    assert (published(scripted(seed=1)) != published(scripted(seed=2))).any()


def test_weights_depend_on_the_batches_and_their_order() -> None:
    first, second = make.batch(1), make.batch(2)
    histories = {"as it came": [first, second], "swapped": [second, first], "one twice": [first, first]}
    histories["one row more"] = [first, replace(second, rows=(*second.rows, second.rows[0]))]
    histories["other tokens"] = [first, make.batch(2, version=1, born=1)]
    ends = {name: trained(batches) for name, batches in histories.items()}
    assert len(set(ends.values())) == len(ends)
    assert ends["as it came"] == trained([replace(first, is_redelivered=True), second])


def trained(batches: Sequence[Batch]) -> bytes:
    backend = scripted(width=8)
    for batch in batches:
        backend.step(batch)
    return published(backend).tobytes()


def test_a_step_takes_the_configured_time() -> None:
    backend = scripted(step_s=0.05, step_sigma=0.0)
    began = time.monotonic()
    backend.step(make.batch())
    assert time.monotonic() - began >= 0.05


def test_the_step_time_grows_with_the_model_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    backend = scripted(step_s=1000.0, token_s=10.0, step_sigma=0.0)
    backend.step(make.batch(groups=2, members=2))
    assert slept == [pytest.approx(1000.0 + 2 * 2 * 5 * 10.0, abs=100.0)]


def test_the_backend_is_labelled_as_simulated() -> None:
    assert scripted().is_simulated
    assert snapshot_of(scripted()).probe is None


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    scripted(width=8).capture().write(tmp_path)
    with raises_code(InvalidInput, "checkpoint.shape_mismatch", "weights.npy"):
        scripted(width=16).load(tmp_path)


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with raises_code(InvalidInput, "config.invalid", "'density'"):
        scripted(densty=0.1)


def test_rounding_to_bf16_is_to_nearest_with_ties_to_even() -> None:
    above_one = [0x3F80_7FFF, 0x3F80_8000, 0x3F80_8001, 0x3F81_8000, 0xBF80_8001, 0x0000_0000, 0x8000_0000]
    values = np.array(above_one, dtype=np.uint32).view(np.float32)
    assert [hex(bits) for bits in bfloat16_bits(values)] == [
        "0x3f80",
        "0x3f80",
        "0x3f81",
        "0x3f82",
        "0xbf81",
        "0x0",
        "0x8000",
    ]


def test_the_step_time_changes_at_the_configured_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    speed_changes = [{"from_step": 4, "factor": 0.5}, {"from_step": 2, "factor": 2.0}]
    options: dict[str, Any] = {"step_s": 1000.0, "step_sigma": 0.0, "speed_changes": speed_changes}
    backend = scripted(**options)
    for step in range(3):
        backend.step(make.batch(step))
    backend.capture().write(tmp_path)
    again = scripted(**options)
    again.load(tmp_path)
    for step in range(3, 6):
        again.step(make.batch(step))
    assert slept == pytest.approx([1000.0, 1000.0, 500.0, 500.0, 2000.0, 2000.0], rel=0.01)
