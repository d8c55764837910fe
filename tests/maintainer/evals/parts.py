"""Constructed results of cases, and short cases."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest

from astraflow.runtime.config.toml import merge_tables
from maintainer.evals.cases import CASES, Case, Group
from maintainer.evals.scoring.scoring import CaseResult, PairedResult
from maintainer.evals.scoring.usage import MaintainerUse


def played(cost: float, *, flaps: int = 0, duplicates: int = 0) -> CaseResult:
    """Returns the result of one run with the given cost J."""
    return CaseResult(cost=cost, node_hours=cost, wait_hours=0.0, flaps=flaps, actions=1, duplicates=duplicates)


def paired_result(
    cost: float,
    *,
    rule: float = 10.0,
    group: Group = Group.RIGHT,
    seed: int = 1,
    use: MaintainerUse | None = None,
    flaps: int = 0,
) -> PairedResult:
    """Returns the result of one run paired with the rule's."""
    return PairedResult(
        case="steady",
        group=group,
        seed=seed,
        violations=(),
        use=use or MaintainerUse(),
        played=played(cost, flaps=flaps),
        rule=played(rule),
    )


def brief(name: str, *, hours: float = 0.1) -> Case:
    """Returns a case with a shorter duration."""
    case = CASES[name]
    return replace(case, overrides=merge_tables(dict(case.overrides), {"hours": hours}))


def sampled(values: Iterable[Any], sample: Collection[Any]) -> list[Any]:
    """Returns parameters of a test: those outside the sample run with `-m long` only."""
    listed = list(values)
    assert set(sample) <= set(listed)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in sample else pytest.mark.long,
        )
        for value in listed
    ]
