"""Independent ledger: checks at the end, from the calls on the wire, that every group is accounted for.

It shares no counter with dataflow. It records the answers of services: an answer is a promise that no crash may
break. Where an answer was lost (the service was killed before it answered), either outcome is correct, and later
answers show the actual one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.weights import Manifest, VersionNotice
from soak.lineage import Lineage
from soak.results import Results, is_too_small
from soak.rules import FlowRules, Invariant, Rules, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Outcomes of one policy's groups that are in no batch."""

    buffered: int = 0
    """Fresh enough to be trained."""
    stale: int = 0
    failed: int = 0
    """Too few members succeeded."""
    uncertain: int = 0
    """Outcome unknown: it depends on which of several results was accepted, and no answer arrived."""


class Ledger:
    """Ledger of all flows and policies of a run."""

    def __init__(self, rules: Rules, *, now: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._now = now
        self.began_at = now()
        self.results = Results(rules)
        self.lineages = {
            policy: Lineage(policy, stream, self.results, rules.backend(policy), now)
            for policy, stream in rules.streams.items()
        }

    def leased(self, tasks: Iterable[Task]) -> None:
        """Records that a node leased these tasks."""
        self.results.leases(tasks)

    def pushed(self, episodes: Iterable[Episode]) -> None:
        """Records that these results were sent to dataflow."""
        self.results.pushed(episodes)

    def push_answered(self, episodes: Sequence[Episode], outcomes: Sequence[str]) -> None:
        """Records dataflow's outcomes of the results."""
        self.results.answered(episodes, outcomes)

    def delivered(self, batch: Batch) -> None:
        """Records that a whole batch reached its trainer."""
        self.lineages[batch.policy].delivered(batch)

    def step_answered(self, report: StepReport, *, is_first: bool) -> None:
        """Records that dataflow acknowledged a step."""
        self.lineages[report.policy].step_answered(report, is_first=is_first)

    def publish_asked(self, manifest: Manifest) -> None:
        """Records that a trainer sends a version to the store."""
        self.lineages[manifest.policy].publish_asked(manifest)

    def publish_answered(self, policy: PolicyId, version: Version, *, is_new: bool) -> None:
        """Records that the store has a version."""
        self.lineages[policy].publish_answered(version, is_new=is_new)

    @property
    def violations(self) -> list[Violation]:
        """Returns the violations so far."""
        return self.results.violations + [
            violation for lineage in self.lineages.values() for violation in lineage.violations
        ]

    def check_report(self, report: Report, *, steps_before: Mapping[PolicyId, int]) -> Iterator[Violation]:
        """Checks that a report is balanced, and holds at least the steps that were acknowledged before the request."""
        for flow in report.flows:
            if flow.issued != flow.open + flow.admitted + sum(flow.dropped.values()):
                yield Violation(promise=Invariant.BALANCE, message=f"the groups of {flow.id} do not add up: {flow}")
        for stream in report.streams:
            places = stream.groups.accounted
            batches = stream.training.steps * self._rules.streams[stream.policy].batch_groups
            if stream.groups.admitted != places or stream.groups.trained != batches:
                message = f"the groups of {stream.policy} do not add up: {stream}"
                yield Violation(promise=Invariant.BALANCE, message=message)
            if stream.training.steps < steps_before[stream.policy]:
                acknowledged, reported = steps_before[stream.policy], stream.training.steps
                message = f"{stream.policy}: {acknowledged} steps acknowledged, {reported} reported"
                yield Violation(promise=Invariant.LOST, message=message)

    def steps(self) -> dict[PolicyId, int]:
        """Returns the steps acknowledged so far."""
        return {policy: lineage.steps for policy, lineage in self.lineages.items()}

    def check_stored_versions(
        self, policy: PolicyId, kept: Sequence[VersionNotice], published_before: Mapping[Version, bytes]
    ) -> Iterator[Violation]:
        """Checks that stored versions exist with the same bits, except for versions that the store may retire."""
        stored_hashes = {notice.version: notice.root_hash for notice in kept}
        newest = max([*published_before, *stored_hashes], default=-1)
        due = [v for v in published_before if v > newest - self._rules.retained_versions]
        lost = [version for version in due if version not in stored_hashes]
        changed = [v for v, root in stored_hashes.items() if root != self.lineages[policy].expected(v)]
        if lost or changed:
            message = f"{policy}: the store lost versions {lost} and has other bits under {changed}"
            yield Violation(promise=Invariant.VERSIONS, message=message)

    def check_end(self, report: Report) -> Iterator[Violation]:
        """Checks, after all issued tasks have ended, that each group is trained, dropped for a reason, or buffered."""
        for flow in report.flows:
            yield from self.results.check_prompts(flow.id, flow.issued)
            yield from self._without_result(flow.id)
            if flow.open:
                yield Violation(promise=Invariant.LOST, message=f"{flow.open} groups of {flow.id} never ended")
        for stream in report.streams:
            yield from self._check_stream(stream, report)

    def group_counts(self, policy: PolicyId) -> GroupCounts:
        """Counts every issued group that was never in a batch."""
        lineage, counts = self.lineages[policy], {"buffered": 0, "stale": 0, "failed": 0, "uncertain": 0}
        for group, rules in self._groups_of(policy):
            if group in lineage.trained_in:
                continue
            members = self.results.members(group)
            if any(member.certain is None for member in members):
                counts["uncertain"] += 1
            elif is_too_small(members, policy, rules):
                counts["failed"] += 1
            else:
                born = min(
                    member.certain.born[policy]
                    for member in members
                    if member.certain and policy in member.certain.born
                )
                is_stale = born < lineage.steps - lineage.rules.max_staleness
                counts["stale" if is_stale else "buffered"] += 1
        return GroupCounts(**counts)

    def _check_stream(self, stream: StreamReport, report: Report) -> Iterator[Violation]:
        policy, lineage = stream.policy, self.lineages[stream.policy]
        ledger_counts = self.group_counts(policy)
        flows = [flow for flow in report.flows if policy in self._rules.flows[flow.id].policies]
        failed = sum(sum(flow.dropped.values()) for flow in flows)
        stale = stream.groups.dropped.get("stale", 0)
        others = sum(stream.groups.dropped.values()) - stale
        reported_counts = {"buffered": stream.groups.buffered, "stale": stale, "failed": failed}
        if (
            stream.training.steps != lineage.steps
            or len(lineage.trained_in) != stream.groups.trained + stream.groups.in_batch
        ):
            message = f"{policy}: {lineage.steps} steps with {len(lineage.trained_in)} groups were seen, told: {stream}"
            yield Violation(promise=Invariant.LOST, message=message)
        for index, count in reported_counts.items():
            if not count - ledger_counts.uncertain <= getattr(ledger_counts, index) <= count + others:
                message = (
                    f"{policy}: {count} groups are said to be {index}; of what was acknowledged {ledger_counts} remain"
                )
                yield Violation(promise=Invariant.LOST, message=message)

    def _without_result(self, flow: FlowId) -> Iterator[Violation]:
        for group in self.results.groups(flow):
            for number, member in enumerate(self.results.members(group)):
                if not member.contents:
                    message = f"{group}/{number} was issued, nothing was ever handed in for it, and its group ended"
                    yield Violation(promise=Invariant.LOST, message=message)

    def _groups_of(self, policy: PolicyId) -> Iterator[tuple[GroupId, FlowRules]]:
        for flow, rules in self._rules.flows.items():
            if policy in rules.policies:
                for group in self.results.groups(flow):
                    yield group, rules
