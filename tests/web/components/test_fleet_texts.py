"""Texts about the fleet."""

from astraflow.contract.reports.capacity import CapacityBalance
from tests import make
from tests.fakes.synthetic_run import SyntheticRun
from web.components.fleet_texts import balance_insight, ratio_note
from web.history.points import Series

BALANCE = CapacityBalance(ready_nodes=7, pending_nodes=0, lost_nodes=0, expected_nodes=7, demand=6.92, ready=9.75)


def test_the_ratio_is_that_of_the_two_printed_numbers() -> None:
    assert BALANCE.ratio == 9.75 / 6.92
    assert ratio_note(BALANCE) == "9.75 groups/s ready, 6.92 needed"


def test_without_demand_the_ratio_says_what_it_waits_for() -> None:
    unmeasured = CapacityBalance(ready_nodes=1, pending_nodes=0, lost_nodes=0, expected_nodes=1)
    assert unmeasured.ratio is None
    assert "Not measured yet" in ratio_note(unmeasured)


def test_the_title_of_the_chart_counts_the_time_in_which_ready_nodes_did_not_suffice() -> None:
    series = Series()
    for second in (*range(30, 35), *range(95, 100)):
        series.add(SyntheticRun().report(second))

    title = balance_insight(series.window(900))

    assert title.startswith("Ready nodes can make 30.5 groups/s, and 41.0 are needed; less than needed 50")
    assert title.endswith("; the target moved once")
    assert balance_insight([]) == "Demand is measured from the third step on"
    assert make.report().recommendations == ()
