"""Cost of a launch, estimated before the launch."""

from typing import Any

import pytest

from astraflow.contract.launching import PoolEstimate
from web.launches.cost import cost_of_pools, instances_text, largest_usd_per_hour


def pool(name: str = "gpu", **differs: Any) -> PoolEstimate:
    usual: dict[str, Any] = {
        "name": name,
        "provider": "aws",
        "kind": "ec2",
        "is_remote": True,
        "initial_nodes": 2,
        "min_nodes": 2,
        "max_nodes": 8,
        "usd_per_hour_max": None,
        "usd_per_day_max": None,
        "node_usd_per_hour": 1.86,
        "price_source": "list price",
    }
    return PoolEstimate(**usual | differs)


@pytest.mark.parametrize(
    ("pools", "limits", "says"),
    [
        ([pool()], (None, None), "$3.72 to $14.88 an hour for 2 to 8 nodes; no budget limit"),
        ([pool(min_nodes=8)], (None, None), "$14.88 an hour for 8 nodes; no budget limit"),
        (
            [pool()],
            (10.0, 200.0),
            "$3.72 to $10.00 an hour for 2 to 8 nodes; at most $10.00 an hour and $200.00 a day",
        ),
        (
            [pool(usd_per_hour_max=6.0), pool("eu", usd_per_hour_max=4.0, node_usd_per_hour=1.0)],
            (None, None),
            "$5.72 to $10.00 an hour for 4 to 16 nodes; at most $10.00 an hour",
        ),
        (
            [pool(usd_per_hour_max=6.0), pool("eu", node_usd_per_hour=1.0)],
            (None, None),
            "$5.72 to $14.00 an hour for 4 to 16 nodes; no budget limit",
        ),
        ([pool(node_usd_per_hour=0.0)], (None, None), "nothing: its providers charge nothing for 2 to 8 nodes"),
        (
            [pool(), pool("eu", node_usd_per_hour=None)],
            (None, 90.0),
            "$3.72 to $14.88 an hour for 4 to 16 nodes, plus eu, price unknown; at most $90.00 a day",
        ),
        (
            [pool(node_usd_per_hour=None)],
            (None, None),
            "2 to 8 nodes: no provider reported its price; no budget limit",
        ),
        ([pool(min_nodes=0, max_nodes=1)], (None, None), "$0.00 to $1.86 an hour for 0 to 1 node; no budget limit"),
    ],
)
def test_the_cost_is_a_range_from_the_smallest_to_the_largest_fleet_within_the_budget(
    pools: list[PoolEstimate], limits: tuple[float | None, float | None], says: str
) -> None:
    assert cost_of_pools(pools, usd_per_hour_max=limits[0], usd_per_day_max=limits[1], is_asked=True) == says


@pytest.mark.parametrize(
    ("pools", "limit", "largest"),
    [
        ([pool()], None, 14.88),
        ([pool()], 10.0, 10.0),
        ([pool(usd_per_hour_max=6.0), pool("eu", node_usd_per_hour=1.0)], None, 14.0),
        ([pool(), pool("eu", node_usd_per_hour=None)], None, None),
        ([pool(), pool("eu", node_usd_per_hour=None)], 30.0, 30.0),
        ([pool(), pool("eu", node_usd_per_hour=None, usd_per_hour_max=5.0)], None, 19.88),
    ],
)
def test_the_largest_cost_is_unknown_where_neither_price_nor_budget_bounds_it(
    pools: list[PoolEstimate], limit: float | None, largest: float | None
) -> None:
    assert largest_usd_per_hour(pools, limit) == (pytest.approx(largest) if largest is not None else None)


def test_before_prices_arrive_the_cost_says_that_they_are_requested() -> None:
    text = cost_of_pools([pool(node_usd_per_hour=None)], usd_per_hour_max=5.0, usd_per_day_max=None, is_asked=False)
    assert text == "2 to 8 nodes: requesting prices from its providers; at most $5.00 an hour"


def test_instances_are_listed_per_pool_with_their_location() -> None:
    here = pool("cpu", provider="here", kind="local_process", is_remote=False, min_nodes=1, max_nodes=1)
    assert instances_text([pool(), here]) == (
        "gpu: 2 to 8 of aws (ec2), elsewhere; cpu: 1 of here (local_process), on this machine"
    )
