"""Versions that carry a probe."""

import pytest

from astraflow.contract.ids import Version
from astraflow.trainer.driver import PROBE_TIME_SHARE, ProbeSchedule


def due(schedule: ProbeSchedule, *, versions: int, step_s: float, cost_s: float) -> list[int]:
    """Returns the versions that carry a probe."""
    due_versions = []
    for version in range(versions):
        if version:
            schedule.record_step(step_s)
        if schedule.is_due(Version(version)):
            due_versions.append(version)
            schedule.record_probe(cost_s)
    return due_versions


def test_probes_have_a_fixed_interval_independent_of_restarts() -> None:
    assert due(ProbeSchedule(4), versions=10, step_s=1.0, cost_s=9.0) == [0, 4, 8]
    assert [version for version in range(5, 10) if ProbeSchedule(4).is_due(Version(version))] == [8]


def test_with_long_steps_every_version_has_a_probe() -> None:
    assert due(ProbeSchedule("auto"), versions=5, step_s=100.0, cost_s=0.1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cost_s", [0.0031, 0.01, 0.04, 0.2])
def test_with_short_steps_probes_take_a_bounded_share_of_the_time(cost_s: float) -> None:
    versions = 5000
    due_versions = due(ProbeSchedule("auto"), versions=versions, step_s=0.15, cost_s=cost_s)
    assert due_versions[:2] == [0, 1], "the first probe of a process takes longer, so its duration is ignored"
    assert 0.4 * PROBE_TIME_SHARE < cost_s * len(due_versions) / (0.15 * versions) < 1.2 * PROBE_TIME_SHARE
