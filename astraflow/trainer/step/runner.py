"""A training step: planned on the first rank, run on every rank with the rank's own share of the batch.

    first rank   plan: advantages of rows ─► optimizer batches ─► one share for each data rank
    every rank   passes without gradient that something needs ─► advantages of tokens
                 for each optimizer batch, for the policy and then its critic, if any:
                     prepare the loss ─► forward and backward of each pack ─► update

Neither the number of ranks nor the packs change the gradient: every loss is normalised by statistics of its whole
optimizer batch.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from astraflow.algorithms.base import token_advantages
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import WITHOUT_RECORDED_LOGPROBS, losses
from astraflow.algorithms.losses.critic import explained_variance
from astraflow.algorithms.mismatch import MismatchSums, measure_mismatch
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, RowData, TokenData, TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.trainer.engines.base import Engine, ModelRole, Pack, UpdateResult
from astraflow.trainer.engines.phase_timer import PhaseTimer
from astraflow.trainer.step.flops import FORWARD_AND_BACKWARD
from astraflow.trainer.step.planner import plugin_errors
from astraflow.trainer.step.shares import OptimizerBatch, Share
from astraflow.trainer.step.teacher_passes import OwnTeachers

_CHANGED, _REPLAYED = "changed_experts", "replayed_experts"
"""Names of the replayed experts that the router would not have chosen, whose share is a metric, and of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step, over all ranks."""

    loss: float
    """Policy's loss, mean over the optimizer batches; not a number when only the critic was trained."""
    updates: tuple[UpdateResult, ...]
    """Updates of the policy; empty when only the critic was trained."""
    critic_updates: tuple[UpdateResult, ...]
    """Updates of the critic; empty without a critic."""
    critic: Mapping[str, float]
    """Metrics of the critic; empty without a critic."""
    token_means: Mapping[str, float]
    """Metrics of the losses and the entropy, as means over the trained tokens."""
    mismatch: Mapping[str, float]
    seconds: Mapping[str, float]
    """Duration of each phase on this rank."""
    passes: float
    """Forward passes without gradient of models of the policy's size, in passes over the whole batch."""
    critic_passes: float
    """Forward passes of the critic over the whole batch; a pass with gradient counts as three."""
    row_mismatch: Sequence[Sequence[float]] = ()
    """Tokens of the trainer's own version, and sums of their k3, by row; empty when nothing was measured."""


