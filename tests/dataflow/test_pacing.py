"""Pacing of a stream: fresher batches, the trainer as well supplied as by the gate alone."""

from dataclasses import replace
from statistics import mean

import pytest

from astraflow.dataflow.issuing.pacing import FinishedGroup, Pacer
from tests.dataflow.simulated_stream import Demand, SimulatedStream

STEPS = 150
PLENTY = Demand(nodes=40, max_staleness=8, step_s=2.0, step_noise=0.1, episode_s=1.0)


def simulated(demand: Demand) -> tuple[float, float]:
    """Returns the mean age of the rows in versions, and the share of time that the trainer waited for groups."""
    stream = SimulatedStream(demand)
    stream.run(steps=STEPS)
    begin = STEPS // 5
    waits = [max(0.0, wait - 0.03) for wait in stream.waits_s[begin:]]  # a pull takes 0.03 s
    return mean(stream.ages[begin:]), sum(waits) / (sum(waits) + sum(stream.steps_s[begin:]))


@pytest.mark.long
@pytest.mark.parametrize(
    "demand",
    [
        PLENTY,
        replace(PLENTY, batch_groups=4, nodes=12),
        replace(PLENTY, usable_share=0.5, nodes=80),
        replace(PLENTY, episode_s=3.0, nodes=100),
    ],
    ids=["plenty", "small_batches", "filtered", "long_episodes"],
)
def test_batches_are_much_fresher_and_the_trainer_hardly_waits_longer(demand: Demand) -> None:
    paced_age, paced_wait = simulated(replace(demand, is_paced=True))
    age, wait = simulated(demand)
    assert paced_age < 0.75 * age
    assert paced_wait <= wait + 0.01


@pytest.mark.long
def test_with_too_few_nodes_nothing_changes() -> None:
    short = replace(PLENTY, nodes=4)
    assert simulated(replace(short, is_paced=True)) == simulated(short)


@pytest.mark.long
def test_the_trainer_is_supplied_again_after_its_demand_doubled() -> None:
    demand = replace(PLENTY, nodes=80, is_paced=True, step_factor=lambda step: 1.0 if step < STEPS // 2 else 0.5)
    stream = SimulatedStream(demand)
    stream.run(steps=STEPS)
    assert mean(stream.waits_s[-30:]) < 0.03 + 0.02 * demand.step_s


def measured(*, max_staleness: int = 8, duration_s: float = 2.0, usable: float = 1.0) -> Pacer:
    pacer = Pacer(batch_groups=8, max_staleness=max_staleness)
    pacer.observe_step(1.0)
    for number in range(32):
        pacer.observe_group(FinishedGroup(duration_s=duration_s, is_usable=number < 32 * usable))
    return pacer


def test_there_is_no_limit_before_a_step_and_a_batch_of_groups_were_measured() -> None:
    pacer = Pacer(batch_groups=8, max_staleness=8)
    for _ in range(7):
        pacer.observe_group(FinishedGroup(duration_s=1.0, is_usable=True))
    pacer.observe_step(1.0)
    assert pacer.pace(open_groups=20, buffered=0, fresh_groups=8) is None
    pacer.observe_group(FinishedGroup(duration_s=None, is_usable=True))
    assert pacer.pace(open_groups=20, buffered=0, fresh_groups=8) is None


def test_a_synchronous_stream_has_no_limit_of_its_own() -> None:
    assert measured(max_staleness=0).pace(open_groups=8, buffered=0, fresh_groups=8) is None


def test_the_limit_follows_littles_law_and_the_gate() -> None:
    pace = measured().pace(open_groups=4, buffered=2, fresh_groups=8)
    assert pace is not None
    assert pace.limit == pytest.approx(8 + 8**0.5 + 1.15 * 8 * 2.0)
    assert (pace.outstanding, pace.is_reached) == (6, False)
    most = measured(duration_s=100.0).pace(open_groups=0, buffered=0, fresh_groups=8)
    assert most is not None
    assert most.limit == 72


def test_open_groups_count_by_their_chance_to_pass_the_filters() -> None:
    pace = measured(usable=0.25).pace(open_groups=8, buffered=2, fresh_groups=8)
    assert pace is not None
    assert pace.outstanding == 4


def test_the_limit_grows_with_a_wait_and_shrinks_while_groups_pile_up() -> None:
    pacer = measured()

    def limit() -> float:
        pace = pacer.pace(open_groups=0, buffered=0, fresh_groups=8)
        assert pace is not None
        return pace.limit

    before = limit()
    pacer.observe_missing_batch(now=10.0)
    pacer.observe_missing_batch(now=10.4)
    pacer.observe_batch(0, now=10.5)
    pacer.observe_step(1.0)
    grown = limit()
    assert grown == pytest.approx(before + 4.0)
    for now in range(20, 60):
        pacer.observe_batch(6, now=float(now))
        pacer.observe_step(1.0)
    assert limit() < grown


def test_the_pace_follows_the_last_four_batches_of_groups() -> None:
    pacer = measured(duration_s=2.0)
    for _ in range(32):
        pacer.observe_group(FinishedGroup(duration_s=0.5, is_usable=False))
    pace = pacer.pace(open_groups=8, buffered=2, fresh_groups=8)
    assert pace is not None
    assert (round(pace.group_s, 9), pace.outstanding) == (0.5, 2)
