"""Optimizers over master weights: as torch's own, deterministic, and the same for shards of several ranks."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn

from astraflow.trainer.engines.moment_codes import CodedMoment
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions
from astraflow.trainer.engines.update_rules import orthogonalise
from tests.trainer.engines.compiled_updates import check_compiled_update
from tests.trainer.engines.optimizer_ranks import EMBEDDING, SHAPES, gradients_at, parameters, train

ADAMW = {"learning_rate": 1e-2, "weight_decay": 0.1, "grad_clip": 0.5}
HASH_SEEDS = ("1", "3")
"""Seeds of the ranks' hashes for which a set of the names of Muon's matrices has two orders."""


def reference_adamw(updates: int) -> dict[str, Tensor]:
    """Returns the weights after torch's own AdamW, clipping and decay."""
    weights = parameters()
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": 0.1},
        {"params": [w for w in weights.values() if w.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for update in range(updates):
        for name, gradient in gradients_at(update).items():
            weights[name].grad = gradient
        torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def test_adamw_matches_torch() -> None:
    weights = train(OptimizerOptions(**ADAMW), updates=5).weights()
    for name, expected in reference_adamw(5).items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-6, atol=1e-7)


def test_muon_matches_torch_for_matrices_and_adamw_for_the_rest() -> None:
    options = OptimizerOptions(optimizer="muon", learning_rate=1e-2, weight_decay=0.1, grad_clip=1e9)
    weights, expected = train(options, updates=3).weights(), parameters()
    reference = torch.optim.Muon(
        [expected["up.weight"], expected["down.weight"]], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for update in range(3):
        for name, gradient in gradients_at(update).items():
            expected[name].grad = gradient
        reference.step()
    for name in ("up.weight", "down.weight"):  # torch iterates in bfloat16 on a CPU too
        torch.testing.assert_close(weights[name], expected[name].detach(), rtol=0, atol=2e-3)
    by_adamw = train(OptimizerOptions(learning_rate=1e-2, weight_decay=0.1, grad_clip=1e9), updates=3).weights()
    for name in (EMBEDDING, "norm.weight"):
        assert torch.equal(weights[name], by_adamw[name])


def test_muon_orthogonalises_each_matrix_of_a_stack() -> None:
    stack = torch.randn(3, 16, 48, generator=torch.Generator().manual_seed(1))
    result = orthogonalise(stack)
    assert all(
        torch.equal(result[index], orthogonalise(stack[index]))
        or torch.allclose(result[index], orthogonalise(stack[index]), atol=1e-5)
        for index in range(3)
    )
    values = torch.linalg.svdvals(result)
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.5


def test_muon_updates_joined_experts_as_their_single_matrices() -> None:
    random = torch.Generator().manual_seed(2)
    joined = nn.Parameter(torch.randn(3, 8, 6, generator=random))
    single = {f"{index}": nn.Parameter(part.clone()) for index, part in enumerate(joined.detach().view(6, 4, 6))}
    options = OptimizerOptions(optimizer="muon", learning_rate=0.1, grad_clip=1e9)
    optimizer = MasterOptimizer({"w": joined}, options, rounded_to=torch.float32, matrix_shapes={"w": (4, 6)})
    reference = MasterOptimizer(single, options, rounded_to=torch.float32)
    for _ in range(2):
        joined.grad = torch.randn(3, 8, 6, generator=random)
        for parameter, gradient in zip(single.values(), joined.grad.view(6, 4, 6), strict=True):
            parameter.grad = gradient.clone()
        optimizer.update(is_loss_finite=True)
        reference.update(is_loss_finite=True)

    expected = torch.stack(list(reference.weights().values())).view(3, 8, 6)
    torch.testing.assert_close(optimizer.weights()["w"], expected, rtol=0, atol=1e-6)


def test_decay_is_not_applied_to_vectors() -> None:
    optimizer = MasterOptimizer(
        parameters(), OptimizerOptions(learning_rate=0.1, weight_decay=1.0), rounded_to=torch.float32
    )
    before = {name: weight.clone() for name, weight in optimizer.weights().items()}
    for name, parameter in optimizer_parameters(optimizer).items():
        parameter.grad = torch.zeros(SHAPES[name])
    optimizer.update(is_loss_finite=True)
    for name, weight in optimizer.weights().items():
        torch.testing.assert_close(weight, before[name] * (0.9 if weight.ndim > 1 else 1.0))


def optimizer_parameters(optimizer: MasterOptimizer) -> Mapping[str, nn.Parameter]:
    return optimizer._parameters


@pytest.mark.parametrize(
    ("kind", "moments"),
    [("adamw", "float32"), ("adamw", "bfloat16"), ("adamw", "uint8"), ("muon", "float32"), ("muon", "bfloat16")],
)
def test_a_restored_optimizer_continues_bit_for_bit(kind: str, moments: str) -> None:
    options = OptimizerOptions.parse(
        {**ADAMW, "optimizer": kind, "moments_dtype": moments, "schedule": "cosine", "decay_steps": 9}, where=""
    )
    original = train(options, updates=3)
    restored = MasterOptimizer(parameters(), options, rounded_to=torch.bfloat16, not_matrices={EMBEDDING})
    saved = {name: value.clone() for name, value in original.state_tensors().items()}
    for name, value in restored.state_tensors().items():
        value.copy_(saved[name])
    restored.restored(updates=3)
    for optimizer in (original, restored):
        train(options, updates=5, begin=3, optimizer=optimizer)
    for name, value in original.state_tensors().items():
        assert torch.equal(value, restored.state_tensors()[name]), name


@pytest.mark.long
def test_bfloat16_moments_approximate_the_exact_ones() -> None:
    """The second moment falls although each step changes it by less than bfloat16 can store."""
    parameter = nn.Parameter(torch.zeros(4096))
    options = OptimizerOptions(moments_dtype="bfloat16", grad_clip=1e9)
    optimizer = MasterOptimizer({"w": parameter}, options, rounded_to=torch.float32)
    slopes = torch.linspace(0.5, 2.0, 4096)
    for update in range(400):
        parameter.grad = slopes * (1.0 if update < 100 else 0.0)
        optimizer.update(is_loss_finite=True)
    exact = slopes.square() * (1 - 0.999**100) * 0.999**300
    stored = optimizer.state_tensors()["exp_avg_sq/w"].float()
    assert float((stored / exact - 1).abs().max()) < 0.05
    assert abs(float((stored / exact).mean()) - 1) < 2e-3


@pytest.mark.long
def test_8_bit_moments_approximate_the_exact_ones() -> None:
    """Also of elements that are far smaller than the largest of their block, and of rows that end within a block."""
    shape = (64, 300)
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = MasterOptimizer(
        {"w": parameter}, OptimizerOptions(moments_dtype="uint8", grad_clip=1e9), rounded_to=torch.float32
    )
    slopes = torch.logspace(-4, 0, 300).expand(shape)
    for update in range(300):
        parameter.grad = slopes * (1.0 if update < 100 else 0.5)
        optimizer.update(is_loss_finite=True)
    state = optimizer.state_tensors()
    moments_8_bit = decoded(optimizer)

    assert sum(value.nbytes for name, value in state.items() if name.startswith("exp_avg")) < 2.1 * parameter.numel()
    for moment, power, beta, bound in (("exp_avg", 1, 0.9, 0.07), ("exp_avg_sq", 2, 0.999, 0.03)):
        was = slopes**power * (1 - beta**100) * beta**200
        exact = was + (0.5 * slopes) ** power * (1 - beta**200)
        assert float((moments_8_bit[moment] / exact - 1).abs().max()) < 0.2
        assert float(((moments_8_bit[moment] / exact).mean(0) - 1).abs().max()) < bound


def decoded(optimizer: MasterOptimizer) -> dict[str, Tensor]:
    adamw = optimizer._adamw
    return {
        "exp_avg": adamw._coded_first.read("w", slice(None)),
        "exp_avg_sq": adamw._coded_second.read("w", slice(None)),
    }


def test_a_square_with_a_code_is_never_stored_as_0() -> None:
    """Its element would get a huge step."""
    values = torch.logspace(-30, 0, 200)[None]
    moment = CodedMoment({"w": values}, is_signed=False)

    moment.write("w", slice(None), values, torch.full((8,), 0.999))

    stored = moment.read("w", slice(None))
    assert bool((stored > 0).all())
    assert float((stored / values)[0, 150:].sub(1).abs().max()) < 0.12


@pytest.mark.parametrize("is_signed", [True, False])
def test_codes_are_rounded_without_bias_and_decoded_values_keep_theirs(is_signed: bool) -> None:
    values = torch.linspace(-1 if is_signed else 0.01, 1, 500).expand(512, 500).contiguous()
    values[0] = 0
    moment = CodedMoment({"w": values}, is_signed=is_signed)
    thresholds = torch.rand(1 << 18, generator=torch.Generator().manual_seed(0))

    moment.write("w", slice(None), values, thresholds)

    stored = moment.read("w", slice(None))
    assert torch.equal(stored[0], values[0])
    assert float((stored[1:].mean(0) - values[1]).abs().max()) < 0.012
    assert float((stored - values).abs().max()) < 0.12
    moment.write("w", slice(None), stored, thresholds)
    torch.testing.assert_close(moment.read("w", slice(None)), stored, rtol=1e-6, atol=0)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where the compiler is imported
def test_the_compiled_update_of_8_bit_moments_is_that_of_single_operations() -> None:
    check_compiled_update(torch.device("cpu"))


@pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), (1.5, 0.9), (math.nan, 0.9)])
def test_betas_outside_of_their_range_are_refused(betas: tuple[float, float]) -> None:
    with pytest.raises(ValidationError):
        OptimizerOptions(betas=betas)


