"""What-if evaluation of a recorded run under other bounds."""

from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import PoolReport, Report
from astraflow.scaling.options import PoolOptions, Spec
from astraflow.scaling.what_if import changed_spec, replay
from tests import make
from tests.errors import raises_code

LOCAL = PoolId("local")


def recorded(minutes: int, *, ready: int, compute_s: float = 10.0) -> list[Report]:
    """Returns a run whose node makes 0.1 groups a second, with steps of four groups."""
    inputs = {
        "compute_s": compute_s,
        "groups_per_step": 4.0,
        "produced_per_usable": 1.0,
        "node_groups_per_s": 0.1,
        "price_per_hour": 2.0,
    }
    pool = PoolReport(id=LOCAL, ready=ready, joining=0, draining=0, lost=0, episodes_per_s=0.0, tokens_per_s=0.0)
    return [
        replace(make.report(), at=60.0 * minute, pools=(pool,), recommendations=(make.pool_advice(inputs=inputs),))
        for minute in range(minutes)
    ]


def spec(**options: object) -> Spec:
    return Spec(pools={LOCAL: PoolOptions.parse({"max_nodes": 100, "launch_delay_s": 60.0} | options, where="pool")})


@pytest.mark.long
def test_a_replay_recommends_fewer_nodes_than_a_fixed_pool_had() -> None:
    answer = replay(recorded(120, ready=8), spec())
    assert answer.recommendations[-1].target in (4, 5)
    assert answer.recorded_node_hours["local"] == pytest.approx(8 * 119 / 60)
    assert answer.node_hours["local"] < 0.75 * answer.recorded_node_hours["local"]
    assert answer.recorded_dollars == pytest.approx(2.0 * 8 * 119 / 60)
    assert (answer.wait, answer.recorded_wait) == (0.0, 0.0)


def test_a_bound_below_the_demand_predicts_the_wait() -> None:
    answer = replay(recorded(120, ready=8), spec(max_nodes=2))
    assert answer.recommendations[-1].target == 2
    assert answer.wait == pytest.approx(0.5, abs=0.02)


def test_the_same_question_has_the_same_answer() -> None:
    reports = recorded(60, ready=3)
    assert replay(reports, spec()) == replay(reports, spec())


def test_reports_without_measurements_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        replay([make.report()], spec())
    assert caught.value.code == "scaling.demand_not_measured"


def test_given_options_override_those_of_the_run() -> None:
    changed = changed_spec(
        spec(), options={"headroom": 0.1}, pools={"local": {"max_nodes": 3}, "other": {"max_nodes": 1}}
    )
    assert changed.options.headroom == 0.1
    assert (changed.pools[LOCAL].max_nodes, changed.pools[LOCAL].launch_delay_s) == (3, 60.0)
    assert changed.pools[PoolId("other")].max_nodes == 1
    with raises_code(InvalidInput, "config.invalid", "'headroom'"):
        changed_spec(spec(), options={"head_room": 0.1}, pools={})
    with pytest.raises(InvalidInput) as caught:
        changed_spec(spec(), options={}, pools={"local": 3})
    assert caught.value.code == "scaling.pool_options_not_table"
