"""Faults follow from the seed, and every kind occurs often enough."""

from collections import Counter
from itertools import islice

from soak.fault_plan import DisturbLink, End, Kill, LinkFault, ScheduledFault, Stop, faults

WEIGHTS = {"dataflow": 1.5, "node-1": 1.0, "trainer-solver": 1.0}


def first(count: int, *, seed: int = 0) -> list[ScheduledFault]:
    return list(islice(faults(seed, weights=WEIGHTS, nodes=["node-1"], links=["node-1", "weights"]), count))


def test_the_faults_follow_from_the_seed() -> None:
    assert first(50) == first(50)
    assert first(50) != first(50, seed=1)


def test_the_plan_has_about_one_kill_per_second_and_every_kind_of_fault() -> None:
    due = first(4000)
    kinds = Counter(type(due_fault.fault) for due_fault in due)
    assert set(kinds) == {Kill, Stop, End, DisturbLink}
    assert 0.9 < kinds[Kill] / sum(due_fault.after_s for due_fault in due) < 1.1
    assert {due_fault.fault.trouble for due_fault in due if isinstance(due_fault.fault, DisturbLink)} == set(LinkFault)
    assert {due_fault.fault.process for due_fault in due if isinstance(due_fault.fault, Kill)} == set(WEIGHTS)
    assert {due_fault.fault.process for due_fault in due if isinstance(due_fault.fault, End)} == {"node-1"}
