"""Shares of nodes, tokens and pools: what a holder may lease beside others, and how results and losses change it."""

from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import NodeId
from astraflow.dataflow.issuing.shares import (
    FIRST_TASKS,
    FRUITLESS,
    LOSS,
    MAX_PAUSE_S,
    MAX_REFUSED,
    MAX_WAIT_S,
    PROBES,
    RIVAL_S,
    Room,
    Shares,
)

ADA, BOB, EVE = NodeId("ada.1"), NodeId("bob.2"), NodeId("eve.3")
BLOCKED = Room(tasks=0, may_use_slack=False, is_blocked=True)
KEYS = {ADA: ("ada", "first", "eu"), BOB: ("bob", "second", "us"), EVE: ("eve", "second", "us")}


def shares(*nodes: NodeId) -> Shares:
    """Returns the shares of nodes that have just called. Bob and Eve share a token and a pool."""
    known = Shares(lambda node: KEYS.get(node, (str(node), "third", "asia")))
    for node in nodes:
        known.see(node, now=0)
    return known


def test_a_node_without_rivals_may_hold_everything() -> None:
    alone = shares(ADA)
    alone.hold(ADA, 1000)
    assert alone.room(ADA, now=0) == Room(tasks=None)


def test_before_the_first_result_of_a_run_nothing_is_limited() -> None:
    assert shares(ADA, BOB).room(ADA, now=0) == Room(tasks=None)


def test_beside_a_node_with_results_a_new_one_gets_its_first_tasks_and_slack() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.hold(BOB, 10)
    assert known.room(BOB, now=0) == Room(tasks=FIRST_TASKS - 10, may_use_slack=True)
    assert known.room(ADA, now=0) == Room(tasks=None), "nobody else has results"


def test_a_rival_that_was_not_seen_lately_limits_nothing() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.see(BOB, now=RIVAL_S + 1)
    assert known.room(BOB, now=RIVAL_S + 1) == Room(tasks=None)


def test_results_double_the_limit_of_a_node_that_uses_it() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    limit = FIRST_TASKS
    for _ in range(5):
        room = known.room(BOB, now=0).tasks
        assert room == limit
        known.hold(BOB, room)
        known.hold(BOB, -room)
        known.succeed(BOB, room)
        limit *= 2


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    for _ in range(100):
        known.succeed(BOB, 2)
    assert known.room(BOB, now=0).tasks == FIRST_TASKS


def test_nodes_of_one_token_share_its_limit() -> None:
    known = shares(ADA, BOB, EVE)
    known.succeed(ADA, 1)
    known.hold(BOB, 30)
    assert known.room(EVE, now=0).tasks == FIRST_TASKS - 30
    known.hold(EVE, 30)
    assert known.is_over(BOB)
    assert not known.is_over(ADA)


def test_a_node_that_keeps_tasks_gets_probes_at_growing_intervals() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.lose(BOB, FIRST_TASKS, now=0)
    assert known.is_on_probation(BOB)
    assert known.room(BOB, now=0.9) == BLOCKED
    assert known.room(BOB, now=1) == Room(tasks=PROBES, may_use_slack=False)
    waits = []
    for _ in range(8):
        known.lose(BOB, 1, now=10)
        waits.append(next(wait for wait in (2, 4, 8, 16, 32, MAX_WAIT_S) if _is_free(known, 10 + wait)))
    assert waits == [2, 4, 8, 16, 32, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]


def _is_free(known: Shares, now: float) -> bool:
    known.see(ADA, now=now)
    return bool(known.room(BOB, now=now).tasks)


def test_results_end_the_probation() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.lose(BOB, 100, now=0)
    known.succeed(BOB, FIRST_TASKS - PROBES)
    assert not known.is_on_probation(BOB)


def test_an_occasional_loss_does_not_slow_a_node() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.hold(BOB, 200)
    for _ in range(20):
        known.succeed(BOB, 95)
        known.lose(BOB, 5, now=0)
    room = known.room(BOB, now=0)
    assert room.tasks is not None
    assert room.tasks >= 200


def test_a_node_that_leaves_and_joins_again_keeps_its_limit_and_its_probation() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    known.lose(BOB, 100, now=0)
    known.forget(BOB)
    again = NodeId("bob.9")
    KEYS[again] = KEYS[BOB]
    try:
        assert known.is_on_probation(again)
    finally:
        del KEYS[again]


