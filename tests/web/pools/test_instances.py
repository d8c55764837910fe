"""Outcomes of launches that never became ready: failures count separately from withdrawn launches."""

from typing import Any, cast

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState, LaunchId
from astraflow.contract.fleet.pools import Pool
from tests.maintainer.fleet.parts import POOL
from web.pools.instances import launch_delays, unfinished_launches


def launch(number: int, state: InstanceState = InstanceState.GONE, **changes: Any) -> Instance:
    """Returns an instance that the fleet requested."""
    values: dict[str, Any] = {"provider": "cloud", "actor": "fleet", "reason": "more", "intended_at": 1.0}
    return Instance(id=LaunchId(f"L{number}"), pool=POOL, state=state, expires_at=9e9, **values | changes)


def test_failed_launches_count_separately_from_cancelled_ones() -> None:
    reason = "orders do not arrive here."
    back = f"fleet: {reason}"
    unfinished = unfinished_launches(
        [
            launch(1, gone_at=9.0, cause=Cause.FAILED, message="boot failed"),
            launch(2, InstanceState.RETIRING, cause=Cause.FAILED, message="boot failed"),
            launch(3, gone_at=9.0, message=back),
            launch(4, gone_at=9.0, message=back),
            launch(5, gone_at=9.0, ready_at=4.0, message=back),
            launch(6, InstanceState.READY, ready_at=4.0),
            launch(7, InstanceState.PENDING),
        ]
    )
    assert (unfinished.failed, unfinished.failure_reasons) == (2, (("boot failed", 2),))
    assert (unfinished.cancelled, unfinished.cancel_reasons) == (2, ((back, 2),))


def test_every_delay_is_counted_in_a_bar_whose_range_contains_it() -> None:
    for delays_s in ([75.1, 75.1, 100.0], [90.0, 100.0, 110.0], [10.0, 500.0], [100.0]):
        instances = [
            launch(number, InstanceState.READY, ready_at=1.0 + delay_s) for number, delay_s in enumerate(delays_s)
        ]
        bars = launch_delays(instances, cast("Pool", None)).bars
        assert sum(bar.count for bar in bars) == len(delays_s)
        for bar in bars:
            contained = [delay_s for delay_s in delays_s if bar.low_s - 1e-6 <= delay_s <= bar.high_s + 1e-6]
            assert bar.count <= len(contained), (delays_s, bar)
