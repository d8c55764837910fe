"""Training backend for one process on one device: a CPU or one GPU."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.algorithms.checks import check_algorithm
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.algorithms.tokens import Pass
from astraflow.contract.batches import Batch
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Probe
from astraflow.models import models
from astraflow.models.causal import cast
from astraflow.models.precision import (
    WeightsDtype,
    compute_dtype_of,
    device_of,
    use_fast_float32_products,
    weights_dtype_of,
)
from astraflow.models.published import PublishedParts, published_parts
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.logs import get_logger
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import FrozenBase
from astraflow.trainer.backends.probe import probe_text_from_batch, random_probe_text, score_probe
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.trainer.backends.publishing.published_shards import PublishedShards
from astraflow.trainer.backends.shards import local_shards
from astraflow.trainer.backends.state import files as state_files
from astraflow.trainer.backends.state import sharded as sharded_state
from astraflow.trainer.backends.state.adapters import adapter_files, check_adapters, frozen_base
from astraflow.trainer.backends.state.files import STATE, CapturedFiles, HostTensors, StepState
from astraflow.trainer.backends.teachers import check_teachers, teacher_servers
from astraflow.trainer.engines.adapters import Adapters, LoraOptions
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.float8 import check_float8
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.engines.values import critic_options
from astraflow.trainer.model_preparation import prepare_model
from astraflow.trainer.ranks.launch import DEFAULT_THREADS
from astraflow.trainer.step.flops import ForwardCost, peak_flops
from astraflow.trainer.step.metrics import step_metrics
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.row_check import row_limits_of, without_bad_rows
from astraflow.trainer.step.runner import StepRunner
from astraflow.trainer.step.step_limits import StepLimits
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes

log = get_logger()

_RANDOM = "random.safetensors"


class LocalOptions(OptimizerOptions):
    """Optimizer, precision, and the amount of data per forward pass."""

    weights_dtype: Annotated[WeightsDtype, SettableBy.AGENT] = "bfloat16"
    """Element type that weights are rounded to and published in; the optimizer stores them in float32."""
    compute_dtype: Annotated[Literal["auto", "float32", "bfloat16"], SettableBy.AGENT] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: Annotated[str, SettableBy.AGENT] = "auto"
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""
    threads: int = Field(default=DEFAULT_THREADS, ge=1)
    """CPU threads of torch in this process."""
    lora: LoraOptions | None = None
    """Trains low-rank adapters instead of the weights, which stay frozen; `{}` for the defaults."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one forward and backward pass; a single longer row is a pass of its own. Bounds memory, does not change
    results."""
    batching: Annotated[Literal["auto", "packed", "tree", "rows"], SettableBy.AGENT] = "auto"
    """How the passes of trajectories are computed. `packed`: flat, without padding, by attention over segments; models
    with attention alone. `tree`: what trajectories share once, whose state they continue. `rows`: whole rows padded at
    the right, which is exact for every causal model. `auto`: the first of these that the check at the start finds
    exact."""
    recompute: Annotated[Literal["none", "selective", "full"], SettableBy.AGENT] = "none"
    """Activations that the backward pass computes again instead of keeping them. `selective`: norms and activation
    functions, which compiled blocks do without this option; `full`: everything but the input of each block, which costs
    a quarter of the speed."""
    compile_blocks: Annotated[bool, SettableBy.AGENT] = False
    """Compiles the blocks of the model, what the output head does to logits, and the update of 8-bit moments, with
    torch.compile: 1.5 times as fast on an H200, with two thirds of the memory, after 15 to 60 seconds at the first
    step. Needs a C compiler and the headers of Python on the host."""
    float8: Annotated[bool, SettableBy.AGENT] = False
    """Computes the matrix products of the model's blocks in float8 (e4m3, gradients e5m2). Engines compute in
    `weights_dtype`, so their logprobs differ more from the trainer's. With 1.7 billion parameters it was no faster on
    an H200 (1.61 s a step instead of 1.55 s); larger models were not measured."""
    peak_flops: float | None = Field(default=None, gt=0)
    """Peak of the device for the metric `mfu`, FLOP/s; None: from a table of known GPUs."""
    probe_sequences: int = Field(default=8, ge=1)
    """Number of sequences in the probe; short sequences are joined by more of them, up to 64, so that the probe scores
    at least 256 tokens where the batch has them."""
    probe_tokens: int = Field(default=256, ge=2)
    """Maximum length of a sequence of the probe; longer ones are cut."""

    @field_validator("device")
    @classmethod
    def _is_known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError("unknown device; use 'auto', 'cpu', 'cuda' or a GPU such as 'cuda:1'")
        return device


@backends.register("local", options=LocalOptions)
class LocalBackend:
    """Trains in the process of the trainer, on one GPU or on the CPU.

    Runs the steps of `trainer.step` on a `LocalEngine`. Building the backend prepares the model (finds downloaded
    weights, runs the warm start).
    """

    is_simulated = False

    def __init__(
        self, options: LocalOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        self._options = options
        self._algorithm = AlgorithmConfig.parse(algorithm, where="algorithm")
        check_algorithm(self._algorithm)
        self._device = device_of(options.device)
        if options.float8:
            check_float8(self._device)
        torch.set_num_threads(options.threads)
        use_fast_float32_products(self._device)
        torch.manual_seed(seed)
        loaded = self._load_model(model)
        parts = published_parts(loaded)
        self._adapters = add_adapters(loaded, options, self._algorithm, seed=seed)
        spec = engine_spec(options, self._algorithm, device=self._device, parts=parts, adapters=self._adapters)
        teachers = {name: self._load_model(spec) for name, spec in self._algorithm.teacher_models.items()}
        check_teachers(self._algorithm, teachers, model=model, policy=loaded)
        self._engine = LocalEngine(loaded, spec, teachers=teachers)
        self._planner = StepPlanner(
            self._algorithm,
            data_ranks=1,
            micro_batch_tokens=options.micro_batch_tokens,
            cost=ForwardCost.of_model(loaded),
            batching=self._engine.batching,
            teachers=teacher_servers(self._algorithm, model, vocabulary=loaded.config.get_text_config().vocab_size),
        )
        self._runner = StepRunner(self._engine, self._algorithm)
        self._peak_flops = options.peak_flops or peak_flops(self._device)
        self._updates = 0
        self._critic_updates = 0
        self._limits = StepLimits(self._algorithm)
        self.row_limits = row_limits_of(loaded.config.get_text_config())
        """Limits of the rows that it can train."""
        self._published = PublishedShards(
            self._engine.weights(), parts if self._adapters is None else {}, self._engine.published_dtype
        )
        self._host_copy = HostCopy(self._device)
        self._host_tensors = HostTensors()
        self._probe_text = random_probe_text(
            loaded.config.get_text_config().vocab_size,
            sequences=options.probe_sequences,
            tokens=min(16, options.probe_tokens),
            seed=seed,
        )

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Runs the optimizer steps of a batch without its bad rows; none if all are bad. Raises: InvalidInput after
        too many steps that count as failed."""
        began = time.perf_counter()
        batch, dropped = without_bad_rows(
            batch, self.row_limits, self._algorithm.teachers, excluded_nodes=self._limits.excluded_nodes
        )
        if not batch.rows:
            return {"updates": 0.0, **dropped}
        plan = self._planner.plan(batch)
        result = self._runner.run(plan.shares[0])
        self._updates += len(result.updates)
        self._critic_updates += len(result.critic_updates)
        limits = {"sequences": self._options.probe_sequences, "tokens": self._options.probe_tokens}
        self._probe_text = probe_text_from_batch(batch, **limits) or self._probe_text
        duration_s = time.perf_counter() - began
        metrics = step_metrics(batch, plan, result, duration_s=duration_s, peak_flops=self._peak_flops)
        self._limits.check(batch, result, metrics)
        return {**metrics, **dropped}

    @property
    def batching(self) -> BatchingFacts:
        """Batching of the policy's passes, and why."""
        return self._engine.choice.facts

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the model's weights, in the type they are rounded to."""
        return self._published.tensor_shapes

    @property
    def frozen_base(self) -> FrozenBase | None:
        """The model without its adapters; None without adapters."""
        return frozen_base(self._adapters, self._engine.published_dtype, write=self._write_base)

    def snapshot(self, staged: StagedVersion) -> None:
        """Writes the rounded weights."""
        self._write(self._published, staged)

    def probe(self) -> Probe:
        """Returns scored sequences of the last batch."""
        return score_probe(self._engine, self._probe_text)

    def capture(self) -> CapturedFiles:
        """Copies weights, optimizer, random state and the probe's sequences to the host."""
        state = self._engine.state_tensors()
        index = sharded_state.shard_index(state, local_shards(state, is_first=True), rank=0)
        return CapturedFiles(
            tensors={
                sharded_state.shard_file(0): self._host_tensors.copy(state),
                _RANDOM: state_files.random_state(self._device),
            },
            numbers={
                sharded_state.INDEX: sharded_state.joined_index([index]),
                STATE: StepState(
                    updates=self._updates, critic_updates=self._critic_updates, probe_text=self._probe_text
                ).numbers(),
                **adapter_files(self._adapters),
            },
        )

    def load(self, folder: Path) -> None:
        """Restores the state that `capture` captured; reads all files before it changes anything."""
        check_adapters(folder, self._adapters)
        state = self._engine.state_tensors()
        saved = sharded_state.read_shards(folder, state)
        random_file = folder / _RANDOM
        if random_file.exists():  # several ranks save none
            random = state_files.read_random_state(random_file, self._device)
        else:
            random = state_files.random_state(self._device)
        numbers = StepState.read(folder)
        for name, value in saved.items():
            state[name].copy_(value)
        self._engine.restored(updates=numbers.updates, critic_updates=numbers.critic_updates)
        state_files.restore_random_state(random, self._device)
        self._updates = numbers.updates
        self._critic_updates = numbers.critic_updates
        self._probe_text = numbers.probe_text

    def _write_base(self, staged: StagedVersion) -> None:
        assert self._adapters is not None  # noqa: S101 (only then there is a base)
        adapters, dtype = self._adapters, self._engine.published_dtype
        self._write(PublishedShards(adapters.base_weights(), adapters.base_parts, dtype), staged)

    def _write(self, published: PublishedShards, staged: StagedVersion) -> None:
        weights = {name: shard.local for name, shard in published.local(is_first=True).items()}
        with staged.open_for_writing() as views:
            self._host_copy.write(weights, views, published.dtypes)

    def _load_model(self, model: Mapping[str, Any]) -> PreTrainedModel:
        """Returns the model on the device, in the element type to compute in."""
        dtype = training_dtype(self._options, self._device)
        return cast(models.build(model).load(prepare_model(model)), device=self._device, dtype=dtype)


