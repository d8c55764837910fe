"""One rank's part of the `fsdp` backend: engine, step, shards of the checkpoint and of published versions."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Probe, SharedFile
from astraflow.models import models
from astraflow.models.precision import torch_dtype_of, use_fast_float32_products
from astraflow.models.published import published_parts
from astraflow.models.stored import StoredModel
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.trainer.backends.local import LocalOptions, add_adapters, engine_spec, training_dtype
from astraflow.trainer.backends.probe import ProbeText, score_probe
from astraflow.trainer.backends.publishing.sharded_weights import ShardedWeights
from astraflow.trainer.backends.shards import local_shards
from astraflow.trainer.backends.state import files as state_files
from astraflow.trainer.backends.state import sharded as sharded_state
from astraflow.trainer.backends.state.files import HostTensors
from astraflow.trainer.backends.teachers import check_teachers
from astraflow.trainer.engines.float8 import check_float8
from astraflow.trainer.engines.fsdp import FsdpEngine, Sharding
from astraflow.trainer.engines.mesh import RankMesh
from astraflow.trainer.engines.titan import TitanEngine
from astraflow.trainer.model_preparation import prepare_model
from astraflow.trainer.ranks.channel import Message
from astraflow.trainer.ranks.launch import DEFAULT_RANKS
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.runner import StepResult, StepRunner
from astraflow.trainer.step.shares import Share
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes


class FsdpOptions(LocalOptions):
    """Options of `local`, and the division over ranks: processes with one device each."""

    device: Annotated[Literal["auto", "cpu", "cuda"], SettableBy.AGENT] = "auto"
    """`auto`: `cuda` if torch finds a GPU. Each rank of a host uses its own GPU. Ranks communicate by nccl on GPUs and
    by gloo on CPUs."""
    ranks: int = Field(default=DEFAULT_RANKS, ge=1)
    """Processes. The trainer starts them on its host, or waits for them if the environment has RANK=0."""
    gpus: Annotated[tuple[NonNegativeInt, ...], SettableBy.RECIPE] = ()
    """GPUs of this host for the ranks, in order, of those that CUDA_VISIBLE_DEVICES leaves; empty: from the first on.
    Two trainers on a host need different ones. Ignored where a scheduler starts the ranks."""
    replicas: int = Field(default=1, ge=1)
    """Copies of the weights (HSDP); each is sharded over `ranks / replicas` ranks. With several hosts, one for each
    host saves traffic between them."""
    sequence_ranks: int = Field(default=1, ge=1)
    """Ranks that compute one pack together (Ulysses), for rows that are too long for one device. Divides the number of
    query heads."""
    cpu_offload: Annotated[bool, SettableBy.AGENT] = False
    """Store weights, gradients and optimizer state in the host's memory, and only gathered layers on the GPU."""
    gradient_sync: Annotated[Literal["last_pack", "each_pack"], SettableBy.AGENT] = "last_pack"
    """When gradients are summed over the ranks. `last_pack`: once per update, which is faster, but each rank stores the
    whole gradient (4 bytes per parameter). `each_pack`: each rank stores its shard only."""
    rank_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for another rank and longest silence of one; then the trainer ends, names the rank and restarts."""

    @model_validator(mode="after")
    def _check_division(self) -> Self:
        for name in ("replicas", "sequence_ranks"):
            if self.ranks % getattr(self, name):
                raise ValueError(f"{name} {getattr(self, name)} does not divide ranks {self.ranks}; choose a divisor")
        if self.sequence_ranks > 1 and self.batching not in ("auto", "packed"):
            raise ValueError(
                f"batching = {self.batching!r} is not divided over sequence_ranks = {self.sequence_ranks}; set "
                "sequence_ranks = 1, or batching = 'packed'"
            )
        if self.gpus and len(set(self.gpus)) != self.ranks:
            raise ValueError(
                f"gpus {list(self.gpus)} cannot hold {self.ranks} ranks; name a different GPU for each rank"
            )
        return self


_ENGINES: Mapping[str, type[FsdpEngine]] = {"fsdp": FsdpEngine, "titan": TitanEngine}


class RankTrainer:
    """Part of one rank. All methods but `write` are collective. Implements `RankWork`."""

    def __init__(
        self,
        options: FsdpOptions,
        model: Mapping[str, Any],
        algorithm: Mapping[str, Any],
        *,
        seed: int,
        device: torch.device,
        engine: Literal["fsdp", "titan"] = "fsdp",
    ) -> None:
        _prepare_device(options, device)
        self._seed = seed
        self._updates = 0
        """Optimizer steps of policy and critic together."""
        mesh = RankMesh.create(device, replicas=options.replicas, sequence_ranks=options.sequence_ranks)
        parsed = AlgorithmConfig.parse(algorithm, where="algorithm")
        stored = _opened(model, engine)
        teachers = {name: _opened(spec, engine) for name, spec in parsed.teacher_models.items()}
        loaded = stored.model
        loaded_teachers = {name: teacher.model for name, teacher in teachers.items()}
        check_teachers(parsed, loaded_teachers, model=model, policy=loaded)
        parts = published_parts(loaded)
        self.adapters = add_adapters(loaded, options, parsed, seed=seed, read=stored.read)
        """Adapters of the model; None when the whole model is trained."""
        spec = engine_spec(options, parsed, device=device, parts=parts, adapters=self.adapters)
        if self.adapters is not None:
            stored = stored.rounded_to(torch_dtype_of(spec.published_dtype))
        self.cost = ForwardCost.of_model(loaded)
        self.config: PretrainedConfig = loaded.config.get_text_config()
        self.engine = _ENGINES[engine](stored, spec, _sharding(options, mesh, device), teachers=teachers)
        self._runner = StepRunner(self.engine, parsed)
        sharded = partial(
            ShardedWeights,
            parts=parts,
            dtype=spec.published_dtype,
            device=torch.device("cpu") if options.cpu_offload else device,
            rank_timeout_s=options.rank_timeout_s,
        )
        self._published = sharded(self.engine.weights())
        self._base = None if self.adapters is None else sharded(self.adapters.base_weights())
        self._host_tensors = HostTensors()
        self._captured: dict[str, Tensor] = {}
        self._index: dict[str, Any] = {}
        self._read: dict[str, Tensor] = {}

    @classmethod
    def build(cls, message: Message, device: torch.device) -> Self:
        """Builds a rank from the first rank's command."""
        facts = message.facts
        options = FsdpOptions.parse(facts["options"], where="backend")
        arguments = {"seed": facts["seed"], "engine": facts["engine"]}
        return cls(options, facts["model"], facts["algorithm"], device=device, **arguments)

    @property
    def calls(self) -> int:
        """Collective calls of the engine. Count."""
        return self.engine.calls

    @property
    def commands(self) -> Mapping[str, Callable[[Message], Message]]:
        return {
            "step": lambda message: _done(lambda: self.step(Share.decode(message.facts, message.arrays))),
            "probe": lambda message: _done(
                lambda: self.probe(ProbeText.from_lists(message.facts["sequences"], message.facts["scored_from"]))
            ),
            "snapshot": lambda message: _done(lambda: self.snapshot(_shared_file(message))),
            "snapshot_base": lambda message: _done(lambda: self.snapshot_base(_shared_file(message))),
            "capture": lambda _: Message(facts={"size_bytes": self.capture()}),
            "write": lambda message: Message(facts={"index": self.write(Path(message.facts["folder"]))}),
            "read": lambda message: _done(lambda: self.read(Path(message.facts["folder"]))),
            "restore": lambda message: _done(lambda: self.restore(**message.facts["counts"])),
        }

    def step(self, share: Share) -> StepResult:
        """Runs the optimizer steps of this rank's share."""
        # Drawn anew for each step, so that no random state needs to be saved for each of any number of ranks.
        torch.manual_seed(hash((self._seed, self._updates, self.engine.layout.data_rank)) % 2**63)
        result = self._runner.run(share)
        self._updates += len(result.updates) + len(result.critic_updates)
        return result

    def probe(self, text: ProbeText) -> Probe:
        """Returns the text with its logprobs."""
        return score_probe(self.engine, text)

    @property
    def published_shapes(self) -> TensorShapes:
        return self._published.published_shapes

    def snapshot(self, target: StagedVersion | SharedFile | None) -> None:
        """Writes this rank's shards of the rounded weights, as `ShardedWeights.snapshot`."""
        self._published.snapshot(target)

    def snapshot_base(self, target: StagedVersion | SharedFile | None) -> None:
        """Writes this rank's shards of the frozen weights, as `ShardedWeights.snapshot`."""
        assert self._base is not None  # noqa: S101 (the first rank has adapters too)
        self._base.snapshot(target)

    def capture(self) -> int:
        """Copies the shards that this rank writes to the host; returns their size in bytes."""
        state = self.engine.state_tensors()
        layout = self.engine.layout
        shards = local_shards(state, is_first=layout.rank == 0)
        self._index = sharded_state.shard_index(state, shards, rank=layout.rank)
        self._captured = self._host_tensors.copy({name: shard.local for name, shard in shards.items()})
        return sum(value.nbytes for value in self._captured.values())

    def write(self, folder: Path) -> dict[str, Any]:
        """Writes the captured shards; returns their index. Raises: OSError."""
        state_files.write_tensors(folder / sharded_state.shard_file(self.engine.layout.rank), self._captured)
        return self._index

    def read(self, folder: Path) -> None:
        """Reads this rank's shards and changes nothing. Raises: CorruptData."""
        self._read = sharded_state.read_shards(folder, self.engine.state_tensors())

    @torch.no_grad()
    def restore(self, *, updates: int, critic_updates: int) -> None:
        """Restores what `read` read."""
        state = self.engine.state_tensors()
        for name, read in self._read.items():
            value = state[name]
            (value.to_local() if isinstance(value, DTensor) else value).copy_(read)
        self._read = {}
        self._updates = updates + critic_updates
        self.engine.restored(updates=updates, critic_updates=critic_updates)


