"""Tasks are withheld from a node that pushes refused results only, and from no other."""

from astraflow.dataflow.pool.withholding import MAX_IN_A_ROW, MAX_PAUSE_S, LeaseWithholding


def test_a_node_gets_no_tasks_after_refusals_in_a_row_then_one_at_a_time() -> None:
    tasks = LeaseWithholding()
    assert tasks.note("bad", refused=MAX_IN_A_ROW - 1, accepted=0, now=0.0) == 0
    assert tasks.most_tasks("bad", held=0, now=0.0) is None

    assert tasks.note("bad", refused=1, accepted=0, now=0.0) == 1.0
    assert tasks.most_tasks("bad", held=0, now=0.9) == 0
    assert (tasks.most_tasks("bad", held=0, now=1.0), tasks.most_tasks("bad", held=3, now=1.0)) == (1, 0)
    assert tasks.most_tasks("other", held=0, now=0.0) is None

    tasks.note("bad", refused=0, accepted=1, now=2.0)
    assert tasks.most_tasks("bad", held=0, now=2.0) is None


def test_pauses_double_until_accepted_results_make_up_for_the_refused_ones() -> None:
    tasks = LeaseWithholding()
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(tasks.note("bad", refused=8, accepted=0, now=now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S]

    tasks.note("bad", refused=0, accepted=1, now=now)
    assert tasks.note("bad", refused=1, accepted=0, now=now) == MAX_PAUSE_S, "one accepted result is not enough"
    tasks.note("bad", refused=0, accepted=MAX_IN_A_ROW, now=now)
    assert tasks.note("bad", refused=MAX_IN_A_ROW, accepted=0, now=now) == 1.0


def test_refusals_during_a_pause_do_not_extend_it() -> None:
    tasks = LeaseWithholding()
    tasks.note("bad", refused=8, accepted=0, now=0.0)
    assert tasks.note("bad", refused=8, accepted=0, now=0.5) == 0
    assert tasks.most_tasks("bad", held=0, now=1.0) == 1


def test_single_refusals_among_accepted_results_withhold_nothing() -> None:
    tasks = LeaseWithholding()
    for _ in range(100):
        assert tasks.note("honest", refused=1, accepted=9, now=0.0) == 0
    assert tasks.most_tasks("honest", held=9, now=0.0) is None
