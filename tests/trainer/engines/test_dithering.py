"""A dithered start changes no rounded weight, and published weights follow the masters from the first step."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from astraflow.trainer.engines import optimizers
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions, dither

BF16_ULP = 2**-8
"""Distance of bf16 values in [0.5, 1), and of half that size below 0.5."""


def dithered(values: Tensor, name: str = "w", grid: torch.dtype = torch.bfloat16) -> Tensor:
    masters = values.clone()
    dither(masters, name, whole=values, grid=grid)
    return masters


@pytest.mark.parametrize("grid", [torch.bfloat16, torch.float16])
def test_rounding_gives_every_value_back_with_the_same_bits(grid: torch.dtype) -> None:
    stored = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(grid)
    stored = stored[~stored.isnan()]
    is_plain = stored.isfinite() & (stored.abs() >= torch.finfo(grid).smallest_normal)
    for name in ("a", "b", "c"):
        rows = stored.float().repeat(17, 1)  # each value at many positions
        masters = dithered(rows, name, grid)
        assert torch.equal(masters.to(grid).view(torch.int16), stored.repeat(17, 1).view(torch.int16))
        assert torch.equal(masters[:, ~is_plain], rows[:, ~is_plain])
        assert float((masters != rows)[:, is_plain].float().mean()) > 0.999


def test_the_largest_offsets_are_within_the_cell() -> None:
    masters = dithered(torch.full((1 << 20,), 1.0))
    assert float(masters.max()) > 1 + 0.999 * BF16_ULP
    assert float(masters.min()) < 1 - 0.999 * BF16_ULP / 2
    assert torch.equal(masters.bfloat16().float(), torch.ones(1 << 20))


def test_elements_off_the_grid_and_zeros_stay() -> None:
    values = torch.tensor([0.0, -0.0, 0.1, 1.0 + 2**-20, math.inf, -math.inf, 1e-40])
    assert torch.equal(dithered(values).view(torch.int32), values.view(torch.int32))


def test_nothing_is_moved_where_weights_are_published_in_float32() -> None:
    values = torch.ones(100)
    assert torch.equal(dithered(values, grid=torch.float32), values)


@pytest.mark.parametrize("value", [0.7, -0.7, 0.5, -0.5, 1.9921875])
@pytest.mark.parametrize("drift", [0.02, -0.1, 0.25, -0.45])
def test_published_weights_follow_a_drift_on_average(value: float, drift: float) -> None:
    """Also at powers of two, where the cell is not symmetric, and for less than half a grid step."""
    stored = torch.full((1 << 18,), value).bfloat16().float()
    moved = drift * BF16_ULP / 2
    served = (dithered(stored).double() + moved).float().bfloat16().double() - stored
    assert float(served.mean()) == pytest.approx(moved, rel=0.06)
    assert torch.equal((stored + moved).bfloat16().float(), stored) or abs(value) in (0.5, 1.9921875)


def test_offsets_are_uniform_and_differ_by_name_and_position() -> None:
    stored = torch.full((512, 1024), 0.75)
    parts = [(dithered(stored, name) - stored) / BF16_ULP for name in ("layers.0.weight", "layers.1.weight")]
    for offsets in parts:
        counts = torch.histc(offsets, bins=64, min=-0.5, max=0.5)
        assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 120  # chi-squared, 63 degrees of freedom
    neighbours = [(parts[0], parts[1]), *((parts[0], parts[0].roll(1, axis)) for axis in (0, 1))]
    for left, right in neighbours:
        assert abs(float((left * right).mean() / left.var())) < 0.01


@pytest.mark.parametrize("shape", [(7, 5), (9,), (5, 3, 4), (1, 6)])
@pytest.mark.parametrize("placements", [(Replicate(), Shard(0)), (Shard(0), Shard(0)), (Replicate(), Shard(-1))])
def test_parts_of_a_tensor_get_the_offsets_of_the_whole(shape: tuple[int, ...], placements: tuple[Any, ...]) -> None:
    """On four ranks, also with uneven and empty parts and with copies."""
    stored = torch.linspace(-2, 2, math.prod(shape)).bfloat16().float().view(shape)
    expected = dithered(stored)
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2, 2))
            local_shape, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
            part = tuple(slice(first, first + size) for first, size in zip(offsets, local_shape, strict=True))
            whole = DTensor.from_local(
                stored[part], mesh, placements, run_check=False, shape=stored.shape, stride=stored.stride()
            )
            masters = stored[part].clone()
            dither(masters, "w", whole=whole, grid=torch.bfloat16)
            assert torch.equal(masters, expected[part])
        finally:
            dist.destroy_process_group()


def test_large_tensors_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = torch.linspace(-2, 2, 999 * 7).bfloat16().float().view(999, 7)
    expected = dithered(stored)
    monkeypatch.setattr(optimizers, "chunk_elements", lambda device: 100)
    assert torch.equal(dithered(stored), expected)


def test_a_single_number_is_moved() -> None:
    assert dithered(torch.tensor(1.0)) != 1


@pytest.mark.parametrize("shares_parameters", [False, True])
def test_an_optimizer_starts_dithered_and_restores_its_masters(shares_parameters: bool) -> None:
    stored = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).bfloat16().float()

    def optimizer(**options: Any) -> tuple[nn.Parameter, MasterOptimizer]:
        parameter = nn.Parameter(stored.clone())
        parsed = OptimizerOptions(learning_rate=1e-5, **options)
        return parameter, MasterOptimizer(
            {"w": parameter}, parsed, rounded_to=torch.bfloat16, shares_parameters=shares_parameters
        )

    parameter, first = optimizer(dithered_start=True)
    assert torch.equal(first.weights()["w"].bfloat16().float(), stored)
    assert not torch.equal(first.weights()["w"], stored)
    if not shares_parameters:
        assert torch.equal(parameter, stored)
    parameter.grad = torch.ones(64, 8)
    first.update(is_loss_finite=True)
    _, plain = optimizer(dithered_start=False)
    assert torch.equal(plain.weights()["w"], stored)
    for other in (plain, optimizer(dithered_start=True)[1]):
        for name, value in other.state_tensors().items():
            value.copy_(first.state_tensors()[name])
        other.restored(updates=1)
        assert torch.equal(other.weights()["w"], first.weights()["w"])