class StepRunner:
    """Runs this rank's share of each step."""

    def __init__(self, engine: Engine, algorithm: AlgorithmConfig) -> None:
        """Raises: InvalidInput when the algorithm needs values, but has no critic."""
        self._engine = engine
        self._temperature = algorithm.temperature
        self._balance = algorithm.balance_coefficient
        self._max_mismatch = algorithm.max_mismatch
        self._token_advantages = [token_advantages.build(spec) for spec in algorithm.token_advantages]
        self._names = [f"the token advantage {spec['kind']!r}" for spec in algorithm.token_advantages]
        self._loss_name = f"the loss {algorithm.loss['kind']!r}"
        self._losses = {ModelRole.POLICY: losses.build(algorithm.loss)}
        self._reads_recorded = algorithm.loss["kind"] not in WITHOUT_RECORDED_LOGPROBS
        self._teachers = OwnTeachers(engine, algorithm)
        self._critic_steps = 0
        if algorithm.critic is not None:
            self._losses[ModelRole.CRITIC] = losses.build(algorithm.critic.loss)
            self._critic_steps = algorithm.critic.warmup_steps
        self._needs = frozenset[Pass]().union(
            *(loss.needs for loss in self._losses.values()), *(advantage.needs for advantage in self._token_advantages)
        )
        if Pass.VALUES in self._needs and algorithm.critic is None:
            raise InvalidInput(
                "cannot train with this algorithm: it needs the values of a critic and has none; set critic = {}, or "
                "use another loss or token advantage",
                code="trainer.no_critic",
            )

    def run(self, share: Share) -> StepResult:
        """Runs the passes, the gradient and the updates of a step. Collective: called on every rank."""
        timer = PhaseTimer(self._engine.device)
        with timer.running():
            sums = self._run(share, timer)
        return sums.result(self._engine.ranks, seconds=timer.seconds())

    def _run(self, share: Share, timer: PhaseTimer) -> "_StepSums":
        engine = self._engine
        sums = _StepSums(engine.device, max_mismatch=self._max_mismatch)
        with timer.phase("pass_s"):
            tokens = self._with_passes(share.token_data(engine.device), share, sums)
            if tokens.proximal_logprobs is not None and self._reads_recorded:
                sums.add_mismatch(measure_mismatch(tokens.proximal_logprobs, tokens, rows=len(share.rows.groups)))
        rows = _on_device(share.rows, engine.device)
        for name, advantage in zip(self._names, self._token_advantages, strict=True):
            with plugin_errors(name):
                tokens = advantage(tokens, rows, engine.ranks)
        sums.tokens = sum(int(batch.lengths.sum()) for batch in share.optimizer_batches)
        if self._reads_recorded and ModelRole.CRITIC not in self._losses:  # by whose values nearly every token has one
            sums.add({"signal_fraction": (tokens.advantages != 0).sum()})
        trained = [role for role in self._losses if role is ModelRole.CRITIC or share.version >= self._critic_steps]
        end = 0
        for number, batch in enumerate(share.optimizer_batches):
            begin, end = end, end + batch.targets
            part, statistics = _section(tokens, begin, end), _statistics(batch, rows)
            for role in trained:
                self._train(role, batch, part, statistics, sums, timer, is_first=number == 0)
        if tokens.values is not None and tokens.returns is not None:
            sums.explained_variance = explained_variance(tokens.values, tokens.returns, engine.ranks)
        return sums

    def _train(
        self,
        role: ModelRole,
        batch: OptimizerBatch,
        tokens: TokenData,
        statistics: BatchStatistics,
        sums: "_StepSums",
        timer: PhaseTimer,
        *,
        is_first: bool,
    ) -> None:
        """Runs one optimizer step of the policy or the critic."""
        share_of_tokens = statistics.tokens / max(sums.tokens, 1)
        if role is ModelRole.CRITIC:
            sums.critic_passes += FORWARD_AND_BACKWARD * share_of_tokens
        elif Pass.CURRENT in self._needs:
            with timer.phase("pass_s"):
                tokens = self._with_current(tokens, batch, sums, is_first=is_first, share_of_tokens=share_of_tokens)
        with timer.phase("forward_backward_s"):
            is_unmeasured = is_first and tokens.proximal_logprobs is None
            measures_mismatch = role is ModelRole.POLICY and is_unmeasured and self._reads_recorded
            loss = self._learn(role, batch, tokens, statistics, sums, measures_mismatch=measures_mismatch)
        with timer.phase("optimizer_s"):
            sums.updates[role].append(self._engine.update(role=role, is_loss_finite=math.isfinite(loss)))
        sums.losses[role].append(loss)

    def _with_passes(self, tokens: TokenData, share: Share, sums: "_StepSums") -> TokenData:
        """Returns the tokens with the results of the passes at the start of the batch."""
        packs = [pack for batch in share.optimizer_batches for pack in batch.packs]
        by_token_advantages = frozenset[Pass]().union(*(advantage.needs for advantage in self._token_advantages))
        is_one = len(share.optimizer_batches) == 1
        results: dict[str, Tensor] = {}
        if Pass.PROXIMAL in self._needs or Pass.CURRENT in (self._needs if is_one else by_token_advantages):
            results["proximal_logprobs"] = self._scored(packs, ModelRole.POLICY)
            results["current_logprobs"] = results["proximal_logprobs"]
            sums.passes += 1
        if Pass.REFERENCE in self._needs:
            results["reference_logprobs"] = self._scored(packs, ModelRole.REFERENCE)
            sums.passes += 1
        if Pass.TEACHER in self._needs:
            results |= self._teachers.scores(tokens, packs, share.teacher_passes, share.temperature)
            sums.add({"teacher_missing": (~results["teacher_logprobs"].isfinite()).sum()})
        if Pass.VALUES in self._needs:
            results["values"] = self._scored(packs, ModelRole.CRITIC)
            sums.critic_passes += 1
        return replace(tokens, **results)

    def _with_current(
        self, part: TokenData, batch: OptimizerBatch, sums: "_StepSums", *, is_first: bool, share_of_tokens: float
    ) -> TokenData:
        """Returns the tokens of an optimizer batch with their logprobs under the weights before its update."""
        if is_first and part.proximal_logprobs is not None:  # no weight has changed since
            return part
        sums.passes += share_of_tokens
        return replace(part, current_logprobs=self._scored(batch.packs, ModelRole.POLICY))

    def _scored(self, packs: Sequence[Pack], role: ModelRole) -> Tensor:
        """Returns the logprobs of the packs' trained tokens, or the values of a critic, in their order."""
        scores = [self._engine.score(pack, role=role, temperature=self._temperature) for pack in packs]
        results = [part.logprobs if part.values is None else part.values for part in scores]
        return torch.cat([torch.zeros(0, device=self._engine.device), *results])

    def _learn(
        self,
        role: ModelRole,
        batch: OptimizerBatch,
        tokens: TokenData,
        statistics: BatchStatistics,
        sums: "_StepSums",
        *,
        measures_mismatch: bool,
    ) -> float:
        """Adds the gradients of all packs; returns the loss over all ranks. Awaits the device only at its end."""
        engine, own_loss = self._engine, self._losses[role]
        with plugin_errors(self._loss_name):
            state = own_loss.prepare(tokens, statistics, engine.ranks)
        loss = torch.zeros((), dtype=torch.float64, device=engine.device)
        candidates = _candidates(tokens) if role is ModelRole.POLICY else None
        end = 0
        for number, pack in enumerate(batch.packs, start=1):
            begin, end = end, end + len(pack.targets)
            part = _section(tokens, begin, end)
            if candidates is not None:
                pack = replace(pack, candidates=candidates[begin:end])

            def micro_batch_loss(scores: TokenScores, part: TokenData = part) -> Tensor:
                with plugin_errors(self._loss_name):
                    result = own_loss(scores, part, statistics, state)
                loss.add_(result.loss.detach())
                entropy = {"entropy": scores.entropy.detach().sum()} if role is ModelRole.POLICY else {}
                sums.add({**result.metric_sums, **entropy})
                if measures_mismatch:
                    sums.add_mismatch(
                        measure_mismatch(scores.logprobs.detach(), part, rows=len(statistics.rows.groups))
                    )
                if scores.replayed_choices is not None:
                    changed, replayed = scores.replayed_choices
                    sums.add({_CHANGED: changed, _REPLAYED: replayed})
                if scores.balance is None:
                    return result.loss
                sums.add({"balance_loss": len(part.row_indices) * scores.balance})
                return result.loss + self._balance * len(part.row_indices) / max(statistics.tokens, 1) * scores.balance

            is_last = number == len(batch.packs)
            engine.learn(pack, micro_batch_loss, role=role, temperature=self._temperature, is_last=is_last)
        return float(engine.ranks.sum(loss))


