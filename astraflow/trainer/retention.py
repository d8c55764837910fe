"""Rule of the checkpoints that stay on disk: the newest, every so many steps, and the best by an evaluation."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class KeepBest(Config):
    """Checkpoints that stay for their score in an evaluation of the run."""

    evaluation: Annotated[str, SettableBy.AGENT]
    """Name of the evaluation."""
    score: Annotated[str, SettableBy.AGENT] = ""
    """Name of the score, such as `avg@4`; empty for the first one of the policy."""
    mode: Annotated[Literal["max", "min"], SettableBy.AGENT] = "max"
    """`max`: the largest score is the best."""
    count: int = Field(default=1, ge=1)
    """Number of best checkpoints that stay."""


def scores_of(
    rounds: Iterable[EvaluationReport], policy: PolicyId, score: str
) -> tuple[dict[int, float], frozenset[int]]:
    """Returns the scores of a policy's versions, the latest of each, and the versions whose evaluation runs.

    score: its name; empty for the first one.
    """
    scores, running = dict[int, float](), set[int]()
    for report in sorted(rounds, key=lambda report: report.round):
        version = report.versions.get(policy)
        if version is None:
            continue
        if report.state is EvaluationState.RUNNING:
            running.add(int(version))
        named = [entry.value for entry in report.scores if entry.policy == policy and score in ("", entry.name)]
        if report.state is EvaluationState.DONE and named:
            scores[int(version)] = named[0]
    return scores, frozenset(running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Checkpoints that stay. Those that other rules do not keep are removed, oldest first in what is too large."""

    newest: int
    """Number of newest checkpoints."""
    every: int | None = None
    """Multiples of this number of steps stay; None: no others."""
    best: KeepBest | None = None
    max_bytes: int | None = None
    """Limit of the size of all, which the newest alone may exceed; None: unlimited."""

    def surplus(
        self, sizes: Mapping[int, int], *, scores: Mapping[int, float], pending: Collection[int] = ()
    ) -> list[int]:
        """Returns the steps of the checkpoints to remove.

        sizes: bytes by step, which only a limit of the size reads. scores: by step, as far as they were evaluated.
        pending: steps that may get a score.

        >>> rule = Retention(newest=2, every=10, best=KeepBest(evaluation="progress"))
        >>> rule.surplus(dict.fromkeys((8, 9, 10, 11, 12, 13, 14), 1), scores={8: 0.2, 9: 0.7, 12: 0.6}, pending={11})
        [12, 8]
        """
        newest = sorted(sizes, reverse=True)[: self.newest]
        periodic = [step for step in sorted(sizes, reverse=True) if self.every and step % self.every == 0]
        # Under the limit of the size, what stands first stays longest.
        evaluated = sorted(pending, reverse=True)
        kept = dict.fromkeys((*newest[:1], *self._best(scores, sizes), *newest, *evaluated, *periodic))
        removed = set(sizes) - set(kept)
        if self.max_bytes is not None:
            removed |= self._too_large([step for step in kept if step in sizes], sizes, self.max_bytes)
        return sorted(removed, reverse=True)

    def _best(self, scores: Mapping[int, float], sizes: Mapping[int, int]) -> list[int]:
        if self.best is None:
            return []
        sign = 1 if self.best.mode == "max" else -1
        present = [step for step in scores if step in sizes]
        return sorted(present, key=lambda step: (sign * scores[step], step), reverse=True)[: self.best.count]

    @staticmethod
    def _too_large(kept: list[int], sizes: Mapping[int, int], max_bytes: int) -> set[int]:
        total, removed = 0, set[int]()
        for index, step in enumerate(kept):
            total += sizes[step]
            if index > 0 and total > max_bytes:
                removed.add(step)
        return removed
