"""Summary of a run, from its reports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, NodeId, PolicyId
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.dataflow.reporting.health import returned_episodes
from astraflow.runtime.clock import Clock, SystemClock

FIRST_STEPS = 5
"""Number of steps over which the initial reward is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """Summary of one policy."""

    policy: str
    steps: int
    reward_first: float | None
    """Mean over the first five steps; None before them."""
    reward_last: float | None
    """Mean over the window of the stop condition; None before it is full."""
    loss_first: float | None
    """Mean loss of a policy that trains only on answers of data sets, over the same steps as `reward_first`; None for a
    policy that is rewarded."""
    loss_last: float | None
    wait_fraction: float
    """Share of the trainer's time spent waiting, over the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """First and last finished round of an evaluation, by its first score of a policy."""

    evaluation: str
    policy: str
    score: str
    """Name of the score, such as `avg@1`."""
    first: float
    first_version: int
    last: float
    last_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of a run. Its values describe the policy with the lowest reward."""

    learned: bool
    balanced: bool
    failed: bool
    """True if a process could not be kept running."""
    reason: str
    """Reason why the run ended."""
    steps: int
    reward_first: float | None
    reward_last: float | None
    seconds: float
    """Duration since the start of the command."""
    seconds_training: float
    """Duration since the first step."""
    wait_fraction: float
    weight_bytes_full: int
    """Bytes that nodes fetched as full snapshots; the next field has the number of updates."""
    weight_updates_full: int
    weight_bytes_delta: int
    weight_updates_delta: int
    weight_bytes_shared: int
    """Bytes that nodes mapped from a store on the same host, without fetching."""
    weight_updates_shared: int
    logprob_mismatch_max: float | None
    """Largest difference between an engine's and the trainer's logprobs, in nats; None when never measured."""
    restarts: int
    imbalances: tuple[str, ...]
    rollouts_failed: float
    """Share of the rollouts that failed, in all attempts."""
    latest_error: str
    """Latest error of a node; empty without any."""
    policies: tuple[PolicySummary, ...]
    evaluations: tuple[EvaluationSummary, ...]
    """For each evaluation with a finished round, a summary for each of its policies."""
    simulated: tuple[str, ...]
    """Simulated components of the run."""

    @property
    def exit_code(self) -> int:
        """0 only for a run that learned and has balanced counts."""
        return 0 if self.learned and self.balanced and not self.failed else 1


@dataclass(slots=True)
class _PolicyReports:
    rewards: dict[int, float] = field(default_factory=dict)
    """Rewards by step number, from 1."""
    losses: dict[int, float] = field(default_factory=dict)
    """Losses by step number, of a policy that trains only on answers of data sets."""
    latest: StreamReport | None = None

    def observe(self, stream: StreamReport) -> None:
        self.latest = stream
        for by_step, values in ((self.rewards, stream.training.rewards), (self.losses, stream.training.losses)):
            by_step.update(dict(enumerate(values, start=stream.training.steps - len(values) + 1)))

    def first(self, by_step: Mapping[int, float]) -> float | None:
        return self._mean(by_step, range(1, FIRST_STEPS + 1))

    def last(self, by_step: Mapping[int, float], window: int) -> float | None:
        steps = self.latest.training.steps if self.latest else 0
        return self._mean(by_step, range(steps - window + 1, steps + 1))

    def _mean(self, by_step: Mapping[int, float], steps: range) -> float | None:
        """Returns the mean over the recorded steps; None when the last of them was not reached."""
        if self.latest is None or steps.start < 1 or self.latest.training.steps < steps[-1]:
            return None
        values = [by_step[step] for step in steps if step in by_step]
        return sum(values) / len(values) if values else None