def _prepare_device(options: FsdpOptions, device: torch.device) -> None:
    """Sets up torch for this rank's device. Raises: InvalidInput for options that the device does not have."""
    if options.cpu_offload and device.type == "cpu":
        raise InvalidInput(
            "cannot offload weights from a CPU to the host: they are there already; set cpu_offload = false, or "
            "device = 'cuda'",
            code="trainer.offload_without_gpu",
        )
    if options.float8:
        check_float8(device)
    torch.set_num_threads(options.threads)
    use_fast_float32_products(device)


def _opened(model: Mapping[str, Any], engine: str) -> StoredModel:
    """Returns the model of a spec for an engine, with all its weights in memory where the engine needs them."""
    source, folder = models.build(model), prepare_model(model)
    if _ENGINES[engine].reads_blocks:
        return StoredModel.open(source, folder)
    return StoredModel(model=source.load(folder), read=None)


def _sharding(options: FsdpOptions, mesh: RankMesh, device: torch.device) -> Sharding:
    return Sharding(
        mesh=mesh,
        compute_dtype=training_dtype(options, device),
        is_offloaded=options.cpu_offload,
        syncs_each_pack=options.gradient_sync == "each_pack",
    )


def snapshot_facts(staged: StagedVersion) -> dict[str, Any]:
    """Returns what the commands `snapshot` and `snapshot_base` tell the other ranks."""
    return {"file": None if staged.buffer.file is None else asdict(staged.buffer.file)}


def _shared_file(message: Message) -> SharedFile | None:
    file = message.facts["file"]
    return None if file is None else SharedFile(**file)


def _done(work: Callable[[], object]) -> Message:
    """Does the work; returns an empty answer."""
    work()
    return Message(facts={})
