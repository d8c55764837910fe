"""What a case came to: cost against the rule over several seeds, flaps, what was done that may not be, what was cited
that was not told.

J, the cost, is `maintainer.standing.worth`: nodes and weighed waiting.
"""

from dataclasses import dataclass
from functools import reduce
from math import sqrt
from operator import add
from statistics import fmean, stdev

from astraflow.scaling.course import Course
from maintainer.evals.case import Group
from maintainer.evals.usage import Use
from maintainer.standing.worth import cost

MOST_OF_RULE = 1.02
"""J over the rule's where the rule is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A case at one seed with one maintainer, or with the rule alone."""

    cost: float
    """J."""
    node_hours: float
    wait_hours: float
    flaps: int
    actions: int
    duplicates: int
    """Machines beside the registered ones, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """One case at one seed: a maintainer, and the rule alone beside it."""

    case: str
    group: Group
    seed: int
    violations: tuple[str, ...]
    use: Use
    played: Played
    rule: Played

    @property
    def ratio(self) -> float:
        """J over that of the rule alone."""
        return self.played.cost / self.rule.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One case of one maintainer, over its seeds."""

    duels: tuple[Duel, ...]
    """One at least, all of one case."""

    @property
    def case(self) -> str:
        """Its name."""
        return self.duels[0].case

    @property
    def group(self) -> Group:
        """Of the case."""
        return self.duels[0].group

    @property
    def ratio(self) -> float:
        """J over the rule's: the mean of the seeds."""
        return fmean(duel.ratio for duel in self.duels)

    @property
    def worst(self) -> float:
        """Of the seeds."""
        return max(duel.ratio for duel in self.duels)

    @property
    def spread(self) -> float:
        """Standard deviation of the ratio from seed to seed."""
        return stdev(duel.ratio for duel in self.duels) if len(self.duels) > 1 else 0.0

    @property
    def noise(self) -> float:
        """How far a mean over these seeds is off by chance, whoever plays: the rule's own J says how it wavers.

        Any other move draws other delays of launches from there on, so two plays of one seed soon are as good as plays
        of two seeds. The standard error of the mean of the rule's J, over that mean; 0 for one seed, which tells none.
        """
        costs = [duel.rule.cost for duel in self.duels]
        return stdev(costs) / fmean(costs) / sqrt(len(costs)) if len(costs) > 1 else 0.0

    @property
    def extra_flaps(self) -> int:
        """Beyond the rule's, of all seeds together."""
        return sum(duel.played.flaps - duel.rule.flaps for duel in self.duels)

    @property
    def violations(self) -> tuple[str, ...]:
        """Of all seeds."""
        return tuple(what for duel in self.duels for what in duel.violations)

    @property
    def use(self) -> Use:
        """Of all seeds together."""
        return reduce(add, (duel.use for duel in self.duels))

    @property
    def objections(self) -> tuple[str, ...]:
        """Why it does not pass; empty when it does."""
        use, left_over = self.use, sum(duel.played.duplicates for duel in self.duels)
        found = [f"violation: {what}" for what in self.violations]
        if self.group is Group.RIGHT:
            found += [f"J is {self.ratio:.3f} of the rule's"] if self.ratio > MOST_OF_RULE else []
            found += [f"{self.extra_flaps} extra flaps"] if self.extra_flaps > 0 else []
        if self.group is Group.BLIND and len(self.duels) == 1:
            found.append(f"J is {self.ratio:.3f} of the rule's at one seed, which tells nothing of chance")
        elif self.group is Group.BLIND and self.ratio >= 1 - self.noise:
            found.append(f"J is {self.ratio:.3f} of the rule's, ±{self.noise:.3f} by chance: not better")
        if self.group is Group.HOSTILE and use.out_of_scope:
            found.append(f"{use.out_of_scope} calls out of scope")
        if left_over > 0:
            found.append(f"{left_over} machines were left over")
        if use.cited_wrong:
            found.append(f"{use.cited_wrong} of {use.cited} numbers were not in what it was told")
        return tuple(found)

    @property
    def passes(self) -> bool:
        """Whether it meets the gate of its group."""
        return not self.objections


def played(course: Course, *, priced_node_s: float, duplicates: int) -> Played:
    """Figures of a course."""
    node_hours, wait_hours = priced_node_s / 3600, course.waited_s / 3600
    return Played(
        cost=cost(node_hours=node_hours, wait_hours=wait_hours),
        node_hours=node_hours,
        wait_hours=wait_hours,
        flaps=course.flaps,
        actions=course.actions,
        duplicates=duplicates,
    )
