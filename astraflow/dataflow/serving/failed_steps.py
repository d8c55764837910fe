"""Steps that ended their trainer: whether their batch is delivered again, set aside, or not the cause."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from astraflow.contract.batches import StepEnd, StepFailure
from astraflow.contract.ids import BatchId, PolicyId
from astraflow.contract.values import Json

LIMIT = 6
"""Sum of the weights of a batch's failed steps at which the batch is set aside: two errors, or three ends without a
message."""

WEIGHTS = {StepEnd.ERROR: 3, StepEnd.UNEXPLAINED: 2, StepEnd.STOPPED: 0}
"""Weight of a failed step. An end without a message is mostly a kill that has nothing to do with the batch."""

MAX_IN_A_ROW = 5
"""Batches that are set aside without an acknowledged step in between; then the batches are not the cause. Count."""

MAX_FAILURES = 20
"""Latest failures that are retained: a trainer that is started again and again would add to them without end. Count."""

MAX_ERROR_CHARS = 1000
"""Length of an error that is retained."""


class Verdict(Enum):
    """Consequence of a failed step for its batch."""

    NOTHING = "nothing"
    """The report is a repetition, or the trainer was stopped on purpose."""
    REDELIVER = "redeliver"
    SET_ASIDE = "set_aside"
    OTHER_CAUSE = "other_cause"
    """The batches before it were set aside too, without a step in between."""


@dataclass(slots=True)
class FailedSteps:
    """Failed steps of one stream since they matter: those of open batches, and of batches set aside in a row."""

    failures: list[StepFailure] = field(default_factory=list)
    """Failures that count, of open batches. Oldest first."""
    past: list[str] = field(default_factory=list)
    """Attempts since the last acknowledged step on batches that are not open any more."""
    in_a_row: int = 0
    """Batches set aside since the last acknowledged step. Count."""

    def observe(self, failure: StepFailure, *, is_hung: bool) -> Verdict:
        """Counts the failed step of an open batch. is_hung: it ran so long that it would not have ended, which
        counts as an error however it ended."""
        known = {*self.past, *(each.attempt for each in self.failures)}
        end = StepEnd.ERROR if is_hung else failure.end
        if failure.attempt in known or not WEIGHTS[end]:
            return Verdict.NOTHING
        error = failure.error or (f"the step ran for {failure.step_s:.0f} s and was ended" if is_hung else "")
        self.failures = [*self.failures, replace(failure, end=end, error=error[:MAX_ERROR_CHARS])][-MAX_FAILURES:]
        if sum(WEIGHTS[each.end] for each in self.of(failure.batch)) < LIMIT:
            return Verdict.REDELIVER
        return Verdict.OTHER_CAUSE if self.in_a_row >= MAX_IN_A_ROW else Verdict.SET_ASIDE

    def of(self, batch: BatchId) -> list[StepFailure]:
        """Returns the counted failures of a batch, oldest first."""
        return [failure for failure in self.failures if failure.batch == batch]

    def forget_acknowledged(self, batch: BatchId) -> None:
        """Forgets the failures of a trained batch, and the batches set aside before it."""
        self.failures = [failure for failure in self.failures if failure.batch != batch]
        self.past, self.in_a_row = [], 0

    def count_set_aside(self, open_batches: Collection[BatchId]) -> None:
        """Counts a batch that was set aside. open_batches: those that are still open."""
        self.forget_others(open_batches)
        self.in_a_row += 1

    def forget_others(self, open_batches: Collection[BatchId]) -> None:
        """Forgets the failures of batches that are not open any more: other batches get their numbers."""
        self.past += [failure.attempt for failure in self.failures if failure.batch not in open_batches]
        self.failures = [failure for failure in self.failures if failure.batch in open_batches]

    def state_dict(self) -> dict[str, Json]:
        failures: list[Json] = [{**asdict(failure), "end": failure.end.value} for failure in self.failures]
        return {"failures": failures, "past": list(self.past), "in_a_row": self.in_a_row}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "FailedSteps":
        """Returns the failures of a saved state."""
        return cls(
            failures=[_failure(values) for values in state["failures"]],
            past=list(state["past"]),
            in_a_row=state["in_a_row"],
        )


def _failure(values: Mapping[str, Any]) -> StepFailure:
    named = {"policy": PolicyId(values["policy"]), "batch": BatchId(values["batch"]), "end": StepEnd(values["end"])}
    return StepFailure(**{**values, **named})
