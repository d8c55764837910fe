"""Wakes that people request reach the loop once each."""

from astraflow.contract.fleet.maintainer import MaintainerControlState, MaintainerMode
from astraflow.contract.fleet.pools import KillScope
from maintainer.agent.control_state import ControlMonitor
from tests.fakes.clock import ManualClock


def test_a_request_wakes_once_and_earlier_ones_or_a_restarted_service_do_not() -> None:
    monitor = ControlMonitor(MaintainerMode.PROPOSE, ManualClock())

    def receives(requests: int) -> bool:
        state = MaintainerControlState(mode=MaintainerMode.PROPOSE, kill=KillScope.NONE, wake_requests=requests)
        return monitor.update(state)

    assert not monitor.take_wake_request(), "nothing was received yet"
    assert receives(3)
    assert not monitor.take_wake_request(), "requests before its start"
    assert not receives(4), "neither mode nor kill switch changed"
    assert [monitor.take_wake_request(), monitor.take_wake_request()] == [True, False]
    receives(0)
    assert not monitor.take_wake_request()
    receives(1)
    assert monitor.take_wake_request()
