"""Leases compared with a model, over time and several nodes."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import NodeId, TaskId, node_name
from astraflow.dataflow.issuing.leases import Leases

ADA, BOB = NodeId("ada.1"), NodeId("bob.2")
LEASE_S, GRACE_S = 5, 3


def ids(*members: int) -> list[TaskId]:
    return [TaskId(f"train:0/{member}") for member in members]


def queued(members: Iterable[int]) -> Leases:
    leases = Leases(lease_s=10)
    leases.add(ids(*members))
    return leases


def test_an_expired_lease_returns_the_task_to_the_front_of_the_queue() -> None:
    leases, (first, second) = queued(range(2)), ids(0, 1)
    leases.lease(ADA, 1, now=0)
    assert leases.expire(now=9.9) == []
    assert leases.expire(now=10) == [(first, ADA)]
    assert leases.lease(BOB, 2, now=10) == [first, second]


def test_an_unsuitable_task_keeps_its_place_in_the_queue() -> None:
    leases = queued(range(4))
    assert leases.lease(ADA, 2, now=0, suitable=lambda queue: (task for task in queue if task in ids(1, 3))) == ids(
        1, 3
    )
    assert (leases.held_by(ADA), leases.queued) == (2, 2)
    assert leases.lease(BOB, 2, now=0) == ids(0, 2)


def test_returned_tasks_are_leased_in_their_earlier_order() -> None:
    leases = queued(range(6))
    leases.lease(ADA, 3, now=0)
    leases.renew(ADA, ids(0), now=1)
    assert leases.expire(now=10) == [(task, ADA) for task in ids(1, 2)]
    leases.return_tasks_of(ADA)
    assert leases.lease(BOB, 6, now=10) == ids(0, 1, 2, 3, 4, 5)


def test_a_heartbeat_renews_only_named_tasks_of_its_node() -> None:
    leases, tasks = queued(range(3)), ids(0, 1, 2)
    leases.lease(ADA, 2, now=0)
    leases.lease(BOB, 1, now=0)
    leases.renew(ADA, [tasks[0], tasks[2]], now=5)
    assert leases.expire(now=12) == [(tasks[1], ADA), (tasks[2], BOB)]


def test_an_unconfirmed_task_belongs_to_the_node_that_claims_it() -> None:
    leases = Leases(lease_s=10)
    claimed, unclaimed = ids(0, 1)
    leases.add_unconfirmed([claimed, unclaimed], now=0, grace_s=3)
    assert leases.holder(claimed) is None
    leases.renew(ADA, [claimed], now=1)
    assert leases.expire(now=3) == [(unclaimed, None)]
    assert (leases.held_by(ADA), leases.queued, leases.holder(claimed)) == (1, 1, ADA)


def test_a_returning_node_claims_queued_tasks_but_not_leased_ones() -> None:
    leases, (lost, queued_task) = queued(range(2)), ids(0, 1)
    leases.lease(ADA, 2, now=0)
    leases.return_tasks_of(ADA)
    leases.requeue(queued_task)
    leases.lease(BOB, 1, now=1)
    leases.claim(ADA, [lost, queued_task], now=2)
    assert (leases.holder(lost), leases.holder(queued_task), leases.queued) == (ADA, BOB, 0)


def test_a_result_removes_a_task_that_was_queued_again() -> None:
    leases, (task,) = queued([0]), ids(0)
    leases.lease(ADA, 1, now=0)
    leases.expire(now=11)
    assert leases.complete([task]) == 1
    assert leases.lease(BOB, 1, now=11) == []
    assert leases.complete([task]) == 0


def test_a_requeued_task_is_leased_next() -> None:
    leases = queued(range(3))
    leases.lease(ADA, 2, now=0)
    leases.requeue(ids(1)[0])
    assert (leases.held_by(ADA), leases.queued) == (1, 2)
    assert leases.lease(BOB, 1, now=0) == ids(1)


def test_only_holders_of_a_task_may_push_its_result() -> None:
    leases, (task, unconfirmed) = queued([0]), ids(0, 1)
    first, second = NodeId("ada.1"), NodeId("bob.2")
    leases.add_unconfirmed([unconfirmed], now=0, grace_s=3)
    assert not leases.may_push(task, "ada")
    leases.lease(first, 1, now=0)
    assert [leases.may_push(task, owner) for owner in ("ada", "bob")] == [True, False]
    leases.requeue(task)
    leases.lease(second, 1, now=1)
    assert [leases.may_push(task, owner) for owner in ("ada", "bob", "eve")] == [True, True, False]
    assert leases.may_push(unconfirmed, "eve"), "its holder is unknown"
    leases.requeue(unconfirmed)
    assert not leases.may_push(unconfirmed, ""), "it had no known holder"
    leases.complete([task])
    leases.add([task])
    assert not leases.may_push(task, "ada"), "a completed task has no holders"


def test_a_node_gets_one_change_for_all_tasks_that_are_complete() -> None:
    changes: list[tuple[NodeId, int]] = []
    leases = Leases(lease_s=LEASE_S, on_change=lambda node, change: changes.append((node, change)))
    first, second, queued = ids(0, 1, 2)
    leases.add([first, second, queued])
    leases.lease(NodeId("node.1"), 2, now=0)
    assert leases.complete([first, queued, second, first]) == 3
    assert changes == [(NodeId("node.1"), 2), (NodeId("node.1"), -2)]
    assert (leases.held, leases.queued, leases.leased_at(first)) == (0, 0, None)


STEPS = ["lease", "renew", "claim", "expire", "return", "give back", "complete"]


@pytest.mark.long
@given(in_doubt=st.integers(0, 4), steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 8)), max_size=60))
def test_leases_match_a_reference_implementation(in_doubt: int, steps: list[tuple[str, int]]) -> None:
    """Compares with a model that does everything in the slow, obvious way."""
    counts: Counter[NodeId] = Counter()
    leases = Leases(lease_s=LEASE_S, on_change=lambda node, change: counts.update({node: change}))
    tasks = ids(*range(8))
    leases.add_unconfirmed(tasks[:in_doubt], now=0, grace_s=GRACE_S)
    leases.add(tasks[in_doubt:])
    queue = tasks[in_doubt:]
    held: dict[TaskId, tuple[NodeId | None, float]] = dict.fromkeys(tasks[:in_doubt], (None, GRACE_S))
    owners: dict[TaskId, set[str]] = {}
    now = 0.0

    def may_claim(task: TaskId, node: NodeId) -> bool:
        return not owners.get(task) or node_name(node) in owners[task]

    def note_owners(requeued: Iterable[TaskId]) -> None:
        for task in requeued:
            holder = held[task][0] if task in held else None
            if holder is not None:
                owners.setdefault(task, set()).add(node_name(holder))

    for action, number in steps:
        node, other = (ADA, BOB) if number % 2 else (BOB, ADA)
        named = tasks[: number + 1]
        now += 1
        match action:
            case "lease":
                expected, queue = queue[:number], queue[number:]
                assert leases.lease(node, number, now=now) == expected
                held.update(dict.fromkeys(expected, (node, now + LEASE_S)))
            case "renew" | "claim":
                (leases.claim if action == "claim" else leases.renew)(node, named, now=now)
                waiting = [task for task in queue if task in named and action == "claim" and may_claim(task, node)]
                for task in waiting:
                    owners.get(task, set()).discard(node_name(node))
                own = [task for task in named if held.get(task, (other, 0))[0] != other] + waiting
                queue = [task for task in queue if task not in waiting]
                held.update(dict.fromkeys(own, (node, now + LEASE_S)))
            case "expire":
                late = {task for task, (_, until) in held.items() if until <= now}
                expired = leases.expire(now=now)
                assert dict(expired) == {task: held[task][0] for task in late}
                note_owners(late)
                queue = [task for task, _ in expired] + queue
                held = {task: lease for task, lease in held.items() if task not in late}
            case "return":
                returned = leases.return_tasks_of(node)
                assert set(returned) == {task for task, (holder, _) in held.items() if holder == node}
                note_owners(returned)
                queue = returned + queue
                held = {task: lease for task, lease in held.items() if task not in returned}
            case "give back" if tasks[number % 8] in {*queue, *held}:
                task = tasks[number % 8]
                note_owners([task])
                leases.requeue(task)
                queue = [task, *(notice for notice in queue if notice != task)]
                held.pop(task, None)
            case "complete":
                task = tasks[number % 8]
                owners.pop(task, None)
                assert leases.complete([task]) == (task in {*queue, *held})
                queue = [notice for notice in queue if notice != task]
                held.pop(task, None)
        assert (leases.queued, leases.held) == (len(queue), len(held))
        assert all(leases.holder(task) == held.get(task, (None, 0))[0] for task in tasks)
        assert [leases.held_by(node) for node in (ADA, BOB)] == [counts[ADA], counts[BOB]]
        assert [leases.held_by(node) for node in (ADA, BOB)] == [
            sum(holder == node for holder, _ in held.values()) for node in (ADA, BOB)
        ]


def test_a_node_that_holds_more_than_its_share_gets_nothing() -> None:
    leases = Leases(lease_s=10)
    leases.add([TaskId("train:0/0")])
    assert leases.lease(NodeId("node.1"), -2, now=0.0) == []
    assert leases.queued == 1


def test_a_task_grows_older_whatever_heartbeats_and_joins_report() -> None:
    leases, (first, second) = queued(range(2)), ids(0, 1)
    leases.lease(ADA, 1, now=0)
    leases.lease(BOB, 1, now=4)
    for now in (5, 10):
        leases.renew(ADA, [first], now=now)
    leases.return_tasks_of(ADA)
    leases.claim(NodeId("ada.3"), [first], now=12)
    assert [(held.task, held.age_s) for held in leases.older_than(8, now=12)] == [(first, 12), (second, 8)]
    assert leases.oldest_s(NodeId("ada.3"), now=12) == 12


def test_a_reclaimed_task_may_be_returned_by_its_former_holder() -> None:
    leases, (task,) = queued([0]), ids(0)
    leases.lease(ADA, 1, now=0)
    leases.reclaim([task])
    assert leases.lease(BOB, 1, now=1) == [task]
    assert leases.may_push(task, "ada")
    assert [(held.node, held.requeues) for held in leases.older_than(0, now=1)] == [(BOB, 1)]


def test_a_joining_node_claims_no_task_of_another_owner_and_no_more_than_it_may_hold() -> None:
    leases, tasks = queued(range(4)), ids(0, 1, 2, 3)
    leases.lease(ADA, 2, now=0)
    leases.return_tasks_of(ADA)
    leases.claim(BOB, tasks, now=1, at_most=1)
    assert [leases.holder(task) for task in tasks] == [None, None, BOB, None]