@pytest.mark.parametrize("rate", [math.inf, math.nan])
def test_a_learning_rate_that_is_not_finite_is_refused(rate: float) -> None:
    with pytest.raises(ValidationError):
        OptimizerOptions(learning_rate=rate)


def test_8_bit_moments_of_muon_are_refused() -> None:
    with pytest.raises(ValidationError):
        OptimizerOptions(optimizer="muon", moments_dtype="uint8")


def test_a_step_that_is_not_finite_only_increases_the_count() -> None:
    options = OptimizerOptions(**ADAMW, warmup_steps=3)
    optimizer = train(options, updates=1)
    before = {name: value.clone() for name, value in optimizer.state_tensors().items()}
    for finite, slope in ((False, 1.0), (True, math.inf), (True, math.nan)):
        for name, parameter in optimizer_parameters(optimizer).items():
            parameter.grad = torch.full(SHAPES[name], slope)
        result = optimizer.update(is_loss_finite=finite)
        assert result.is_skipped
        assert result.grad_norm == 0
    assert optimizer.updates == 4
    for name, value in optimizer.state_tensors().items():
        assert torch.equal(value, before[name]), name


def test_gradients_of_a_rounded_model_are_added_in_float32() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = MasterOptimizer({"w": parameter}, OptimizerOptions(), rounded_to=torch.bfloat16)
    for _ in range(257):
        parameter.grad = torch.ones(2, dtype=torch.bfloat16)
        optimizer.accumulate()
    assert optimizer.update(is_loss_finite=True).grad_norm == pytest.approx(257 * math.sqrt(2))


