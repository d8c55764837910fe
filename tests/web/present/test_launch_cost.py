"""What a launch costs, said before it costs anything."""

from typing import Any

import pytest

from web.launching.catalogue import PoolOffer
from web.present.launch_cost import cost_of_pools, machines_of


def pool(name: str = "gpu", **differs: Any) -> PoolOffer:
    usual = {
        "name": name,
        "provider": "aws",
        "kind": "ec2",
        "is_elsewhere": True,
        "first_nodes": 2,
        "min_nodes": 2,
        "max_nodes": 8,
        "usd_per_hour_max": None,
        "usd_per_day_max": None,
        "node_usd_per_hour": 1.86,
        "price_source": "list price",
    }
    return PoolOffer.model_validate(usual | differs)


@pytest.mark.parametrize(
    ("pools", "limits", "says"),
    [
        ([pool()], (None, None), "$3.72 to $14.88 an hour for 2 to 8 nodes; no budget bounds it"),
        ([pool(min_nodes=8)], (None, None), "$14.88 an hour for 8 nodes; no budget bounds it"),
        (
            [pool()],
            (10.0, 200.0),
            "$3.72 to $10.00 an hour for 2 to 8 nodes; never more than $10.00 an hour and $200.00 a day",
        ),
        (
            [pool(usd_per_hour_max=6.0), pool("eu", usd_per_hour_max=4.0, node_usd_per_hour=1.0)],
            (None, None),
            "$5.72 to $10.00 an hour for 4 to 16 nodes; never more than $10.00 an hour",
        ),
        (
            [pool(usd_per_hour_max=6.0), pool("eu", node_usd_per_hour=1.0)],
            (None, None),
            "$5.72 to $14.00 an hour for 4 to 16 nodes; no budget bounds it",
        ),
        ([pool(node_usd_per_hour=0.0)], (None, None), "nothing: its providers ask nothing for 2 to 8 nodes"),
        (
            [pool(), pool("eu", node_usd_per_hour=None)],
            (None, 90.0),
            "$3.72 to $14.88 an hour for 4 to 16 nodes, and eu, whose price is not known; never more than $90.00 a day",
        ),
        (
            [pool(node_usd_per_hour=None)],
            (None, None),
            "2 to 8 nodes: no provider said its price; no budget bounds it",
        ),
        ([pool(min_nodes=0, max_nodes=1)], (None, None), "$0.00 to $1.86 an hour for 0 to 1 node; no budget bounds it"),
    ],
)
def test_the_smallest_and_the_largest_fleet_have_a_price_within_the_budget(
    pools: list[PoolOffer], limits: tuple[float | None, float | None], says: str
) -> None:
    assert cost_of_pools(pools, usd_per_hour_max=limits[0], usd_per_day_max=limits[1], is_asked=True) == says


def test_before_providers_were_asked_it_says_so() -> None:
    said = cost_of_pools([pool(node_usd_per_hour=None)], usd_per_hour_max=5.0, usd_per_day_max=None, is_asked=False)
    assert said == "2 to 8 nodes: its providers are being asked for their prices; never more than $5.00 an hour"


def test_machines_are_told_by_pool() -> None:
    here = pool("cpu", provider="here", kind="local_process", is_elsewhere=False, min_nodes=1, max_nodes=1)
    assert machines_of([pool(), here]) == (
        "gpu: 2 to 8 of aws (ec2), elsewhere; cpu: 1 of here (local_process), on this machine"
    )
