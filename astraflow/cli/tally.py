"""What a run has shown so far: gathered from its reports, judged at its end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.reports import Report, StreamReport
from astraflow.runtime.clock import Clock, SystemClock

FIRST_STEPS = 5
"""Steps that the reward at the beginning is averaged over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """One policy's part of a summary."""

    policy: str
    steps: int
    reward_first: float | None
    """Mean over the first five steps; None before them."""
    reward_last: float | None
    """Mean over the window that decides; None before it is full."""
    wait_fraction: float
    """Of the trainer's time, over the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to. The figures of the policy that is behind stand for the run."""

    learned: bool
    balanced: bool
    failed: bool
    """A process could not be kept running."""
    reason: str
    """Why the run ended, in a sentence."""
    steps: int
    reward_first: float | None
    reward_last: float | None
    seconds: float
    """Since the command began."""
    seconds_training: float
    """Since the first step."""
    wait_fraction: float
    weight_bytes_full: int
    """Fetched by nodes as full snapshots, and in how many updates."""
    weight_updates_full: int
    weight_bytes_delta: int
    weight_updates_delta: int
    weight_bytes_shared: int
    """Mapped by nodes where a store on their host has them, without fetching."""
    weight_updates_shared: int
    logprob_gap_max: float | None
    """Largest difference between an engine's and the trainer's logprobs, in nats; None when never measured."""
    restarts: int
    imbalances: tuple[str, ...]
    policies: tuple[PolicySummary, ...]
    simulated: tuple[str, ...]
    """Stand-ins that took part."""

    @property
    def exit_code(self) -> int:
        """0 only for a run that learned and whose counts balance."""
        return 0 if self.learned and self.balanced and not self.failed else 1


@dataclass(slots=True)
class _PolicyTally:
    rewards: dict[int, float] = field(default_factory=dict)
    """By step number, from 1."""
    latest: StreamReport | None = None

    def observe(self, stream: StreamReport) -> None:
        self.latest = stream
        first = stream.steps - len(stream.rewards) + 1
        self.rewards.update(dict(enumerate(stream.rewards, start=first)))

    def mean(self, steps: range) -> float | None:
        """Over those steps that were seen; None when the last of them was not made."""
        if self.latest is None or steps.start < 1 or self.latest.steps < steps[-1]:
            return None
        seen = [self.rewards[step] for step in steps if step in self.rewards]
        return sum(seen) / len(seen) if seen else None

    def first(self) -> float | None:
        return self.mean(range(1, FIRST_STEPS + 1))

    def last(self, window: int) -> float | None:
        steps = self.latest.steps if self.latest else 0
        return self.mean(range(steps - window + 1, steps + 1))


class Tally:
    """Gathers the reports of one run."""

    def __init__(self, policies: Iterable[PolicyId], *, window_steps: int, clock: Clock | None = None) -> None:
        self._window_steps = window_steps
        self._clock = clock or SystemClock()
        self.has_learned = False
        """Whether dataflow reported that the stop condition was met by learning."""
        self._policies = {policy: _PolicyTally() for policy in policies}
        self._counters: dict[NodeId, Mapping[str, float]] = {}
        self._gap_max: float | None = None
        self._imbalances: dict[str, None] = {}
        self._simulated: tuple[str, ...] = ()
        self._first_step_at: float | None = None

    def observe(self, report: Report) -> None:
        """Take in a report."""
        for stream in report.streams:
            self._policies[stream.policy].observe(stream)
        if self._first_step_at is None and any(stream.steps for stream in report.streams):
            self._first_step_at = self._clock.now()
        for node in report.nodes:
            self._counters[node.id] = node.counters
            gap = node.gauges.get("logprob_gap_max")
            if gap is not None:
                self._gap_max = gap if self._gap_max is None else max(gap, self._gap_max)
        self._imbalances.update(dict.fromkeys(imbalances(report)))
        self._simulated = tuple(sorted({*self._simulated, *report.simulated}))
        if report.completion is not None:
            self.has_learned = report.completion.has_learned

    def summary(self, *, reason: str, has_failed: bool, began_at: float, ended_at: float, restarts: int) -> Summary:
        """The run as it stands. Times are `time.monotonic()`."""
        policies = tuple(self._policy_summary(policy, tally) for policy, tally in self._policies.items())
        behind = min(policies, key=lambda policy: (policy.reward_last or 0.0, policy.steps))
        return Summary(
            learned=self.has_learned,
            failed=has_failed,
            balanced=not self._imbalances,
            reason=reason,
            steps=behind.steps,
            reward_first=behind.reward_first,
            reward_last=behind.reward_last,
            seconds=round(ended_at - began_at, 2),
            seconds_training=round(ended_at - self._first_step_at, 2) if self._first_step_at is not None else 0.0,
            wait_fraction=behind.wait_fraction,
            weight_bytes_full=self._total("weight_bytes_full"),
            weight_updates_full=self._total("weight_updates_full"),
            weight_bytes_delta=self._total("weight_bytes_delta"),
            weight_updates_delta=self._total("weight_updates_delta"),
            weight_bytes_shared=self._total("weight_bytes_shared"),
            weight_updates_shared=self._total("weight_updates_shared"),
            logprob_gap_max=self._gap_max,
            restarts=restarts,
            imbalances=tuple(self._imbalances),
            policies=policies,
            simulated=self._simulated,
        )

    def _policy_summary(self, policy: PolicyId, tally: _PolicyTally) -> PolicySummary:
        stream = tally.latest
        wall_s = stream.wait_s + stream.compute_s + stream.publish_s if stream else 0.0
        return PolicySummary(
            policy=policy,
            steps=stream.steps if stream else 0,
            reward_first=tally.first(),
            reward_last=tally.last(self._window_steps),
            wait_fraction=stream.wait_s / wall_s if stream and wall_s else 0.0,
        )

    def _total(self, counter: str) -> int:
        """Over all nodes that were ever seen: a node that starts again counts from 0 under a new id."""
        return int(sum(counters.get(counter, 0.0) for counters in self._counters.values()))


def imbalances(report: Report) -> list[str]:
    """Sentences about counts that do not add up; none ever should."""
    found = []
    for flow in report.flows:
        accounted = flow.open + flow.admitted + sum(flow.dropped.values())
        if flow.issued != accounted:
            found.append(f"flow {flow.id}: {flow.issued} groups issued, {accounted} accounted for")
        ends = sum(flow.prefixes.get(end, 0) for end in ("kept", "continued", "discarded", "stale"))
        if flow.prefixes.get("handed_back", 0) != ends:
            handed_back = flow.prefixes.get("handed_back", 0)
            found.append(f"flow {flow.id}: {handed_back} beginnings of episodes handed back, {ends} accounted for")
    for stream in report.streams:
        accounted = stream.buffered + stream.in_batch + stream.trained + sum(stream.dropped.values())
        if stream.admitted != accounted:
            found.append(f"stream {stream.policy}: {stream.admitted} groups admitted, {accounted} accounted for")
    return found