class _StepSums:
    """Sums of a step on this rank. They stay on the device until the step ends."""

    def __init__(self, device: torch.device, *, max_mismatch: float | None) -> None:
        self.tokens = 0
        """Trained tokens of all ranks."""
        self.losses: dict[ModelRole, list[float]] = defaultdict(list)
        self.updates: dict[ModelRole, list[UpdateResult]] = defaultdict(list)
        self.explained_variance = math.nan
        self.passes = 0.0
        self.critic_passes = 0.0
        self._device = device
        self._max_mismatch = max_mismatch
        self._sums: dict[str, Tensor] = {}
        self._mismatch: MismatchSums | None = None

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Adds the sums of a micro-batch; all have the same names."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().double()

    def add_mismatch(self, sums: MismatchSums) -> None:
        """Adds the measures of a micro-batch."""
        self._mismatch = sums if self._mismatch is None else self._mismatch + sums

    def result(self, ranks: Ranks, *, seconds: Mapping[str, float]) -> StepResult:
        """Adds the sums of all ranks; collective."""
        policy, critic = (self.updates[role] for role in (ModelRole.POLICY, ModelRole.CRITIC))
        totals = ranks.sum(torch.stack(list(self._sums.values()))).tolist() if self._sums else []
        means = {name: total / max(self.tokens, 1) for name, total in zip(self._sums, totals, strict=True)}
        if replayed := means.pop(_REPLAYED, 0.0):
            means[_CHANGED] /= replayed
        mismatch = None if self._mismatch is None else self._mismatch.over(ranks)
        return StepResult(
            loss=_mean(self.losses[ModelRole.POLICY]),
            updates=tuple(policy),
            critic_updates=tuple(critic),
            critic={
                "value_loss": _mean(self.losses[ModelRole.CRITIC]),
                "value_explained_variance": self.explained_variance,
                "critic_grad_norm": _mean([update.grad_norm for update in critic]),
            }
            if critic
            else {},
            token_means=means,
            mismatch={} if mismatch is None else mismatch.metrics(bound=self._max_mismatch),
            row_mismatch=() if mismatch is None else mismatch.rows.tolist(),
            seconds=seconds,
            passes=self.passes,
            critic_passes=self.critic_passes,
        )


def _mean(values: Sequence[float]) -> float:
    """Returns the mean; not a number when there are no values."""
    return sum(values) / len(values) if values else math.nan


def _statistics(batch: OptimizerBatch, rows: RowData) -> BatchStatistics:
    return BatchStatistics(
        tokens=int(batch.lengths.sum()),
        trajectories=int((batch.lengths > 0).sum()),
        lengths=batch.lengths.to(rows.groups.device),
        rows=rows,
    )


def _candidates(tokens: TokenData) -> Tensor | None:
    """Returns the tokens whose logprobs the loss reads beside those of the sampled ones, `[tokens, k]`, on the CPU."""
    heads = [head.long() for head in (tokens.top_tokens, tokens.teacher_top_tokens) if head is not None]
    return torch.cat(heads, 1).cpu() if heads else None


def _section(tokens: TokenData, begin: int, end: int) -> TokenData:
    return tokens.select(torch.arange(begin, end, device=tokens.row_indices.device))


def _on_device(rows: RowData, device: torch.device) -> RowData:
    return RowData(**{field.name: getattr(rows, field.name).to(device) for field in fields(rows)})
