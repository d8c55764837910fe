"""Evaluation of one maintainer over cases and seeds: stored results are reused; cost and time are bounded."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.errors import Unavailable
from astraflow.runtime.clock import Clock
from maintainer.agent.llm.interface import models
from maintainer.evals.case_runner import run_pair, run_rule_alone
from maintainer.evals.cases import Case
from maintainer.evals.retrying_model import RetryingModel
from maintainer.evals.scoring.results_file import ResultsFile
from maintainer.evals.scoring.scoring import PairedResult, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Budget of one maintainer, checked before each run."""

    usd: float | None = None
    """US dollars, stored results included; None for no limit. No turn of a model exceeds it: a run that it cuts has no
    score."""
    minutes: float | None = None
    """Minutes since the first run in this process; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress after a run."""

    done: int
    total: int
    seconds: float
    """Seconds since this process started this evaluation."""
    fresh: int
    """Runs in this time; the others were stored results."""
    usd: float
    paired_result: PairedResult

    @property
    def left_s(self) -> float:
        """Estimated remaining time, seconds."""
        return self.seconds / self.fresh * (self.total - self.done) if self.fresh else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Result of one maintainer."""

    model: str
    is_simulated: bool
    scores: tuple[Score, ...]
    """Scores of the cases that have a result for every seed."""
    stopped: str = ""
    """Reason why cases have no result; empty if every case has one."""


class Evaluation:
    """Evaluation of one maintainer. `run` executes the remaining cases."""

    def __init__(
        self,
        model: Mapping[str, Any],
        *,
        cases: Sequence[Case],
        seeds: Sequence[int],
        results_file: ResultsFile,
        clock: Clock,
        allowance: Allowance = Allowance(),
        is_simulated: bool = False,
        on_result: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """model: options of the model. clock: the system clock. is_simulated: marks the results as simulated.

        Raises: InvalidInput if the model cannot be built, for example without its key.
        """
        self._spec = model
        self._cases = cases
        self._seeds = seeds
        self._results_file = results_file
        self._clock = clock
        self._allowance = allowance
        self._on_result = on_result
        self._began_at = clock.now()
        self._usd = 0.0
        self._done = self._fresh = 0
        self._is_cut = False
        built = models.build(model)  # only for its name; each run builds its own
        self.name, self.is_simulated = built.model, built.is_simulated or is_simulated
        self._probe = built

    async def run(self) -> EvaluationResult:
        """Runs all cases. Raises: Unavailable if the model's service stays unreachable; results so far are stored."""
        await self._probe.close()
        self._began_at = self._clock.now()  # other evaluations may have run since construction
        scores: list[Score] = []
        for case in self._cases:
            paired_results = [paired_result async for paired_result in self._paired_results(case)]
            if len(paired_results) < len(self._seeds):
                break
            scores.append(Score(paired_results=tuple(paired_results)))
        is_complete = len(scores) == len(self._cases)
        return EvaluationResult(
            model=self.name,
            is_simulated=self.is_simulated,
            scores=tuple(scores),
            stopped="" if is_complete else self._spent_budget(),
        )

    async def _paired_results(self, case: Case) -> AsyncIterator[PairedResult]:
        """Yields the result of every seed until the budget is spent."""
        for seed in self._seeds:
            at_seed = replace(case, seed=seed)
            paired_result = self._results_file.pair(at_seed, self._spec)
            if paired_result is None:
                if self._spent_budget():
                    return
                paired_result = await self._run_seed(at_seed)
                if paired_result.is_cut:
                    self._usd, self._is_cut = self._usd + paired_result.use.usd, True
                    return
            self._count(paired_result)
            yield paired_result

    async def _run_seed(self, case: Case) -> PairedResult:
        rule = self._results_file.rule(case)
        if rule is None:
            rule = await run_rule_alone(case)
            self._results_file.add_rule(case, rule)
        llm = RetryingModel(models.build(self._spec), self._clock)
        try:
            usd_max = self._allowance.usd - self._usd if self._allowance.usd is not None else None
            paired_result = await run_pair(case, llm, rule=rule, usd_max=usd_max)
        finally:
            await llm.close()
        if llm.gave_up is not None:
            raise Unavailable(
                f"cannot evaluate {self.name!r}: {llm.gave_up}; run the same command again to continue after the "
                f"{self._done} results in {str(self._results_file.path)!r}",
                code="evaluation.model_unavailable",
            )
        if not paired_result.is_cut:
            self._results_file.add_pair(case, self._spec, paired_result)
        self._fresh += 1
        return paired_result

    def _spent_budget(self) -> str:
        """Returns the budget that is spent, as text; empty if none is."""
        usd, minutes = self._allowance.usd, self._allowance.minutes
        if usd is not None and (self._is_cut or self._usd >= usd):
            return f"{self._usd:.2f} of {usd:.2f} US dollars are spent"
        if minutes is not None and self._clock.now() - self._began_at >= 60 * minutes:
            return f"{minutes:g} minutes have passed"
        return ""

    def _count(self, paired_result: PairedResult) -> None:
        self._done += 1
        self._usd += paired_result.use.usd
        self._on_result(
            Progress(
                done=self._done,
                total=len(self._cases) * len(self._seeds),
                seconds=self._clock.now() - self._began_at,
                fresh=self._fresh,
                usd=self._usd,
                paired_result=paired_result,
            )
        )
