"""Repeated events are combined into one: the journal is not flooded, and the counts stay complete."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.history.repeats import MAX_EVENTS_PER_WINDOW, SEVERAL_SUBJECTS, WINDOW_S, RepeatFilter


def test_repeats_are_counted_until_the_window_ends() -> None:
    folding = RepeatFilter()
    assert folding.is_reported("leases_expired", "node-1", "3 leases", now=0)
    assert not folding.is_reported("leases_expired", "node-1", "5 leases", now=1)
    assert folding.is_reported("leases_expired", "node-2", "1 lease", now=1)
    assert folding.due(now=WINDOW_S - 1) == []
    (fold,) = folding.due(now=WINDOW_S)
    assert (fold.subject, fold.count, fold.message) == ("node-1", 1, "5 leases")
    assert folding.is_reported("leases_expired", "node-1", "2 leases", now=WINDOW_S)


def test_many_subjects_at_once_become_one_event() -> None:
    folding = RepeatFilter()
    reported = [folding.is_reported("node_joined", f"node-{number}", "", now=0) for number in range(1000)]
    assert sum(reported) == MAX_EVENTS_PER_WINDOW
    (fold,) = folding.due(now=WINDOW_S)
    assert (fold.subject, fold.count) == (SEVERAL_SUBJECTS, 1000 - MAX_EVENTS_PER_WINDOW)
    assert folding.is_reported("trainer_attached", "solver", "", now=0)


happenings = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([f"s{number}" for number in range(40)]), st.integers(0, 30)),
    max_size=300,
)


@pytest.mark.long
@given(happenings)
def test_reported_and_counted_events_add_up_to_all_events(happened: list[tuple[str, str, int]]) -> None:
    folding, now = RepeatFilter(), 0.0
    reported: Counter[str] = Counter()
    for kind, subject, pause in happened:
        now += pause
        for fold in folding.due(now=now):
            reported[fold.kind] += fold.count
        reported[kind] += folding.is_reported(kind, subject, "", now=now)
    for fold in folding.all_pending():
        reported[fold.kind] += fold.count
    assert reported == Counter(kind for kind, _, _ in happened)