def engine_spec(
    options: LocalOptions,
    algorithm: AlgorithmConfig,
    *,
    device: torch.device,
    parts: PublishedParts,
    adapters: Adapters | None,
) -> EngineSpec:
    """Returns the specification of the engine that runs the steps of an algorithm."""
    return EngineSpec(
        optimizer=options,
        device=device,
        published_dtype=weights_dtype_of(options.weights_dtype),
        parts=parts,
        needs_reference=Pass.REFERENCE in losses.build(algorithm.loss).needs
        or any(teacher.policy == "initial" for teacher in algorithm.teachers.values()),
        critic=critic_options(options, algorithm.critic),
        adapters=adapters,
        batching=None if options.batching == "auto" else Batching(options.batching),
        recompute=options.recompute,
        balances_experts=algorithm.balance_coefficient > 0,
        replays_experts=algorithm.router_replay,
        compile_blocks=options.compile_blocks,
        float8=options.float8,
    )


def training_dtype(options: LocalOptions, device: torch.device) -> torch.dtype:
    """Returns the element type that the model computes in. Raises: InvalidInput where the device has no attention in
    it."""
    dtype = compute_dtype_of(options.compute_dtype, device)
    if device.type == "cuda" and dtype == torch.float32:
        raise InvalidInput(
            "cannot train in float32 on a GPU, whose attention over packs computes in bfloat16; set compute_dtype = "
            "'auto', or device = 'cpu'",
            code="trainer.float32_on_gpu",
        )
    return dtype


def add_adapters(
    model: PreTrainedModel,
    options: LocalOptions,
    algorithm: AlgorithmConfig,
    *,
    seed: int,
    read: Callable[[str], Tensor] | None = None,
) -> Adapters | None:
    """Adds the adapters of the options to a model in place; None without any. read: as `Adapters.add`.

    Raises: InvalidInput.
    """
    if options.lora is None:
        return None
    if algorithm.critic is not None:
        raise InvalidInput(
            "cannot train adapters with a critic: the critic trains all weights of its own model, for which lora saves "
            "no memory; remove lora, or use an advantage without a critic, such as 'group_relative'",
            code="trainer.critic_and_adapters",
        )
    dtype = weights_dtype_of(options.weights_dtype)
    return Adapters.add(model, options.lora, published_dtype=dtype, seed=seed, read=read)
