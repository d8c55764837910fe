"""What became of launches that never worked: failed, and taken back, apart."""

from typing import Any

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState, LaunchId
from tests.maintainer.fleet.parts import POOL
from web.present.machines import unfinished


def launch(number: int, state: InstanceState = InstanceState.GONE, **changes: Any) -> Instance:
    """One that was ordered."""
    values: dict[str, Any] = {"provider": "cloud", "actor": "fleet", "reason": "more", "intended_at": 1.0}
    return Instance(id=LaunchId(f"L{number}"), pool=POOL, state=state, expires_at=9e9, **values | changes)


def test_only_launches_that_failed_count_as_failed_and_what_was_wanted_back_is_told_apart() -> None:
    back = "fleet: eu: 4 to 3 nodes, because orders do not arrive here."
    found = unfinished(
        [
            launch(1, gone_at=9.0, cause=Cause.FAILED, message="boot failed"),
            launch(2, InstanceState.RETIRING, cause=Cause.FAILED, message="boot failed"),
            launch(3, gone_at=9.0, message=back),
            launch(4, gone_at=9.0, message=back.replace("4 to 3", "3 to 2")),
            launch(5, gone_at=9.0, ready_at=4.0, message=back),
            launch(6, InstanceState.READY, ready_at=4.0),
            launch(7, InstanceState.PENDING),
        ]
    )
    assert (found.failed, found.why_failed) == (2, (("boot failed", 2),))
    assert (found.taken_back, found.why_taken_back) == (2, (("Orders do not arrive here.", 2),))
