"""A run in which every episode fails is recognized after a minute, and no other run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.reports.report import NodeState, Report
from astraflow.dataflow.reporting.failures import FAILING_S, PAUSE_S, TotalFailure
from tests import make

Change = Callable[[int], dict[str, Any]]


def at(second: int, *, episodes: dict[str, int], state: NodeState = NodeState.READY, **stream: Any) -> Report:
    flow = replace(make.flow_report(), episodes=episodes)
    waiting = make.stream_report(**{"is_waiting": True, "steps": 0} | stream)
    plain = make.report(waiting, flows=(flow,), nodes=(make.node_report(state=state),))
    return replace(plain, at=1000.0 + second)


def recognized_at(change: Change, *, seconds: int = 200) -> int | None:
    """Returns the second in which the run is recognized; None if it is not."""
    watch = TotalFailure()
    return next((second for second in range(seconds) if watch.observe(at(second, **change(second)))), None)


@pytest.mark.parametrize("outcome", ["failed_reward", "failed_workflow", "failed_environment"])
def test_a_run_in_which_every_episode_fails_is_recognized_after_a_minute(outcome: str) -> None:
    assert recognized_at(lambda second: {"episodes": {outcome: 9 * second}}) == FAILING_S + 1


def test_failures_in_bursts_count_as_long_as_no_pause_is_between_them() -> None:
    def bursts(every_s: int) -> Change:
        return lambda second: {"episodes": {"failed_reward": 8 * (second // every_s)}}

    assert recognized_at(bursts(20)) == 20 + FAILING_S
    assert recognized_at(bursts(int(PAUSE_S) + 1)) is None


OTHERS: dict[str, Change] = {
    "an episode succeeds now and then": lambda second: {
        "episodes": {"failed_reward": 9 * second, "accepted": second // 50}
    },
    "steps are trained": lambda second: {"episodes": {"failed_reward": 9 * second}, "steps": second // 50},
    "an engine that restarts": lambda second: {"episodes": {"retried": 9 * second, "failed_engine": 3 * second}},
    "no engine has loaded": lambda second: {"episodes": {"failed_reward": second}, "state": NodeState.JOINING},
    "a trainer that computes": lambda second: {"episodes": {"failed_reward": second}, "is_waiting": False},
    "failures of an earlier time": lambda second: {"episodes": {"failed_reward": 500}},
    "three failures": lambda second: {"episodes": {"failed_reward": min(3, second // 25)}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_runs_are_not_recognized(name: str) -> None:
    assert recognized_at(OTHERS[name]) is None
