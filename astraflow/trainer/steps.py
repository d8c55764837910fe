"""A training step: planned on the first rank, run on every rank with the rank's own share of the batch.

    first rank   plan: advantages of rows ─► optimizer batches ─► one share for each data rank
    every rank   passes without gradient that something needs ─► advantages of tokens
                 for each optimizer batch: prepare the loss ─► forward and backward of each pack ─► update

Neither the number of ranks nor the packs change the gradient: every loss is normalised by statistics of its whole
optimizer batch.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import WITHOUT_RECORDED_LOGPROBS, losses
from astraflow.algorithms.mismatch import MismatchSums, measure_mismatch
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, RowData, TokenData, TokenScores
from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput
from astraflow.trainer.engines.base import Engine, ModelRole, Pack, UpdateResult
from astraflow.trainer.flops import ForwardCost
from astraflow.trainer.shares import OptimizerBatch, Plan, Share, plan_step, row_data

_ROLES = {Pass.REFERENCE: ModelRole.REFERENCE, Pass.TEACHER: ModelRole.TEACHER}
"""Roles of the passes at the start of a batch, beside the policy's own."""
_SUPPORTED = frozenset({Pass.CURRENT, Pass.PROXIMAL, *_ROLES})


class StepPlanner:
    """Plans steps on the first rank."""

    def __init__(
        self, algorithm: AlgorithmConfig, *, data_ranks: int, micro_batch_tokens: int, cost: ForwardCost
    ) -> None:
        self._algorithm = algorithm
        self._advantages = [advantages.build(spec) for spec in algorithm.advantages]
        self._data_ranks = data_ranks
        self._micro_batch_tokens = micro_batch_tokens
        self._cost = cost

    def plan(self, batch: Batch) -> Plan:
        """Computes the advantages of the rows and divides the batch. Raises: InvalidInput for a row without context."""
        rows = row_data(
            batch,
            is_excluded=[self._algorithm.mask_truncated and row.trajectory.is_truncated for row in batch.rows],
        )
        values = torch.tensor([row.trajectory.reward for row in batch.rows], dtype=torch.float32)
        for advantage in self._advantages:
            values = advantage(values, rows)
        return plan_step(
            batch,
            rows,
            values,
            minibatches=self._algorithm.minibatches,
            data_ranks=self._data_ranks,
            max_tokens=self._micro_batch_tokens,
            cost=self._cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step, over all ranks."""

    loss: float
    """Mean over the optimizer batches."""
    updates: tuple[UpdateResult, ...]
    token_means: Mapping[str, float]
    """Metrics of the loss and the entropy, as means over the trained tokens."""
    mismatch: Mapping[str, float]
    seconds: Mapping[str, float]
    """Duration of each phase on this rank."""
    passes: float
    """Forward passes without gradient of models of the policy's size, in passes over the whole batch."""


class StepRunner:
    """Runs this rank's share of each step."""

    def __init__(self, engine: Engine, algorithm: AlgorithmConfig) -> None:
        """Raises: InvalidInput when the algorithm needs a pass that the engines do not compute."""
        self._engine = engine
        self._temperature = algorithm.temperature
        self._token_advantages = [token_advantages.build(spec) for spec in algorithm.token_advantages]
        self._loss = losses.build(algorithm.loss)
        self._reads_recorded = algorithm.loss["kind"] not in WITHOUT_RECORDED_LOGPROBS
        self._needs = self._loss.needs.union(*(advantage.needs for advantage in self._token_advantages))
        if unsupported := self._needs - _SUPPORTED:
            raise InvalidInput(
                f"cannot train with this algorithm: it needs the passes {_names(unsupported)}, the engine computes "
                f"{_names(_SUPPORTED)}; use another loss or token advantage",
                code="trainer.unsupported_pass",
            )

    def run(self, share: Share) -> StepResult:
        """Runs the passes, the gradient and the updates of a step. Collective: called on every rank."""
        engine = self._engine
        sums = _StepSums(engine.device)
        timer = _PhaseTimer(engine.device)
        with timer.phase("pass_s"):
            tokens = self._with_passes(share.token_data(engine.device), share, sums)
            if tokens.proximal_logprobs is not None and self._reads_recorded:
                sums.add_mismatch(measure_mismatch(tokens.proximal_logprobs, tokens))
        rows = _on_device(share.rows, engine.device)
        for advantage in self._token_advantages:
            tokens = advantage(tokens, rows, engine.ranks)
        token_count = sum(int(batch.lengths.sum()) for batch in share.optimizer_batches)
        end = 0
        updates = []
        for number, batch in enumerate(share.optimizer_batches):
            begin, end = end, end + batch.targets
            part, statistics = _section(tokens, begin, end), _statistics(batch, rows)
            if Pass.CURRENT in self._needs:
                with timer.phase("pass_s"):
                    share_of_tokens = statistics.tokens / max(token_count, 1)
                    part = self._with_current(part, batch, sums, is_first=number == 0, share_of_tokens=share_of_tokens)
            with timer.phase("forward_backward_s"):
                measures_mismatch = number == 0 and tokens.proximal_logprobs is None and self._reads_recorded
                loss = self._learn(batch, part, statistics, sums, measures_mismatch=measures_mismatch)
            with timer.phase("optimizer_s"):
                updates.append(engine.update(is_loss_finite=math.isfinite(loss)))
            sums.loss += loss / len(share.optimizer_batches)
        return sums.result(engine.ranks, updates=updates, tokens=token_count, seconds=timer.seconds())

    def _with_passes(self, tokens: TokenData, share: Share, sums: "_StepSums") -> TokenData:
        """Returns the tokens with the results of the passes at the start of the batch."""
        packs = [pack for batch in share.optimizer_batches for pack in batch.packs]
        by_token_advantages = frozenset[Pass]().union(*(advantage.needs for advantage in self._token_advantages))
        is_one = len(share.optimizer_batches) == 1
        results: dict[str, Tensor] = {}
        if Pass.PROXIMAL in self._needs or Pass.CURRENT in (self._needs if is_one else by_token_advantages):
            results["proximal_logprobs"] = self._logprobs(packs, ModelRole.POLICY)
            results["current_logprobs"] = results["proximal_logprobs"]
            sums.passes += 1
        for needed in sorted(
            self._needs & _ROLES.keys(), key=lambda needed: needed.value
        ):  # the same order on every rank
            results[f"{needed.value}_logprobs"] = self._logprobs(packs, _ROLES[needed])
            sums.passes += needed is not Pass.TEACHER  # whose size is another
        return replace(tokens, **results)

    def _with_current(
        self, part: TokenData, batch: OptimizerBatch, sums: "_StepSums", *, is_first: bool, share_of_tokens: float
    ) -> TokenData:
        """Returns the tokens of an optimizer batch with their logprobs under the weights before its update."""
        if is_first and part.proximal_logprobs is not None:  # no weight has changed since
            return part
        sums.passes += share_of_tokens
        return replace(part, current_logprobs=self._logprobs(batch.packs, ModelRole.POLICY))

    def _logprobs(self, packs: Sequence[Pack], role: ModelRole) -> Tensor:
        """Returns the logprobs of the packs' trained tokens, in their order."""
        scores = [self._engine.score(pack, role=role, temperature=self._temperature).logprobs for pack in packs]
        return torch.cat([torch.zeros(0, device=self._engine.device), *scores])

    def _learn(
        self,
        batch: OptimizerBatch,
        tokens: TokenData,
        statistics: BatchStatistics,
        sums: "_StepSums",
        *,
        measures_mismatch: bool,
    ) -> float:
        """Adds the gradients of all packs; returns the loss over all ranks. Awaits the device only at its end."""
        engine = self._engine
        state = self._loss.prepare(tokens, statistics, engine.ranks)
        loss = torch.zeros((), dtype=torch.float64, device=engine.device)
        end = 0
        for number, pack in enumerate(batch.packs, start=1):
            begin, end = end, end + len(pack.targets)
            part = _section(tokens, begin, end)

            def micro_batch_loss(scores: TokenScores, part: TokenData = part) -> Tensor:
                result = self._loss(scores, part, statistics, state)
                loss.add_(result.loss.detach())
                sums.add({**result.metric_sums, "entropy": scores.entropy.detach().sum()})
                if measures_mismatch:
                    sums.add_mismatch(measure_mismatch(scores.logprobs.detach(), part))
                return result.loss

            is_last = number == len(batch.packs)
            engine.learn(pack, micro_batch_loss, temperature=self._temperature, is_last=is_last)
        return float(engine.ranks.sum(loss))


class _StepSums:
    """Sums of a step on this rank. They stay on the device until the step ends."""

    def __init__(self, device: torch.device) -> None:
        self.loss = 0.0
        self.passes = 0.0
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._mismatch: MismatchSums | None = None

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Adds the sums of a micro-batch; all have the same names."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().double()

    def add_mismatch(self, sums: MismatchSums) -> None:
        """Adds the measures of a micro-batch."""
        self._mismatch = sums if self._mismatch is None else self._mismatch + sums

    def result(
        self, ranks: Ranks, *, updates: Sequence[UpdateResult], tokens: int, seconds: Mapping[str, float]
    ) -> StepResult:
        """Adds the sums of all ranks; collective. tokens: trained tokens of all ranks."""
        totals = ranks.sum(torch.stack(list(self._sums.values()))).tolist() if self._sums else []
        return StepResult(
            loss=self.loss,
            updates=tuple(updates),
            token_means={name: total / tokens for name, total in zip(self._sums, totals, strict=True)},
            mismatch={} if self._mismatch is None else self._mismatch.over(ranks).metrics(),
            seconds=seconds,
            passes=self.passes,
        )


class _PhaseTimer:
    """Durations of the phases of a step. On a GPU they are measured by events, so that the device is not awaited."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the body."""
        if not self._is_gpu:
            began = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - began
            return
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._events.append((name, first, last))

    def seconds(self) -> Mapping[str, float]:
        """Returns seconds by phase; awaits the device."""
        for name, first, last in self._events:
            last.synchronize()
            self._seconds[name] += first.elapsed_time(last) / 1000
        return self._seconds


def _names(passes: Iterable[Pass]) -> str:
    return ", ".join(sorted(needed.value for needed in passes))


def _statistics(batch: OptimizerBatch, rows: RowData) -> BatchStatistics:
    return BatchStatistics(
        tokens=int(batch.lengths.sum()),
        trajectories=int((batch.lengths > 0).sum()),
        lengths=batch.lengths.to(rows.groups.device),
        rows=rows,
    )


def _section(tokens: TokenData, begin: int, end: int) -> TokenData:
    return tokens.select(torch.arange(begin, end, device=tokens.row_indices.device))


def _on_device(rows: RowData, device: torch.device) -> RowData:
    return RowData(**{field.name: getattr(rows, field.name).to(device) for field in fields(rows)})
