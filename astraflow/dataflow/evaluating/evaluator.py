"""What evaluations do to a run: rounds begin by the recipe and on request, and their tasks go out beside training."""

from collections.abc import Iterable, Mapping

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.groups import Group
from astraflow.contract.ids import FlowId, PolicyId, TaskId, Version
from astraflow.dataflow.evaluating.evaluation import Evaluation
from astraflow.dataflow.evaluating.round import Request, Round
from astraflow.dataflow.issuing.groups import flow_of, parse_task_id
from astraflow.dataflow.issuing.handout import Handout
from astraflow.dataflow.run import Run

EVALUATED = "evaluated"
"""Fate of a trajectory that was never meant for training."""

SCHEDULE = "schedule"
"""Who asks for the rounds of the recipe."""


class Evaluator:
    """The way of a prompt through a round. It touches no stream, no gate and no reward of training."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def advance(self) -> None:
        """The trainers came further: begin what the recipe wants by now."""
        for evaluation in self._run.evaluations.values():
            if any(policy not in self._run.trainers for policy in evaluation.flow.policies):
                continue
            versions = self._newest(evaluation)
            least = min(versions.values())
            if evaluation.is_due(least):
                self._ask(evaluation, versions, actor=SCHEDULE, reason=f"version {least}")

    def request(
        self, flow: FlowId, versions: Mapping[PolicyId, Version], *, actor: str, reason: str
    ) -> EvaluationReport:
        """Begin a round; of policies that `versions` leaves out, the trainer's own is evaluated.

        Raises: InvalidInput for an unknown evaluation, policy or version; Conflict while a round of it runs.
        """
        evaluation = self._evaluation(flow)
        running = evaluation.rounds.round
        if running is not None:
            raise Conflict(f"round {running.number} of {flow} runs: wait until it has ended, or stop it first")
        newest = self._newest(evaluation)
        for policy, version in versions.items():
            if policy not in newest:
                raise InvalidInput(f"{flow} does not evaluate {policy!r}; it evaluates {', '.join(newest)}")
            if version > newest[policy]:
                raise InvalidInput(f"version {version} of {policy} is not made yet: its trainer is at {newest[policy]}")
        self._run.events.act("evaluation_asked", flow, actor=actor, reason=reason)
        self._ask(evaluation, {**newest, **versions}, actor=actor, reason=reason)
        report = evaluation.running()
        assert report is not None  # noqa: S101 (none ran, so this one does)
        return report

    def stop(self, flow: FlowId, *, actor: str, reason: str) -> str:
        """End the round that runs, and forget the one that waits; returns a sentence.

        Raises: InvalidInput for an unknown evaluation, or one of which no round runs.
        """
        evaluation = self._evaluation(flow)
        if evaluation.rounds.round is None:
            raise InvalidInput(f"no round of {flow} runs: there is nothing to stop")
        evaluation.waiting = None
        for group in evaluation.flow.abandon():
            self._run.records.closed(group.id, ())
        report = self._end(evaluation, EvaluationState.STOPPED)
        self._run.events.act("evaluation_stopped", flow, actor=actor, reason=f"round {report.round}: {reason}")
        return f"round {report.round} of {flow} is stopped; {report.done} of its {report.total} samples were back"

    def page(self, flow: FlowId | None, *, before: int | None, limit: int) -> list[EvaluationReport]:
        """Rounds that ended or run, newest first; of all evaluations for None. Raises: InvalidInput."""
        chosen = list(self._run.evaluations.values()) if flow is None else [self._evaluation(flow)]
        rounds = [report for evaluation in chosen for report in (*evaluation.ended, evaluation.running()) if report]
        found = [report for report in rounds if before is None or report.round < before]
        return sorted(found, key=lambda report: report.round, reverse=True)[:limit]

    def lease(self, handout: Handout, *, at_most: int) -> None:
        """Add tasks for a node that takes `at_most` at once, of the round that has run for longest.

        While all flows are paused, or the run is over, no training task waits, and the node's whole capacity is free
        for them. A node works on one round at a time: it holds the weights of one.
        """
        running = [evaluation for evaluation in self._run.evaluations.values() if evaluation.rounds.round is not None]
        if not running or not at_most:
            return
        held = {evaluation.id: evaluation.flow.leases.held_by(handout.node) for evaluation in running}
        is_free = self._run.is_over or all(flow.is_paused for flow in self._run.flows.values())
        room = handout.room if is_free else min(handout.room, at_most - sum(held.values()))
        busy_with = [evaluation for evaluation in running if held[evaluation.id]]
        for evaluation in busy_with or sorted(running, key=_age):
            if self._lease(evaluation, handout, room):
                return

    def check(self, task: TaskId, policy: PolicyId, versions: Iterable[Version]) -> None:
        """Refuse what other versions wrote than those of its round. Raises: InvalidInput."""
        evaluation = self._run.evaluations.get(flow_of(task)) if self._run.evaluations else None
        place = parse_task_id(task) if evaluation else None
        group = evaluation.flow.open.get(place[0]) if evaluation and place else None
        pinned = group.pinned.get(policy) if group else None
        if group is not None and any(version != pinned for version in versions):
            raise InvalidInput(
                f"episode {task}: its round is about version {pinned} of {policy}, and another one wrote some of it"
            )

    def finish(self, group: Group) -> None:
        """Every sample of a prompt is back."""
        self._run.records.closed(group.id, ())
        evaluation = self._run.evaluations[group.flow]
        self._run.samples.add(group, dict.fromkeys(evaluation.flow.policies, EVALUATED), at=self._run.clock.wall())
        if evaluation.is_complete:
            report = self._end(evaluation, EvaluationState.DONE)
            self._run.events.add("evaluation_done", evaluation.id, _told(report))
            if evaluation.waiting is not None:
                request, evaluation.waiting = evaluation.waiting, None
                self._begin(evaluation, request)

    def _ask(self, evaluation: Evaluation, versions: Mapping[PolicyId, Version], *, actor: str, reason: str) -> None:
        """Begin a round, or have it wait in the place of whichever waits."""
        request = Request(versions=versions, actor=actor, reason=reason, asked_at=self._run.clock.wall())
        if evaluation.rounds.round is None:
            self._begin(evaluation, request)
        else:
            evaluation.waiting = request
            self._run.journal.touch()

    def _begin(self, evaluation: Evaluation, request: Request) -> None:
        number = 1 + max((self._latest(one) for one in self._run.evaluations.values()), default=0)
        evaluation.rounds.begin(Round(number=number, request=request, started_at=self._run.clock.wall()))
        message = f"round {number}, {versions_told(request.versions)}, asked by {request.actor}: {request.reason}"
        self._run.events.add("evaluation_began", evaluation.id, message)
        self._run.nodes_bell.ring()

    def _end(self, evaluation: Evaluation, state: EvaluationState) -> EvaluationReport:
        report = evaluation.end(state, at=self._run.clock.wall())
        self._run.records.evaluated(report)
        self._run.rounds.add(report)
        return report

    def _lease(self, evaluation: Evaluation, handout: Handout, room: int) -> bool:
        """Whether it had a task for the node."""
        taken = handout.take_from(evaluation.flow, at_most=room)
        while taken < room and handout.room and evaluation.rounds.has_more and self._run.journal.failure is None:
            self._run.records.issued(evaluation.flow.issue())
            taken += handout.take_from(evaluation.flow, at_most=room - taken)
        return taken > 0

    def _evaluation(self, flow: FlowId) -> Evaluation:
        if flow not in self._run.evaluations:
            known = ", ".join(self._run.evaluations) or "none: the recipe has no [evaluations]"
            raise InvalidInput(f"this run has no evaluation {flow!r}; it has {known}")
        return self._run.evaluations[flow]

    def _newest(self, evaluation: Evaluation) -> dict[PolicyId, Version]:
        return {policy: self._run.streams[policy].version for policy in evaluation.flow.policies}

    def _latest(self, evaluation: Evaluation) -> int:
        running = evaluation.rounds.round
        return running.number if running else (evaluation.ended[-1].round if evaluation.ended else 0)


def versions_told(versions: Mapping[PolicyId, Version]) -> str:
    """Versions as people say them.

    >>> versions_told({PolicyId("solver"): Version(3)})
    'solver at version 3'
    """
    return ", ".join(f"{policy} at version {version}" for policy, version in versions.items())


def _age(evaluation: Evaluation) -> int:
    return evaluation.rounds.round.number if evaluation.rounds.round else 0


def _told(report: EvaluationReport) -> str:
    """A round in a line."""
    figures = ", ".join(f"{score.policy} {score.name} {score.value:.3f}" for score in report.scores)
    return f"round {report.round}, {versions_told(report.versions)}: {figures or 'no sample succeeded'}"
