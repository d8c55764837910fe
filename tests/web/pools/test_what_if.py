"""The what-if chart: pool targets under other bounds."""

from astraflow.contract.fleet.recommendations import WhatIfAnswer
from tests import make
from web.pools.what_if import BoundsComparison, what_if_view


def test_a_target_that_never_moved_is_drawn_from_the_start() -> None:
    answer = WhatIfAnswer(
        recommendations=(make.pool_advice("eu", target=2, at=1600.0),),
        reports=10,
        began_at=1000.0,
        ended_at=1600.0,
        node_hours={"eu": 0.3},
        recorded_node_hours={"eu": 0.3},
        dollars=1.0,
        recorded_dollars=1.0,
        wait=0.0,
        recorded_wait=0.0,
    )

    view = what_if_view(BoundsComparison(pool="eu", current=answer, changed=answer), max_nodes=4)

    assert view.insight == "These bounds would have made no difference"
    assert view.table["columns"] == {"elapsed": [0, 600], "now": [[2, 2]], "then": [[2, 2]]}
    assert (view.view.latest, view.view.panel.limit) == (("2", "2"), 4.0)
