"""Duels of a test's choice, and a case that is over in a moment."""

from dataclasses import replace

from astraflow.runtime.toml import merged
from maintainer.evals.case import Case, Group
from maintainer.evals.cases import CASES
from maintainer.evals.scoring import Duel, Played
from maintainer.evals.usage import Use


def played(cost: float, *, flaps: int = 0, duplicates: int = 0) -> Played:
    """A play that came to a J."""
    return Played(cost=cost, node_hours=cost, wait_hours=0.0, flaps=flaps, actions=1, duplicates=duplicates)


def duel(
    cost: float,
    *,
    rule: float = 10.0,
    group: Group = Group.RIGHT,
    seed: int = 1,
    use: Use | None = None,
    flaps: int = 0,
) -> Duel:
    """A play beside the rule's."""
    return Duel(
        case="steady",
        group=group,
        seed=seed,
        violations=(),
        use=use or Use(),
        played=played(cost, flaps=flaps),
        rule=played(rule),
    )


def brief(name: str, *, hours: float = 0.1) -> Case:
    """A case that ends soon."""
    case = CASES[name]
    return replace(case, overrides=merged(dict(case.overrides), {"hours": hours}))