def test_the_model_computes_with_the_rounded_masters() -> None:
    weights = parameters()
    optimizer = train(OptimizerOptions(**ADAMW), updates=2, weights=weights)
    for name, master in optimizer.weights().items():
        assert torch.equal(weights[name], master.bfloat16().float())
        assert master.dtype == torch.float32
    assert any(not torch.equal(weights[name], master) for name, master in optimizer.weights().items())


def test_shared_masters_are_the_parameters() -> None:
    weights = parameters()
    optimizer = MasterOptimizer(weights, OptimizerOptions(**ADAMW), rounded_to=torch.bfloat16, shares_parameters=True)
    train(OptimizerOptions(**ADAMW), updates=2, optimizer=optimizer)
    for name, master in optimizer.weights().items():
        assert master.data_ptr() == weights[name].data_ptr()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 0.775, 0.55, 0.325, 0.1]),
        (
            "cosine",
            [
                1 / 3,
                2 / 3,
                1,
                0.1 + 0.45 * (1 + math.cos(math.pi / 4)),
                0.55,
                0.1 + 0.45 * (1 - math.cos(math.pi / 4)),
                0.1,
            ],
        ),
    ],
)
def test_learning_rates_follow_the_schedule(schedule: str, expected: list[float]) -> None:
    options = OptimizerOptions.parse(
        {
            "schedule": schedule,
            "learning_rate": 1.0,
            "warmup_steps": 2,
            "decay_steps": None if schedule == "constant" else 6,
            "min_learning_rate_ratio": 0.1,
        },
        where="",
    )
    assert [options.learning_rate_at(update) for update in range(7)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "values", [{"schedule": "linear"}, {"schedule": "cosine", "decay_steps": 3, "warmup_steps": 3}]
)
def test_an_incomplete_schedule_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        OptimizerOptions.model_validate(values)


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("adamw", marks=pytest.mark.long), "muon"])
def test_sharded_and_replicated_weights_are_updated_as_whole_ones(kind: str, tmp_path: Path) -> None:
    """Two ranks: FSDP's sharding and a replicated vector; one row does not divide evenly. Sets of names have another
    order on each rank, so every rank must gather the matrices in an order that is not a set's."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.engines.optimizer_ranks", kind, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": HASH_SEEDS[rank]},
        )
        for rank in range(2)
    ]
    with ranks[0], ranks[1]:
        try:
            outputs = [rank.communicate()[0] for rank in ranks]
        finally:
            for process in ranks:
                process.kill()  # has no effect on one that ended
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    options = OptimizerOptions.parse({**ADAMW, "optimizer": kind}, where="")
    whole = train(options, updates=4)
    for rank in range(2):
        saved = load_file(tmp_path / f"{rank}.safetensors")
        assert saved.keys() == whole.state_tensors().keys()
        for name, value in whole.state_tensors().items():
            torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-6, msg=name)
        if kind == "adamw":  # whose rounding depends on an element's place in its shard
            coded = train(options.model_copy(update={"moments_dtype": "uint8"}), updates=4).state_tensors()
            saved = load_file(tmp_path / f"{rank}-uint8.safetensors")
            assert {name: value.shape for name, value in saved.items()} == {
                name: value.shape for name, value in coded.items()
            }
            for name, value in coded.items():
                if value.dtype == torch.float32:
                    torch.testing.assert_close(saved[name], value, rtol=0.15, atol=1e-2, msg=name)


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_table_of_codes_gives_the_codes_of_a_binary_search(is_signed: bool) -> None:
    codebook = CodedMoment({}, is_signed=is_signed).codebook(torch.device("cpu"))
    values, last = codebook.values, len(codebook.values) - 1
    prefixes = torch.arange(1 << 16, dtype=torch.int32) << 16
    bits = [prefixes, prefixes | 0xFFFF, prefixes | 0x8000, prefixes | 0x1234]
    neighbours = [values, values.nextafter(torch.tensor(-2.0)), values.nextafter(torch.tensor(2.0))]
    shares = torch.cat([*(part.view(torch.float32) for part in bits), *neighbours])
    shares = shares[~shares.isnan()]  # the scale of their block is NaN too, whatever the code
    expected = torch.bucketize(shares, values, out_int32=True).clamp_(max=last)
    torch.testing.assert_close(codebook.codes_at_or_above(shares), expected, rtol=0, atol=0)
