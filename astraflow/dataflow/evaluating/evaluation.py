"""One evaluation of a run: its tasks, its round, and the rounds before."""

from collections.abc import Iterable, Mapping
from typing import Any

from astraflow.contract.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.evaluating.round import Request, Round, Rounds
from astraflow.dataflow.evaluating.schedule import Schedule
from astraflow.dataflow.evaluating.scores import scores
from astraflow.dataflow.flow import Flow


class Evaluation:
    """A flow that feeds no stream, and what is to be known of it. At most one of its rounds runs.

    asked ──none runs──► running ──every sample is back──► done
      └──one runs──► waiting ──it ended──► running ──stopped by a person──► stopped
                       └──a newer one was asked for──► forgotten

    """

    def __init__(self, flow: Flow, rounds: Rounds, schedule: Schedule, *, right_from: float) -> None:
        """flow: of the groups that `rounds` issues."""
        self.flow = flow
        self.rounds = rounds
        self.waiting: Request | None = None
        self.ended: list[EvaluationReport] = []
        """Every round that ended, oldest first."""
        self._schedule = schedule
        self._right_from = right_from

    @property
    def id(self) -> FlowId:
        """Its name in the recipe."""
        return self.flow.id

    def is_due(self, version: Version) -> bool:
        """Whether the recipe wants a round of this version, to which all its policies have come."""
        return self._schedule.is_due(version)

    @property
    def is_complete(self) -> bool:
        """Whether a round runs of which every sample is back."""
        return self.rounds.round is not None and not self.rounds.has_more and not self.flow.open

    def end(self, state: EvaluationState, *, at: float) -> EvaluationReport:
        """The round that runs is over; returns what it found."""
        round_ = self.rounds.round
        assert round_ is not None  # noqa: S101 (only a round that runs can end)
        report = self._report(round_, state, finished_at=at)
        self.rounds.end()
        self.ended.append(report)
        return report

    def running(self) -> EvaluationReport | None:
        """The round that runs, if any."""
        round_ = self.rounds.round
        return None if round_ is None else self._report(round_, EvaluationState.RUNNING, finished_at=None)

    def reports(self) -> tuple[EvaluationReport, ...]:
        """The round that ended last, the one that runs and the one that waits, where there are any."""
        running = self.running()
        return (
            *self.ended[-1:],
            *([running] if running else []),
            *([self._report_waiting(self.waiting)] if self.waiting else []),
        )

    def restore(self, ended: Iterable[EvaluationReport]) -> None:
        """The rounds that ended before the service stopped."""
        self.ended = [report for report in ended if report.flow == self.id]

    def state_dict(self) -> dict[str, Json]:
        """The flow with its round, what waits, and the schedule."""
        return {
            "flow": self.flow.state_dict(),
            "waiting": self.waiting.state_dict() if self.waiting else None,
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.flow.load_state_dict(state["flow"])
        self.waiting = Request.from_state(state["waiting"]) if state["waiting"] else None
        self._schedule.load_state_dict(state["schedule"])

    def _report(self, round_: Round, state: EvaluationState, *, finished_at: float | None) -> EvaluationReport:
        succeeded, samples = self.rounds.succeeded(), self.rounds.samples
        back = [episode for group in self.flow.open.values() for episode in group.episodes.values()]
        return EvaluationReport(
            flow=self.id,
            round=round_.number,
            versions=dict(round_.request.versions),
            state=state,
            done=len(succeeded) * samples + len(back),
            total=self.rounds.prompts * samples,
            masked=sum(samples - count for count in succeeded) + sum(episode.failure is not None for episode in back),
            failed=succeeded.count(0),
            scores=() if finished_at is None else self._scores(),
            actor=round_.request.actor,
            reason=round_.request.reason,
            asked_at=round_.request.asked_at,
            started_at=round_.started_at,
            finished_at=finished_at,
        )

    def _report_waiting(self, request: Request) -> EvaluationReport:
        return EvaluationReport(
            flow=self.id,
            round=0,
            versions=dict(request.versions),
            state=EvaluationState.WAITING,
            done=0,
            total=self.rounds.prompts * self.rounds.samples,
            masked=0,
            failed=0,
            scores=(),
            actor=request.actor,
            reason=request.reason,
            asked_at=request.asked_at,
            started_at=None,
            finished_at=None,
        )

    def _scores(self) -> tuple[EvaluationScore, ...]:
        outcomes = self.rounds.outcomes()
        return tuple(
            EvaluationScore(policy=policy, name=name, value=estimate.value, error=estimate.error)
            for policy in self.flow.policies
            for name, estimate in self._scores_of(policy, outcomes).items()
        )

    def _scores_of(self, policy: PolicyId, outcomes: Iterable[Iterable[Mapping[PolicyId, Any]]]) -> dict[str, Any]:
        of_policy = ([sample[policy] for sample in outcome if policy in sample] for outcome in outcomes)
        return scores(of_policy, samples=self.rounds.samples, right_from=self._right_from)