class RunReports:
    """Aggregates the reports of one run."""

    def __init__(
        self,
        policies: Iterable[PolicyId],
        *,
        window_steps: int,
        has_loss_target: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """has_loss_target: a policy that trains on answers has learned at the target of the stop condition, not as soon
        as its loss has fallen."""
        self._window_steps = window_steps
        self._has_loss_target = has_loss_target
        self._clock = clock or SystemClock()
        self.has_learned = False
        """True once dataflow reported that the stop condition was met by learning."""
        self._policies = {policy: _PolicyReports() for policy in policies}
        self._counters: dict[NodeId, Mapping[str, float]] = {}
        self._mismatch_max: float | None = None
        self._evaluations: dict[FlowId, tuple[EvaluationReport, EvaluationReport]] = {}
        """First and last finished round."""
        self._imbalances: dict[str, None] = {}
        self._simulated: tuple[str, ...] = ()
        self._first_step_at: float | None = None
        self._rollouts_failed = 0.0
        self._latest_error = ""

    def observe(self, report: Report) -> None:
        for stream in report.streams:
            self._policies[stream.policy].observe(stream)
        if self._first_step_at is None and any(stream.training.steps for stream in report.streams):
            self._first_step_at = self._clock.now()
        for node in report.nodes:
            self._counters[node.id] = node.counters
            mismatch = node.gauges.get("logprob_mismatch_max")
            if mismatch is not None:
                self._mismatch_max = mismatch if self._mismatch_max is None else max(mismatch, self._mismatch_max)
        for round_ in report.evaluations:
            if round_.state is EvaluationState.DONE:
                first, _ = self._evaluations.get(round_.flow, (round_, round_))
                self._evaluations[round_.flow] = (first, round_)
        self._rollouts_failed = failed_share(report)
        self._latest_error = latest_error(report) or self._latest_error
        self._imbalances.update(dict.fromkeys(imbalances(report)))
        self._simulated = tuple(sorted({*self._simulated, *report.simulated}))
        if report.completion is not None:
            self.has_learned = report.completion.has_learned

    def summary(self, *, reason: str, has_failed: bool, began_at: float, ended_at: float, restarts: int) -> Summary:
        """Returns the current summary. Times are `time.monotonic()`."""
        policies = tuple(self._policy_summary(policy, reports) for policy, reports in self._policies.items())
        lowest = min(policies, key=lambda policy: (policy.reward_last or 0.0, policy.steps))
        return Summary(
            learned=self._has_learned(policies),
            failed=has_failed,
            balanced=not self._imbalances,
            reason=reason,
            steps=lowest.steps,
            reward_first=lowest.reward_first,
            reward_last=lowest.reward_last,
            seconds=round(ended_at - began_at, 2),
            seconds_training=round(ended_at - self._first_step_at, 2) if self._first_step_at is not None else 0.0,
            wait_fraction=lowest.wait_fraction,
            weight_bytes_full=self._total("weight_bytes_full"),
            weight_updates_full=self._total("weight_updates_full"),
            weight_bytes_delta=self._total("weight_bytes_delta"),
            weight_updates_delta=self._total("weight_updates_delta"),
            weight_bytes_shared=self._total("weight_bytes_shared"),
            weight_updates_shared=self._total("weight_updates_shared"),
            logprob_mismatch_max=self._mismatch_max,
            restarts=restarts,
            imbalances=tuple(self._imbalances),
            rollouts_failed=self._rollouts_failed,
            latest_error=self._latest_error,
            policies=policies,
            evaluations=tuple(_evaluation_summaries(self._evaluations)),
            simulated=self._simulated,
        )

    def _has_learned(self, policies: Sequence[PolicySummary]) -> bool:
        """Judges rewarded policies by the stop condition, and those that train on answers by their loss."""
        without_rewards = [policy for policy in policies if self._policies[PolicyId(policy.policy)].losses]
        has_fallen = all(
            policy.loss_first is not None and policy.loss_last is not None and policy.loss_last < policy.loss_first
            for policy in without_rewards
        )
        needs_target = self._has_loss_target or len(without_rewards) < len(policies)
        return has_fallen and (self.has_learned or not needs_target)

    def _policy_summary(self, policy: PolicyId, reports: _PolicyReports) -> PolicySummary:
        stream = reports.latest
        wall_s = stream.training.total_s if stream else 0.0
        return PolicySummary(
            policy=policy,
            steps=stream.training.steps if stream else 0,
            reward_first=reports.first(reports.rewards),
            reward_last=reports.last(reports.rewards, self._window_steps),
            loss_first=reports.first(reports.losses),
            loss_last=reports.last(reports.losses, self._window_steps),
            wait_fraction=stream.training.wait_s / wall_s if stream and wall_s else 0.0,
        )

    def _total(self, counter: str) -> int:
        """Returns the sum over all nodes ever reported: a restarted node counts from 0 under a new id."""
        return int(sum(counters.get(counter, 0.0) for counters in self._counters.values()))


def _evaluation_summaries(
    evaluations: Mapping[FlowId, tuple[EvaluationReport, EvaluationReport]],
) -> Iterator[EvaluationSummary]:
    for flow, (first, last) in evaluations.items():
        names = {score.policy: score.name for score in reversed(last.scores)}
        values = {(score.policy, score.name): score.value for score in first.scores}
        for score in last.scores:
            if names[score.policy] == score.name and (score.policy, score.name) in values:
                yield EvaluationSummary(
                    evaluation=flow,
                    policy=score.policy,
                    score=score.name,
                    first=values[score.policy, score.name],
                    first_version=first.versions[score.policy],
                    last=score.value,
                    last_version=last.versions[score.policy],
                )


def returned_rollouts(report: Report) -> tuple[int, int]:
    """Returns how many rollouts of the whole run failed, those that were repeated included, and how many came back."""
    counts = [returned_episodes(flow.episodes) for flow in report.flows]
    return sum(failed for _, failed in counts), sum(returned for returned, _ in counts)


def failed_share(report: Report) -> float:
    """Returns the share of the returned rollouts of the whole run that failed."""
    failed, returned = returned_rollouts(report)
    return failed / returned if returned else 0.0


def latest_error(report: Report) -> str:
    """Returns the latest error of a node; empty without any."""
    return next((node.errors[-1] for node in report.nodes if node.errors), "")


def imbalances(report: Report) -> list[str]:
    """Returns messages about counts that do not add up; empty for a correct run."""
    messages = []
    for flow in report.flows:
        accounted = flow.open + flow.admitted + sum(flow.dropped.values())
        if flow.issued != accounted:
            messages.append(f"flow {flow.id}: {flow.issued} groups issued, {accounted} accounted for")
        accounted_rollouts = sum(
            flow.partial_rollouts.get(outcome, 0) for outcome in ("stored", "continued", "discarded", "stale")
        )
        if flow.partial_rollouts.get("handed_back", 0) != accounted_rollouts:
            handed_back = flow.partial_rollouts.get("handed_back", 0)
            messages.append(
                f"flow {flow.id}: {handed_back} partial rollouts handed back, {accounted_rollouts} accounted for"
            )
    for stream in report.streams:
        accounted = stream.groups.accounted
        if stream.groups.admitted != accounted:
            messages.append(
                f"stream {stream.policy}: {stream.groups.admitted} groups admitted, {accounted} accounted for"
            )
    return messages
