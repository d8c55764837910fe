"""Usual compute time of a step, and the demand that follows."""

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.scaling.rule.demand import demand_of, usual_compute_s
from tests.scaling.make import stream

NOISY = (100.0, 110.0, 90.0, 100.0, 110.0, 90.0)


@pytest.mark.parametrize(
    ("steps", "usual"),
    [
        ((120.0,), 120.0),
        ((10.0, 120.0, 118.0, 121.0, 119.0, 122.0, 60.0), 119.5),  # the latest six
        ((120.0,) * 4 + (150.0, 150.0), 120.0),  # a quarter more, exactly
        ((120.0,) * 4 + (151.0, 152.0), 151.5),
        ((120.0,) * 4 + (90.0, 90.0), 120.0),
        ((120.0,) * 4 + (89.0, 88.0), 88.5),
        ((120.0,) * 4 + (89.0, 152.0), 120.0),  # in two directions
        ((120.0, 61.0, 60.0), 61.0),  # one earlier step is too few
        ((120.0, 120.0, 61.0, 60.0), 60.5),
        ((*NOISY, 130.0, 130.0), 105.0),  # two steps within the noise of the earlier ones
        ((*NOISY, 140.0, 140.0), 140.0),
        ((100.0, 120.0, 110.0, 130.0, 90.0, 60.0, 75.0, 50.0), 185 / 3),  # three differ in their mean
        ((120.0, 110.0, 130.0, 90.0, 60.0, 75.0, 50.0), 82.5),  # after four earlier steps: too few
        ((100.0, 120.0, 110.0, 130.0, 90.0, 70.0, 85.0, 60.0), 87.5),  # three within the noise of their mean
    ],
)
def test_clearly_changed_steps_are_used_without_the_earlier_ones(steps: tuple[float, ...], usual: float) -> None:
    assert usual_compute_s(steps)[0] == pytest.approx(usual)


def test_the_noise_is_the_standard_error_of_the_steps_in_use() -> None:
    assert usual_compute_s((120.0,) * 6)[1] == 0.0
    assert usual_compute_s((90.0, 100.0, 100.0, 110.0))[1] == pytest.approx(1.48 * 0.05 / 2)
    assert usual_compute_s((120.0,) * 4 + (60.0, 62.0))[1] == pytest.approx(1.48 / 61 / 2**0.5)


def test_the_demand_is_that_of_the_policy_that_needs_most_groups() -> None:
    demand = demand_of([stream(), stream(policy=PolicyId("verifier"), groups_per_step=70.0)])
    assert demand is not None
    assert (demand.stream.policy, demand.compute_s) == ("verifier", 120.0)
    assert demand.groups_per_s == pytest.approx(70 / 120 * 1.25)


def test_implausible_measurements_are_left_out() -> None:
    demand = demand_of([stream(compute_s=(0.0, -1.0, float("nan"), 1e12, 60.0), produced_per_usable=0.5)])
    assert demand is not None
    assert (demand.compute_s, demand.groups_per_s) == (60.0, 64 / 60)
    assert demand_of([stream(compute_s=())]) is None
    assert demand_of([stream(groups_per_step=0.0)]) is None
    assert demand_of([]) is None
