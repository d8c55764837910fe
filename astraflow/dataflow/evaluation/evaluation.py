"""One evaluation of a run: its tasks, the schedule of its rounds, the current round, and the past rounds."""

from collections.abc import Iterable, Mapping
from typing import Any

from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.values import Json
from astraflow.dataflow.evaluation.rounds import EvaluationRequest, EvaluationRounds, Round
from astraflow.dataflow.evaluation.scores import samples_by_slot, score_name, scores
from astraflow.dataflow.flow import Flow


class Schedule:
    """Schedule of the rounds that the recipe requests.

    Due once at every multiple of `every_versions`, even if versions in between are skipped.

    >>> schedule = Schedule(every_versions=10, at_start=False)
    >>> [version for version in (0, 4, 9, 12, 13, 35, 40) if schedule.is_due(Version(version))]
    [12, 35, 40]
    """

    def __init__(self, *, every_versions: int, at_start: bool) -> None:
        self._every_versions = every_versions
        self._at_start = at_start
        self._seen: Version | None = None

    def is_due(self, version: Version) -> bool:
        """Returns whether a round is to begin with the trainers' version; the same version is due only once."""
        last_version, self._seen = self._seen, version if self._seen is None else max(version, self._seen)
        if last_version is None:
            return self._at_start
        return self._every_versions > 0 and version // self._every_versions > last_version // self._every_versions

    def state_dict(self) -> dict[str, Json]:
        """Returns the version seen last."""
        return {"seen": None if self._seen is None else int(self._seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._seen = None if state["seen"] is None else Version(state["seen"])


class Evaluation:
    """A flow that feeds no stream, with its rounds. At most one round runs at a time.

    requested ──no round runs──► running ──all samples returned──► done
      └──a round runs──► waiting ──that round ended──► running ──stopped on request──► stopped
                           └──a newer request arrived──► discarded
    """

    def __init__(self, flow: Flow, rounds: EvaluationRounds, schedule: Schedule, *, correct_threshold: float) -> None:
        """flow: takes its groups from `rounds`."""
        self.flow = flow
        self.rounds = rounds
        self.pending_request: EvaluationRequest | None = None
        self.ended_rounds: list[EvaluationReport] = []
        """All rounds that ended, oldest first."""
        self.reserved_nodes: set[NodeId] = set()
        """Nodes whose only engine serves the running round."""
        self._schedule = schedule
        self._correct_threshold = correct_threshold

    @property
    def id(self) -> FlowId:
        """Name of the evaluation in the recipe."""
        return self.flow.id

    def is_due(self, version: Version) -> bool:
        """Returns whether the schedule starts a round of this version, which all its policies have reached."""
        return self._schedule.is_due(version)

    @property
    def is_complete(self) -> bool:
        """True if a round is running and all its samples have returned."""
        return self.rounds.round is not None and not self.rounds.has_more and not self.flow.open_groups

    @property
    def has_tasks(self) -> bool:
        """True if the running round has tasks that no node holds."""
        return self.rounds.round is not None and (self.rounds.has_more or self.flow.leases.queued > 0)

    @property
    def versions(self) -> Mapping[PolicyId, Version]:
        """Versions that the running round pins; empty without a round."""
        return self.rounds.round.request.versions if self.rounds.round is not None else {}

    def end(self, state: EvaluationState, *, at: float) -> EvaluationReport:
        """Ends the running round and returns its report."""
        round_ = self.rounds.round
        assert round_ is not None  # noqa: S101 (called only while a round runs)
        report = self._report(round_, state, finished_at=at)
        self.rounds.end()
        self.reserved_nodes.clear()
        self.ended_rounds.append(report)
        return report

    def running_report(self) -> EvaluationReport | None:
        """Returns the report of the running round, None if no round runs."""
        round_ = self.rounds.round
        return None if round_ is None else self._report(round_, EvaluationState.RUNNING, finished_at=None)

    def reports(self) -> tuple[EvaluationReport, ...]:
        """Returns the reports of the last ended, the running and the waiting round; a missing round is left out."""
        running = self.running_report()
        return (
            *self.ended_rounds[-1:],
            *([running] if running else []),
            *([self._report_waiting(self.pending_request)] if self.pending_request else []),
        )

    def restore(self, ended: Iterable[EvaluationReport]) -> None:
        """Restores the rounds that ended before the service stopped."""
        self.ended_rounds = [report for report in ended if report.flow == self.id]

    def state_dict(self) -> dict[str, Json]:
        """Returns the flow with its round, the waiting request, and the schedule."""
        return {
            "flow": self.flow.state_dict(),
            "waiting": self.pending_request.state_dict() if self.pending_request else None,
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self.flow.load_state_dict(state["flow"])
        self.pending_request = EvaluationRequest.from_state(state["waiting"]) if state["waiting"] else None
        self._schedule.load_state_dict(state["schedule"])

    def _report(self, round_: Round, state: EvaluationState, *, finished_at: float | None) -> EvaluationReport:
        succeeded, samples = self.rounds.succeeded(), self.rounds.samples
        returned_episodes = [episode for group in self.flow.open_groups.values() for episode in group.episodes.values()]
        return EvaluationReport(
            flow=self.id,
            round=round_.number,
            versions=dict(round_.request.versions),
            state=state,
            done=len(succeeded) * samples + len(returned_episodes),
            total=self.rounds.prompts * samples,
            masked=sum(samples - count for count in succeeded)
            + sum(episode.failure is not None for episode in returned_episodes),
            failed=succeeded.count(0),
            scores=() if finished_at is None else self._scores(),
            actor=round_.request.actor,
            reason=round_.request.reason,
            requested_at=round_.request.requested_at,
            started_at=round_.started_at,
            finished_at=finished_at,
            reserved_nodes=tuple(sorted(self.reserved_nodes)) if finished_at is None else (),
        )

    def _report_waiting(self, request: EvaluationRequest) -> EvaluationReport:
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
            requested_at=request.requested_at,
            started_at=None,
            finished_at=None,
        )

    def _scores(self) -> tuple[EvaluationScore, ...]:
        by_slot = samples_by_slot(self.rounds.prompt_samples())
        return tuple(
            EvaluationScore(
                policy=slot[0], name=score_name(slot[1], figure), value=estimate.value, error=estimate.error
            )
            for slot in sorted(by_slot, key=lambda slot: self.flow.policies.index(slot[0]))
            for figure, estimate in scores(
                by_slot[slot], samples=self.rounds.samples, correct_threshold=self._correct_threshold
            ).items()
        )
