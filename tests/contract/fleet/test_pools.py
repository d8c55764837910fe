"""Specs of pools refuse what the fleet service could not carry out."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId, PoolId
from tests.errors import raises_code

SOLVERS: dict[str, Any] = {"id": PoolId("solvers"), "provider": "here", "policies": ("solver",)}


@pytest.mark.parametrize("mode", [Mode.UP_ONLY, Mode.ON])
def test_a_pool_of_some_policies_cannot_be_autoscaled(mode: Mode) -> None:
    with raises_code(InvalidInput, "pool.partial_autoscaling", mode.value):
        PoolSpec(**SOLVERS, mode=mode)
    for by_hand in (Mode.OFF, Mode.ADVISE):
        with raises_code(InvalidInput, "pool.partial_autoscaling"):
            replace(PoolSpec(**SOLVERS, mode=by_hand), mode=mode)
    assert PoolSpec(**{**SOLVERS, "policies": ()}, mode=mode).mode is mode


def test_the_policies_of_a_pool_are_checked_names() -> None:
    spec = PoolSpec(**{**SOLVERS, "policies": ["solver", "verifier"]})  # as JSON has them

    assert spec.policies == (PolicyId("solver"), PolicyId("verifier"))
    with raises_code(InvalidInput, "id.invalid_name"):
        PoolSpec(**{**SOLVERS, "policies": ("solver,verifier",)})
