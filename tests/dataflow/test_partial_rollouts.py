"""Every stored partial rollout ends exactly once, and is counted under that end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.dataflow.issuing.partial_rollouts import PartialRollouts
from tests import make

TASK, SOLVER = TaskId("train:0/0"), PolicyId("solver")


def floors(version: int = 0) -> dict[PolicyId, Version]:
    return {SOLVER: Version(version)}


def test_a_partial_rollout_is_kept_until_its_continuation_is_accepted() -> None:
    partial_rollouts, partial = PartialRollouts(), make.partial(TASK, make.recorded("abcde"))
    partial_rollouts.store(partial, floors())
    assert partial_rollouts.get(TASK) is partial
    assert (partial_rollouts.report()["stored"], partial_rollouts.report()["stored_bytes"]) == (1, 5 * (4 + 4))
    partial_rollouts.settle(TASK, continued_tokens=5)
    assert partial_rollouts.get(TASK) is None
    assert partial_rollouts.report() == report(handed_back=1, continued=1, tokens_saved=5)


def test_a_result_without_continued_tokens_discards_the_partial_rollout() -> None:
    partial_rollouts = PartialRollouts()
    partial_rollouts.store(make.partial(TASK), floors())
    partial_rollouts.settle(TASK, continued_tokens=0)
    partial_rollouts.settle(TASK, continued_tokens=0)
    assert partial_rollouts.report() == report(handed_back=1, discarded=1)


def test_a_rollout_returned_twice_counts_as_continued_twice() -> None:
    partial_rollouts = PartialRollouts()
    partial_rollouts.store(make.partial(TASK, make.recorded("ab")), floors())
    partial_rollouts.store(make.partial(TASK, make.recorded("abcd"), continued_tokens=2), floors())
    partial_rollouts.settle(TASK, continued_tokens=4)
    assert partial_rollouts.report() == report(handed_back=2, continued=2, tokens_saved=6)


def test_saved_tokens_are_limited_to_the_stored_ones() -> None:
    partial_rollouts = PartialRollouts()
    partial_rollouts.store(make.partial(TASK, make.recorded("ab")), floors())
    partial_rollouts.settle(TASK, continued_tokens=1_000_000)
    assert partial_rollouts.report()["tokens_saved"] == 2


def test_partial_rollouts_are_dropped_when_they_become_too_stale() -> None:
    partial_rollouts = PartialRollouts()
    mixed = make.recorded("abc", version=3), make.recorded("d", version=2)
    partial_rollouts.store(make.partial(TASK, *mixed), floors(2))
    partial_rollouts.store(make.partial("train:0/1", make.recorded(version=3)), floors(2))
    partial_rollouts.store(make.partial("train:0/2", make.recorded(policy="unbounded")), floors(2))
    assert partial_rollouts.drop_stale(floors(3)) == [TASK]
    partial_rollouts.store(make.partial("train:0/3", make.recorded(version=2)), floors(3))
    assert partial_rollouts.get(TaskId("train:0/3")) is None
    counts = partial_rollouts.report()
    assert (counts["stale"], counts["stored"], counts["handed_back"]) == (2, 2, 4)


def test_a_rollout_with_a_stale_beginning_is_stale() -> None:
    partial_rollouts, generation = PartialRollouts(), make.generation("ab", versions=(2, 3))
    partial_rollouts.store(make.partial(TASK, replace(make.recorded(), generation=generation)), floors(3))
    assert partial_rollouts.get(TASK) is None


def test_restored_rollouts_are_stored_with_their_size() -> None:
    first, second = PartialRollouts(), PartialRollouts()
    first.store(make.partial(TASK), floors())
    second.restore([make.partial(TASK)])
    second.load_state_dict({"handed_back": 1})
    assert second.report() == first.report()


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "settle", "stale", "restart"]), st.integers(0, 3), st.integers(0, 3)),
        max_size=40,
    )
)
def test_every_partial_rollout_has_exactly_one_outcome(steps: list[tuple[str, int, int]]) -> None:
    partial_rollouts, version = PartialRollouts(), 0
    for action, member, number in steps:
        task = TaskId(f"train:0/{member}")
        match action:
            case "keep":
                partial_rollouts.store(
                    make.partial(task, make.recorded(version=number), continued_tokens=number), floors(version)
                )
            case "settle":
                partial_rollouts.settle(task, continued_tokens=number)
            case "stale":
                version = max(version, number)
                partial_rollouts.drop_stale(floors(version))
            case "restart":
                saved = partial_rollouts.state_dict()
                kept = [partial for index in range(4) if (partial := partial_rollouts.get(TaskId(f"train:0/{index}")))]
                partial_rollouts = PartialRollouts()
                partial_rollouts.load_state_dict({reason: int(str(count)) for reason, count in saved.items()})
                partial_rollouts.restore(kept)
        counts = partial_rollouts.report()
        ends = sum(counts[end] for end in ("stored", "continued", "discarded", "stale"))
        assert counts["handed_back"] == ends


def report(**counts: int) -> dict[str, int]:
    """Returns a report with 0 for the counts that are not given."""
    return dict.fromkeys(PartialRollouts().report(), 0) | counts
