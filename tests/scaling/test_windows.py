"""Windows over the cumulative work of nodes."""

import numpy as np
import pytest

from astraflow.scaling.measurement.windows import CountedWork, Window, Work, WorkWindow


def work(**groups: float) -> Work:
    """Returns nodes that were busy for ten seconds a group."""
    counts = np.array(list(groups.values()))
    return Work(ids=tuple(groups), groups=counts, busy_s=10 * counts)


def test_a_window_reaches_back_to_the_latest_snapshot_that_is_old_enough() -> None:
    window = Window[str](60)
    for at in (0, 30, 60, 89):
        window.add(at, f"at {at}")
    assert window.oldest == (0, "at 0")
    window.add(90, "at 90")
    assert window.oldest == (30, "at 30")


def test_work_since_a_snapshot_counts_new_nodes_from_zero() -> None:
    groups, busy_s = work(b=5.0, c=2.0).since(work(a=9.0, b=3.0))
    assert (groups.tolist(), busy_s.tolist()) == ([2.0, 2.0], [20.0, 20.0])


def test_a_work_window_grows_until_it_holds_enough_groups() -> None:
    window = WorkWindow(usual_s=60, widest_s=180, groups=10)
    measured = []
    for at, groups in ((0, 0.0), (60, 4.0), (120, 8.0), (180, 14.0), (240, 24.0), (300, 25.0)):
        measured.append(float(window.add(at, work(a=groups))[0][0]))
    # From 180 s on: 10 groups since 60 s, 10 since 180 s, 11 since 180 s.
    assert measured == [0.0, 4.0, 8.0, 10.0, 10.0, 11.0]
    assert float(window.add(600, work(a=25.0))[0][0]) == 0.0, "at most the widest window"


def test_groups_of_several_episodes_fill_a_window_later() -> None:
    window = WorkWindow(usual_s=60, widest_s=180, groups=10)
    window.add(0, work(a=0.0))
    window.add(60, work(a=22.0))
    groups, busy_s = window.add(120, work(a=40.0), per_group=2.0)
    assert (groups.tolist(), busy_s.tolist()) == ([20.0], [400.0])


@pytest.mark.parametrize(("groups", "counted"), [(3.0, 0.0), (4.0, 2.0)])
def test_first_tasks_do_not_count(groups: float, counted: float) -> None:
    counter = CountedWork(longest_s=100)
    counter.of(work(a=groups), np.array([4.0]))
    later = counter.of(work(a=6.0), np.array([4.0]))
    assert later.groups.tolist() == [counted]
    assert later.busy_s.tolist() == [10 * counted]


@pytest.mark.parametrize(("groups", "counted"), [(9.0, 0.0), (10.0, 10.0)])
def test_a_slow_start_counts_after_the_longest_time(groups: float, counted: float) -> None:
    assert CountedWork(longest_s=100).of(work(a=groups), np.array([40.0])).groups.tolist() == [counted]
