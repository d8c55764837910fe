"""Repeated events are combined into one: the journal is not flooded, and the counts stay complete."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.dataflow.history.repeats import MAX_EVENTS_PER_WINDOW, SEVERAL_SUBJECTS, WINDOW_S, RepeatFilter

JOINED, ATTACHED, EXPIRED = RecordKind.NODE_JOINED, RecordKind.TRAINER_ATTACHED, RecordKind.LEASES_EXPIRED


def is_reported(folding: RepeatFilter, kind: RecordKind, subject: str, *, now: float, leases: int = 0) -> bool:
    record = Record(kind=kind, subject=subject, values={"leases": leases})
    return folding.is_reported(record, subject, now=now)


def test_repeats_are_counted_until_the_window_ends() -> None:
    folding = RepeatFilter()
    assert is_reported(folding, EXPIRED, "node-1", leases=3, now=0)
    assert not is_reported(folding, EXPIRED, "node-1", leases=5, now=1)
    assert is_reported(folding, EXPIRED, "node-2", leases=1, now=1)
    assert folding.due(now=WINDOW_S - 1) == []
    (fold,) = folding.due(now=WINDOW_S)
    assert (fold.latest.subject, fold.count, fold.latest.values) == ("node-1", 1, {"leases": 5})
    assert is_reported(folding, EXPIRED, "node-1", leases=2, now=WINDOW_S)


def test_many_subjects_at_once_become_one_event() -> None:
    folding = RepeatFilter()
    reported = [is_reported(folding, JOINED, f"node-{number}", now=0) for number in range(1000)]
    assert sum(reported) == MAX_EVENTS_PER_WINDOW
    (fold,) = folding.due(now=WINDOW_S)
    assert (fold.latest.subject, fold.count) == (SEVERAL_SUBJECTS, 1000 - MAX_EVENTS_PER_WINDOW)
    assert is_reported(folding, ATTACHED, "solver", now=0)


happenings = st.lists(
    st.tuples(
        st.sampled_from([JOINED, ATTACHED]),
        st.sampled_from([f"s{number}" for number in range(40)]),
        st.integers(0, 30),
    ),
    max_size=300,
)


@pytest.mark.long
@given(happenings)
def test_reported_and_counted_events_add_up_to_all_events(happened: list[tuple[RecordKind, str, int]]) -> None:
    folding, now = RepeatFilter(), 0.0
    reported: Counter[RecordKind] = Counter()
    for kind, subject, pause in happened:
        now += pause
        for fold in folding.due(now=now):
            reported[fold.latest.kind] += fold.count
        reported[kind] += is_reported(folding, kind, subject, now=now)
    for fold in folding.all_pending():
        reported[fold.latest.kind] += fold.count
    assert reported == Counter(kind for kind, _, _ in happened)
