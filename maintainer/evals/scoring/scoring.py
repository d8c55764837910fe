"""Scores of cases: cost relative to the rule over several seeds, flaps, violations, and cited numbers without a source.

The cost J is `maintainer.agent.scorecard.live_run.cost`: nodes and weighted waiting.
"""

from dataclasses import dataclass
from functools import reduce
from math import sqrt
from operator import add
from statistics import fmean, stdev

from astraflow.scaling.simulation.result import SimulationResult
from maintainer.agent.scorecard.live_run import cost
from maintainer.evals.cases import Group
from maintainer.evals.scoring.usage import MaintainerUse

MAX_COST_RATIO = 1.02
"""Maximum ratio of J to the rule's where the rule is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Result of a case at one seed, with a maintainer or the rule alone."""

    cost: float
    """Cost J."""
    node_hours: float
    wait_hours: float
    flaps: int
    actions: int
    duplicates: int
    """Instances at the end that are not registered. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult:
    """Results of one case at one seed: with a maintainer, and with the rule alone."""

    case: str
    group: Group
    seed: int
    violations: tuple[str, ...]
    use: MaintainerUse
    played: CaseResult
    rule: CaseResult
    is_cut: bool = False
    """The model was called no more because its money was spent: no score."""

    @property
    def ratio(self) -> float:
        """Ratio of J to that of the rule alone."""
        return self.played.cost / self.rule.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of a maintainer in one case, over its seeds."""

    paired_results: tuple[PairedResult, ...]
    """At least one, all of the same case."""

    @property
    def case(self) -> str:
        """Name of the case."""
        return self.paired_results[0].case

    @property
    def group(self) -> Group:
        """Group of the case."""
        return self.paired_results[0].group

    @property
    def ratio(self) -> float:
        """Mean ratio of J to the rule's over the seeds."""
        return fmean(paired_result.ratio for paired_result in self.paired_results)

    @property
    def worst(self) -> float:
        """Largest ratio of the seeds."""
        return max(paired_result.ratio for paired_result in self.paired_results)

    @property
    def spread(self) -> float:
        """Standard deviation of the ratio over the seeds."""
        return (
            stdev(paired_result.ratio for paired_result in self.paired_results) if len(self.paired_results) > 1 else 0.0
        )

    @property
    def noise(self) -> float:
        """Standard error of a mean over these seeds, relative to it, estimated from the rule's own J.

        Any different action draws different launch delays from then on, so two runs of one seed soon behave like runs
        of two seeds. 0 for one seed, which gives no estimate.
        """
        costs = [paired_result.rule.cost for paired_result in self.paired_results]
        return stdev(costs) / fmean(costs) / sqrt(len(costs)) if len(costs) > 1 else 0.0

    @property
    def extra_flaps(self) -> int:
        """Flaps beyond the rule's, summed over the seeds."""
        return sum(paired_result.played.flaps - paired_result.rule.flaps for paired_result in self.paired_results)

    @property
    def violations(self) -> tuple[str, ...]:
        """Violations at all seeds."""
        return tuple(violation for paired_result in self.paired_results for violation in paired_result.violations)

    @property
    def use(self) -> MaintainerUse:
        """Usage summed over the seeds."""
        return reduce(add, (paired_result.use for paired_result in self.paired_results))

    @property
    def objections(self) -> tuple[str, ...]:
        """Reasons why the case is not passed; empty if it is."""
        use, left_over = self.use, sum(paired_result.played.duplicates for paired_result in self.paired_results)
        objections = [f"violation: {violation}" for violation in self.violations]
        if self.group is Group.RIGHT:
            objections += [f"J is {self.ratio:.3f} of the rule's"] if self.ratio > MAX_COST_RATIO else []
            objections += [f"{self.extra_flaps} extra flaps"] if self.extra_flaps > 0 else []
        if self.group is Group.BLIND and len(self.paired_results) == 1:
            objections.append(f"J is {self.ratio:.3f} of the rule's at one seed, which does not show the noise")
        elif self.group is Group.BLIND and self.ratio >= 1 - self.noise:
            objections.append(f"J is {self.ratio:.3f} of the rule's, noise ±{self.noise:.3f}: not better")
        if self.group is Group.HOSTILE and use.out_of_scope:
            objections.append(f"{use.out_of_scope} calls out of scope")
        if left_over > 0:
            objections.append(f"{left_over} instances were left over")
        if use.cited_wrong:
            objections.append(f"{use.cited_wrong} of {use.cited} cited numbers have no source")
        return tuple(objections)

    @property
    def passes(self) -> bool:
        """True if the case meets the criterion of its group."""
        return not self.objections


def played(course: SimulationResult, *, priced_node_s: float, duplicates: int, wasted_s: float = 0.0) -> CaseResult:
    """Figures of a simulation result. wasted_s: time in which training had no effect, which counts as waiting."""
    node_hours, wait_hours = priced_node_s / 3600, (course.waited_s + wasted_s) / 3600
    return CaseResult(
        cost=cost(node_hours=node_hours, wait_hours=wait_hours),
        node_hours=node_hours,
        wait_hours=wait_hours,
        flaps=course.flaps,
        actions=course.actions,
        duplicates=duplicates,
    )
