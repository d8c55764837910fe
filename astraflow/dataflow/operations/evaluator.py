"""Starts evaluation rounds by schedule and on request, and leases their tasks during training."""

from collections.abc import Iterable, Mapping, Sequence

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import FlowId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.report import EVALUATED
from astraflow.contract.rollouts.tasks import Group
from astraflow.dataflow.evaluation.evaluation import Evaluation
from astraflow.dataflow.evaluation.rounds import EvaluationRequest, Round
from astraflow.dataflow.issuing.groups import flow_of, parse_task_id
from astraflow.dataflow.operations.assignment import TaskAssignment
from astraflow.dataflow.operations.reservations import Reservations
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run

SCHEDULE = "schedule"
"""Actor of the rounds that the recipe schedules."""


class Evaluator:
    """Runs the evaluation rounds of a run. It does not touch streams, staleness gates or training rewards."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reservations = Reservations(run)

    def advance(self) -> None:
        """Starts the rounds that are due at the trainers' current versions, and ends rounds whose last prompts were
        lost with damaged data."""
        for evaluation in self._run.evaluations.values():
            if evaluation.is_complete:
                self._end_complete(evaluation)
            if any(policy not in self._run.trainers for policy in evaluation.flow.policies):
                continue
            versions = self._trainer_versions(evaluation)
            lowest_version = min(versions.values())
            if evaluation.is_due(lowest_version):
                self._start_or_queue(evaluation, versions, actor=SCHEDULE, reason=f"version {lowest_version}")

    def request(
        self, flow: FlowId, versions: Mapping[PolicyId, Version], *, actor: str, reason: str
    ) -> EvaluationReport:
        """Starts a round; a policy that `versions` leaves out is evaluated at its trainer's version.

        Raises: InvalidInput for an unknown evaluation, policy or version; Conflict while a round of it runs.
        """
        evaluation = self._evaluation(flow)
        running = evaluation.rounds.round
        if running is not None:
            raise Conflict(
                f"cannot start an evaluation of {flow!r}: round {running.number} is running; "
                "wait until it has ended, or stop it first",
                code="evaluation.round_running",
            )
        newest = self._trainer_versions(evaluation)
        for policy, version in versions.items():
            if policy not in newest:
                raise InvalidInput(
                    f"cannot evaluate policy {policy!r}: {flow!r} does not evaluate it; choose from "
                    f"{', '.join(newest)}",
                    code="evaluation.unknown_policy",
                )
            if version > newest[policy]:
                raise InvalidInput(
                    f"cannot evaluate version {version} of {policy!r}: its trainer is at version {newest[policy]}; "
                    "choose a published version",
                    code="evaluation.unknown_version",
                )
        self._run.events.record_action(RecordKind.EVALUATION_REQUESTED, flow, actor=actor, reason=reason)
        self._start_or_queue(evaluation, {**newest, **versions}, actor=actor, reason=reason)
        report = evaluation.running_report()
        assert report is not None  # noqa: S101 (no round ran, so this one started)
        return report

    def stop(self, flow: FlowId, *, actor: str, reason: str) -> str:
        """Ends the running round, discards the waiting request, and returns a sentence about it.

        Raises: InvalidInput for an unknown evaluation, or when no round runs.
        """
        evaluation = self._evaluation(flow)
        if evaluation.rounds.round is None:
            raise InvalidInput(
                f"cannot stop the evaluation {flow!r}: no round is running; start one first",
                code="evaluation.no_round_running",
            )
        evaluation.pending_request = None
        for group in evaluation.flow.abandon():
            self._run.records.record_closed(group.id, ())
        report = self._end(evaluation, EvaluationState.STOPPED)
        self._run.events.record_action(
            RecordKind.EVALUATION_STOPPED, flow, actor=actor, reason=reason, round=report.round
        )
        return f"round {report.round} of {flow} stopped; {report.done} of {report.total} samples had returned"

    def page(self, flow: FlowId | None, *, before: int | None, limit: int) -> list[EvaluationReport]:
        """Returns ended and running rounds, newest first; flow: None for all evaluations. Raises: InvalidInput."""
        chosen = list(self._run.evaluations.values()) if flow is None else [self._evaluation(flow)]
        rounds = [
            report
            for evaluation in chosen
            for report in (*evaluation.ended_rounds, evaluation.running_report())
            if report
        ]
        matching = [report for report in rounds if before is None or report.round < before]
        return sorted(matching, key=lambda report: report.round, reverse=True)[:limit]

    def lease(self, assignment: TaskAssignment, node: Node, *, max_tasks: int) -> bool:
        """Adds tasks of the longest-running round for a node that takes at most `max_tasks` evaluation tasks at once.

        While all flows are paused, or the run is over, no training task waits, so the node's whole capacity is free for
        evaluation. A node works on one round at a time, because it holds the weights of one.
        Returns whether the node is reserved for a round, in which case it gets no training tasks.
        """
        running = sorted(
            (
                evaluation
                for evaluation in self._run.evaluations.values()
                if evaluation.rounds.round is not None and assignment.may_run(evaluation.flow)
            ),
            key=_age,
        )
        if running and node.facts.evaluation_mode.is_exclusive:
            reserved = self._reservations.reserve(node, running, takes_tasks=max_tasks > 0)
            if reserved is not None and max_tasks and not self._reservations.is_training(node.id):
                self._lease(reserved, assignment, assignment.free_slots)
            return reserved is not None
        if running and max_tasks:
            self._lease_beside_training(running, assignment, max_tasks)
        return False

    def is_reserved(self, node: NodeId) -> bool:
        """Returns whether a round has reserved the node."""
        return self._reservations.is_reserved(node)

    def _lease_beside_training(self, running: Sequence[Evaluation], assignment: TaskAssignment, max_tasks: int) -> None:
        held = {evaluation.id: evaluation.flow.leases.held_by(assignment.node) for evaluation in running}
        is_free = self._run.trains_nothing
        room = assignment.free_slots if is_free else min(assignment.free_slots, max_tasks - sum(held.values()))
        busy_with = [evaluation for evaluation in running if held[evaluation.id]]
        for evaluation in busy_with or running:
            if self._lease(evaluation, assignment, room):
                return

    def check_versions(self, task: TaskId, policy: PolicyId, versions: Iterable[int]) -> None:
        """Rejects an episode that versions of another round wrote. Raises: InvalidInput."""
        evaluation = self._run.evaluations.get(flow_of(task)) if self._run.evaluations else None
        member_location = parse_task_id(task) if evaluation else None
        group = evaluation.flow.open_groups.get(member_location[0]) if evaluation and member_location else None
        pinned = group.pinned.get(policy) if group else None
        if group is not None and any(version != pinned for version in versions):
            raise InvalidInput(
                f"cannot accept episode {task!r}: its round evaluates version {pinned} of {policy!r}, and another "
                "version wrote part of it; load the pinned version before the task starts",
                code="evaluation.wrong_version",
            )

    def finish(self, group: Group) -> None:
        """Records a prompt whose samples have all returned, and ends the round after its last prompt."""
        self._run.records.record_closed(group.id, ())
        evaluation = self._run.evaluations[group.flow]
        self._run.samples.add(group, dict.fromkeys(evaluation.flow.policies, EVALUATED), at=self._run.clock.wall())
        if evaluation.is_complete:
            self._end_complete(evaluation)

    def _end_complete(self, evaluation: Evaluation) -> None:
        report = self._end(evaluation, EvaluationState.DONE)
        self._run.events.add(
            RecordKind.EVALUATION_DONE,
            evaluation.id,
            round=report.round,
            versions=versions_text(report.versions),
            scores=_scores_text(report),
        )
        if evaluation.pending_request is not None:
            request, evaluation.pending_request = evaluation.pending_request, None
            self._start(evaluation, request)

    def _start_or_queue(
        self, evaluation: Evaluation, versions: Mapping[PolicyId, Version], *, actor: str, reason: str
    ) -> None:
        """Starts a round, or stores the request in place of the waiting one."""
        request = EvaluationRequest(versions=versions, actor=actor, reason=reason, requested_at=self._run.clock.wall())
        if evaluation.rounds.round is None:
            self._start(evaluation, request)
        else:
            evaluation.pending_request = request
            self._run.journal.touch()

    def _start(self, evaluation: Evaluation, request: EvaluationRequest) -> None:
        number = 1 + max(
            (self._latest_round_number(each_evaluation) for each_evaluation in self._run.evaluations.values()),
            default=0,
        )
        number = max(number, self._run.records.last_round + 1)  # an evaluation may be renamed between restarts
        evaluation.rounds.begin(Round(number=number, request=request, started_at=self._run.clock.wall()))
        self._run.events.add(
            RecordKind.EVALUATION_STARTED,
            evaluation.id,
            actor=request.actor,
            reason=request.reason,
            round=number,
            versions=versions_text(request.versions),
        )
        self._run.nodes_notifier.notify()

    def _end(self, evaluation: Evaluation, state: EvaluationState) -> EvaluationReport:
        report = evaluation.end(state, at=self._run.clock.wall())
        self._run.records.record_evaluation(report)
        self._run.round_archive.add(report)
        return report

    def _lease(self, evaluation: Evaluation, assignment: TaskAssignment, max_tasks: int) -> bool:
        """Adds tasks for the node; returns whether there were any."""
        added = assignment.add_tasks_from(evaluation.flow, max_tasks=max_tasks)
        while (
            added < max_tasks
            and assignment.free_slots
            and evaluation.rounds.has_more
            and self._run.journal.failure is None
        ):
            self._run.records.record_issued(evaluation.flow.issue())
            added += assignment.add_tasks_from(evaluation.flow, max_tasks=max_tasks - added)
        return added > 0

    def _evaluation(self, flow: FlowId) -> Evaluation:
        if flow not in self._run.evaluations:
            evaluation_names = ", ".join(self._run.evaluations) or "none, because the recipe has no [evaluations]"
            raise InvalidInput(
                f"cannot find evaluation {flow!r}: this run has {evaluation_names}; use one of its evaluations",
                code="evaluation.unknown",
            )
        return self._run.evaluations[flow]

    def _trainer_versions(self, evaluation: Evaluation) -> dict[PolicyId, Version]:
        return {policy: self._run.streams[policy].version for policy in evaluation.flow.policies}

    def _latest_round_number(self, evaluation: Evaluation) -> int:
        running = evaluation.rounds.round
        return running.number if running else (evaluation.ended_rounds[-1].round if evaluation.ended_rounds else 0)


def versions_text(versions: Mapping[PolicyId, Version]) -> str:
    """Returns the versions as text.

    >>> versions_text({PolicyId("solver"): Version(3)})
    'solver at version 3'
    """
    return ", ".join(f"{policy} at version {version}" for policy, version in versions.items())


def _age(evaluation: Evaluation) -> int:
    return evaluation.rounds.round.number if evaluation.rounds.round else 0


def _scores_text(report: EvaluationReport) -> str:
    figures = ", ".join(f"{score.policy} {score.name} {score.value:.3f}" for score in report.scores)
    return figures or "no sample succeeded"