def test_failures_alone_are_losses_only_beside_results_of_others() -> None:
    known = shares(ADA, BOB)
    known.fail(BOB, 10 * FRUITLESS, now=0)
    assert not known.is_on_probation(BOB), "the flow fails on every node"
    known.succeed(ADA, 1)
    known.fail(BOB, 1, now=0)
    known.fail(BOB, FIRST_TASKS // LOSS, now=0)
    assert known.is_on_probation(BOB)


def test_failures_between_results_are_no_losses() -> None:
    known = shares(ADA, BOB)
    known.succeed(ADA, 1)
    for _ in range(100):
        known.fail(BOB, FRUITLESS - 1, now=0)
        known.succeed(BOB, 1)
    assert not known.is_on_probation(BOB)


def test_a_node_gets_no_tasks_after_refused_results_then_one_at_a_time() -> None:
    known = shares(BOB)
    assert known.judge(BOB, refused=MAX_REFUSED - 1, accepted=0, now=0) == 0
    assert known.room(BOB, now=0) == Room(tasks=None)

    assert known.judge(BOB, refused=1, accepted=0, now=0) == 1
    assert known.room(BOB, now=0.9) == BLOCKED
    assert known.room(BOB, now=1) == Room(tasks=1, may_use_slack=False), "also without a rival"
    assert known.room(EVE, now=0) == Room(tasks=None), "refused results count for no other node of the token"
    known.hold(BOB, 3)
    assert known.room(BOB, now=1) == Room(tasks=0, may_use_slack=False)

    known.judge(BOB, refused=0, accepted=1, now=2)
    assert known.room(BOB, now=2) == Room(tasks=None)


def test_pauses_double_until_accepted_results_make_up_for_the_refused_ones() -> None:
    known = shares(BOB)
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(known.judge(BOB, refused=8, accepted=0, now=now))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S]

    known.judge(BOB, refused=0, accepted=1, now=now)
    assert known.judge(BOB, refused=1, accepted=0, now=now) == MAX_PAUSE_S, "one accepted result is not enough"
    known.judge(BOB, refused=0, accepted=MAX_REFUSED, now=now)
    assert known.judge(BOB, refused=MAX_REFUSED, accepted=0, now=now) == 1


def test_refusals_during_a_pause_do_not_extend_it() -> None:
    known = shares(BOB)
    known.judge(BOB, refused=8, accepted=0, now=0)
    assert known.judge(BOB, refused=8, accepted=0, now=0.5) == 0
    assert known.room(BOB, now=1).tasks == 1


def test_single_refusals_among_accepted_results_pause_nothing() -> None:
    known = shares(BOB)
    assert [known.judge(BOB, refused=1, accepted=9, now=0) for _ in range(100)] == [0.0] * 100
    assert known.room(BOB, now=0) == Room(tasks=None)


def test_a_trial_after_refused_results_is_within_the_share() -> None:
    known = shares(ADA, BOB, EVE)
    known.succeed(ADA, 1)
    known.judge(BOB, refused=8, accepted=0, now=0)
    known.hold(EVE, FIRST_TASKS)
    assert known.room(BOB, now=1).tasks == 0, "its token holds its limit"
    known.hold(EVE, -1)
    assert known.room(BOB, now=1).tasks == 1


STEPS = st.tuples(
    st.sampled_from(["lease", "return", "lose", "fail", "refuse", "rejoin", "pause"]),
    st.sampled_from([BOB, EVE]),
    st.integers(0, 80),
)


@given(steps=st.lists(STEPS, max_size=80))
def test_beside_an_honest_node_no_holder_gets_more_than_its_limit_and_the_honest_one_always_gets_some(
    steps: list[tuple[str, NodeId, int]],
) -> None:
    """Whatever Bob and Eve do, Ada, who returns what she leases, is not limited below twice what she runs."""
    known = shares(ADA, BOB, EVE)
    known.succeed(ADA, 1)
    held = {BOB: 0, EVE: 0}
    now = 0.0
    for action, node, number in steps:
        now += 0.5
        known.see(ADA, now=now)
        room = known.room(ADA, now=now)
        honest = FIRST_TASKS if room.tasks is None else min(FIRST_TASKS, room.tasks)
        assert honest == FIRST_TASKS
        known.hold(ADA, honest)
        known.hold(ADA, -honest)
        known.succeed(ADA, honest)
        known.see(node, now=now)
        match action:
            case "lease":
                free = known.room(node, now=now).tasks
                assert free is not None
                known.hold(node, free)
                held[node] += free
                assert not known.is_over(node) or free == 0
            case "return":
                done = min(number, held[node])
                known.hold(node, -done)
                known.succeed(node, done)
                held[node] -= done
            case "lose":
                kept = min(number, held[node])
                known.hold(node, -kept)
                known.lose(node, kept, now=now)
                held[node] -= kept
            case "fail":
                known.fail(node, number, now=now)
            case "refuse":
                assert known.judge(node, refused=number, accepted=0, now=now) <= MAX_PAUSE_S
            case "rejoin":
                known.hold(node, -held[node])
                held[node] = 0
                known.forget(node)
            case "pause":
                now += number
    known.see(ADA, now=now)
    known.see(BOB, now=now + 2 * MAX_WAIT_S)
    known.see(ADA, now=now + 2 * MAX_WAIT_S)
    known.hold(BOB, -held[BOB])
    known.hold(EVE, -held[EVE])
    free = known.room(BOB, now=now + 2 * MAX_WAIT_S).tasks
    assert free is not None
    has_refused = ("refuse", BOB) in {step[:2] for step in steps}
    assert free >= (1 if has_refused else PROBES), "the counts balance, and no holder is refused for ever"
