"""Training backend for several ranks (FSDP2), which are processes on one host or on several."""

import atexit
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from astraflow.algorithms.checks import check_algorithm
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.weights import Probe
from astraflow.runtime.logs import get_logger
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import FrozenBase
from astraflow.trainer.backends.probe import probe_text_from_batch, random_probe_text
from astraflow.trainer.backends.rank_trainer import FsdpOptions, RankTrainer, snapshot_facts
from astraflow.trainer.backends.state import files as state_files
from astraflow.trainer.backends.state.adapters import adapter_files, check_adapters, frozen_base
from astraflow.trainer.backends.state.files import STATE, StepState
from astraflow.trainer.backends.state.sharded import INDEX, joined_index
from astraflow.trainer.backends.teachers import teacher_servers
from astraflow.trainer.model_preparation import prepare_model
from astraflow.trainer.ranks.channel import Message
from astraflow.trainer.ranks.rank_group import RankGroup
from astraflow.trainer.step.flops import peak_flops
from astraflow.trainer.step.metrics import step_metrics
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.row_check import row_limits_of, without_bad_rows
from astraflow.trainer.step.step_limits import StepLimits
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes

T = TypeVar("T")
log = get_logger()


@backends.register("fsdp", options=FsdpOptions)
class FsdpBackend:
    """Trains on several GPUs or hosts, with the model sharded over ranks (FSDP2).

    The first rank plans the steps, gives every rank its share, and takes part itself. Building it prepares the model
    and starts the ranks. When a rank is lost, every method raises Unavailable, and the process must end.
    """

    is_simulated = False
    engine: ClassVar[Literal["fsdp", "titan"]] = "fsdp"
    """Engine of the ranks."""

    def __init__(
        self, options: FsdpOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        self._options = options
        self._algorithm = AlgorithmConfig.parse(algorithm, where="algorithm")
        check_algorithm(self._algorithm)
        prepare_model(model)  # once, before the other ranks of this host look for its result
        self._rank_group = RankGroup.start(
            ranks=options.ranks, device=options.device, timeout_s=options.rank_timeout_s, threads=options.threads
        )
        atexit.register(self.close)
        device = self._rank_group.device
        facts = {
            "options": options.model_dump(mode="json"),
            "model": dict(model),
            "algorithm": dict(algorithm),
            "seed": seed,
            "engine": self.engine,
        }
        try:
            self._rank, _ = self._rank_group.call(
                "build",
                lambda: RankTrainer(options, model, algorithm, seed=seed, device=device, engine=self.engine),
                facts=facts,
                is_long=True,
            )
        except BaseException:
            self.close()
            raise
        self._planner = StepPlanner(
            self._algorithm,
            data_ranks=self._rank.engine.layout.data_ranks,
            micro_batch_tokens=options.micro_batch_tokens,
            cost=self._rank.cost,
            batching=self._rank.engine.batching,
            teachers=teacher_servers(self._algorithm, model, vocabulary=self._rank.config.vocab_size),
        )
        self._peak_flops = options.peak_flops or peak_flops(device)
        self._limits = StepLimits(self._algorithm)
        self.row_limits = row_limits_of(self._rank.config)
        """Limits of the rows that it can train."""
        self._state = StepState(
            updates=0,
            critic_updates=0,
            probe_text=random_probe_text(
                self._rank.config.vocab_size,
                sequences=options.probe_sequences,
                tokens=min(16, options.probe_tokens),
                seed=seed,
            ),
        )

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Runs the optimizer steps of a batch without its bad rows; none if all are bad. Raises: InvalidInput after
        too many steps that count as failed; Unavailable when a rank is lost."""
        began = time.perf_counter()
        batch, dropped = without_bad_rows(
            batch, self.row_limits, self._algorithm.teachers, excluded_nodes=self._limits.excluded_nodes
        )
        if not batch.rows:
            return {"updates": 0.0, **dropped}
        plan = self._planner.plan(batch)
        sequence_ranks = self._rank.engine.layout.sequence_ranks
        shares = [plan.shares[rank // sequence_ranks] for rank in range(self._rank_group.ranks)]
        messages = []
        for share in shares[1:]:
            facts, arrays = share.encode()
            messages.append(Message(facts=facts, arrays=arrays))
        result, _ = self._call("step", lambda: self._rank.step(shares[0]), messages=messages)
        limits = {"sequences": self._options.probe_sequences, "tokens": self._options.probe_tokens}
        self._state = StepState(
            updates=self._state.updates + len(result.updates),
            critic_updates=self._state.critic_updates + len(result.critic_updates),
            probe_text=probe_text_from_batch(batch, **limits) or self._state.probe_text,
        )
        duration_s = time.perf_counter() - began
        peak = None if self._peak_flops is None else self._peak_flops * self._rank_group.ranks
        metrics = step_metrics(batch, plan, result, duration_s=duration_s, peak_flops=peak)
        self._limits.check(batch, result, metrics)
        return {**metrics, **dropped}

    @property
    def batching(self) -> BatchingFacts:
        """Batching of the policy's passes, and why."""
        return self._rank.engine.choice.facts

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the model's weights, in the type they are rounded to."""
        return self._rank.published_shapes

    @property
    def frozen_base(self) -> FrozenBase | None:
        """The model without its adapters; None without adapters."""
        return frozen_base(self._rank.adapters, self._rank.engine.published_dtype, write=self._write_base)

    def snapshot(self, staged: StagedVersion) -> None:
        """Writes the rounded weights: each rank its shards, directly into the staging buffer."""
        self._call("snapshot", lambda: self._rank.snapshot(staged), facts=snapshot_facts(staged))

    def probe(self) -> Probe:
        """Returns scored sequences of the last batch."""
        text = self._state.probe_text
        numbers = self._state.numbers()
        facts = {"sequences": numbers["probe"], "scored_from": numbers["scored_from"]}
        probe, _ = self._call("probe", lambda: self._rank.probe(text), facts=facts)
        return probe

    def capture(self) -> "CapturedShards":
        """Copies weights, optimizer and the probe's sequences to the hosts of the ranks."""
        size_bytes, answers = self._call("capture", self._rank.capture)
        return CapturedShards(
            rank_group=self._rank_group,
            rank=self._rank,
            state=self._state,
            size_bytes=size_bytes + sum(answer.facts["size_bytes"] for answer in answers),
        )

    def load(self, folder: Path) -> None:
        """Restores what `capture` captured on any number of ranks; all ranks read their files before any changes."""
        check_adapters(folder, self._rank.adapters)
        state = StepState.read(folder)
        self._call("read", lambda: self._rank.read(folder), facts={"folder": str(folder.absolute())}, is_long=True)
        counts = {"updates": state.updates, "critic_updates": state.critic_updates}
        self._call("restore", lambda: self._rank.restore(**counts), facts={"counts": counts})
        self._state = state

    def close(self) -> None:
        """Ends the other ranks."""
        atexit.unregister(self.close)
        self._rank_group.close()

    def _write_base(self, staged: StagedVersion) -> None:
        facts = snapshot_facts(staged)
        self._call("snapshot_base", lambda: self._rank.snapshot_base(staged), facts=facts, is_long=True)

    def _call(self, command: str, own: Callable[[], T], **arguments: Any) -> tuple[T, list[Message]]:
        return self._rank_group.call(command, own, calls=lambda: self._rank.calls, **arguments)


class CapturedShards:
    """State that the ranks have captured. Implements `CapturedState`."""

    def __init__(self, *, rank_group: RankGroup, rank: RankTrainer, state: StepState, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        """Size of the state over all ranks."""
        self._rank_group = rank_group
        self._rank = rank
        self._state = state

    def write(self, folder: Path) -> None:
        """Writes the files of all ranks, while a step may run; the folder must be the same on every rank's host.

        Raises: OSError; Unavailable when a rank is lost.
        """
        own, answers = self._rank_group.call(
            "write",
            lambda: self._rank.write(folder),
            facts={"folder": str(folder.absolute())},
            queue="write",
            is_long=True,
        )
        index = joined_index([own, *(answer.facts["index"] for answer in answers)])
        files = {INDEX: index, STATE: self._state.numbers(), **adapter_files(self._rank.adapters)}
        for name, numbers in files.items():
            state_files.write_numbers(folder / name, numbers)
