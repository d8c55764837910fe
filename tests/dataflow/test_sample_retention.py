"""Retention of sampled groups: some of each step for the whole run, of the same prompts where possible; the newest."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.rollouts.tasks import prompt_position
from astraflow.dataflow.history.sample_retention import GroupKey, SampleRetention, StoredGroup, sparsity

SOLVER = PolicyId("solver")
SERIES = SOLVER, None


class Samples:
    """The stored groups of a run, as the retention leaves them."""

    def __init__(self, *, limit: int, per_step: int = 2, limit_bytes: int = 10**9) -> None:
        self.retention = SampleRetention(limit=limit, limit_bytes=limit_bytes, per_step=per_step)
        self.steps: dict[GroupKey, int] = {}
        self.prompts: dict[GroupKey, str] = {}
        self.ranks: dict[GroupKey, int | None] = {}
        self.stored: dict[GroupKey, StoredGroup] = {}
        self.number = 0

    def train(self, step: int, prompts: list[int], *, size: int = 8) -> None:
        """Adds the groups of these prompts and trains them in a step."""
        keys = []
        for prompt in prompts:
            self.number += 1
            name, key = f"letters:{prompt}", (SOLVER, GroupId(f"train:{self.number}"))
            keys.append(key)
            self.steps[key], self.prompts[key] = step, name
            self.stored[key] = StoredGroup(
                    ordinal=self.number, trajectories=size, size_bytes=100 * size, prompt=name,
                    position=prompt_position(name),
                )  # fmt: skip
            self.retention.add(key, self.stored[key])
            _, deleted = self.retention.take_surplus()
            for gone in deleted:
                del self.steps[gone]
                self.ranks.pop(gone, None)
        for key in keys:
            if key in self.steps:
                self.ranks |= self.retention.choose(key, SERIES, step)

    @property
    def groups_of(self) -> Counter[int]:
        """Number of groups by step."""
        return Counter(self.steps.values())


def trained(steps: int, *, limit: int, batch: int = 4, prompts: int = 512) -> Samples:
    """Trains steps of a data set whose prompts come again in each epoch."""
    samples = Samples(limit=limit)
    for step in range(1, steps + 1):
        samples.train(step, [(step * 37 + index * 101) % prompts for index in range(batch)])
    return samples


def test_a_long_run_has_groups_of_its_first_steps_and_near_every_step() -> None:
    samples = trained(3000, limit=4000)
    groups = samples.groups_of

    assert all(groups[step] == 2 for step in range(1, 17)), "the first steps are complete"
    kept = sorted(groups)
    assert all(later - earlier <= max(1, earlier / 8) for earlier, later in pairwise(kept))
    newest = [step for step in kept if groups[step] == 4]
    assert newest[-1] == 3000
    assert newest == list(range(newest[0], 3001)), "the newest steps are complete"
    assert 3900 <= 8 * sum(groups.values()) <= 4000


def test_the_first_prompts_of_the_random_order_are_chosen_and_found_again_over_the_run() -> None:
    samples = trained(3000, limit=4000)
    steps: dict[str, set[int]] = {}
    for key, step in samples.steps.items():
        steps.setdefault(samples.prompts[key], set()).add(step)
    most = sorted(steps, key=lambda prompt: -len(steps[prompt]))[:4]

    assert all(len(steps[prompt]) >= 4 for prompt in most)
    first = min(most, key=prompt_position)
    assert min(steps[first]) < 300 < 1500 < max(steps[first])


def test_the_choice_of_a_step_does_not_depend_on_the_order_of_its_groups() -> None:
    chosen = []
    for order in ([1, 2, 3, 4, 5], [5, 3, 1, 4, 2]):
        samples = Samples(limit=1000)
        samples.train(1, order)
        chosen.append({samples.prompts[key] for key, rank in samples.ranks.items() if rank is not None})
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 2


def test_without_groups_per_step_the_newest_stay() -> None:
    samples = Samples(limit=80, per_step=0)
    for step in range(1, 31):
        samples.train(step, [step])
    assert sorted(samples.groups_of) == list(range(21, 31))


def test_kept_groups_and_followed_prompts_are_restored() -> None:
    before = trained(400, limit=1000)
    after = Samples(limit=1000)
    for key in before.steps:
        after.retention.restore(key, before.stored[key], SERIES, before.ranks.get(key))
    after.steps, after.prompts, after.ranks = dict(before.steps), dict(before.prompts), dict(before.ranks)
    after.number = before.number
    for step in range(401, 500):
        for samples in (before, after):
            samples.train(step, [(step * 37 + index * 101) % 512 for index in range(4)])
    assert {step for step in after.groups_of if step < 32} == {step for step in before.groups_of if step < 32}


@settings(max_examples=30)
@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=60),
    limit=st.integers(0, 200),
    limit_bytes=st.integers(0, 20_000),
)
def test_the_limits_always_hold(sizes: list[list[int]], limit: int, limit_bytes: int) -> None:
    samples = Samples(limit=limit, limit_bytes=limit_bytes)
    stored: dict[GroupKey, int] = {}
    for step, groups in enumerate(sizes, start=1):
        for index, size in enumerate(groups):
            before = set(samples.steps)
            samples.train(step, [step * 10 + index], size=size)
            stored |= dict.fromkeys(set(samples.steps) - before, size)
        stored = {key: size for key, size in stored.items() if key in samples.steps}
        assert sum(stored.values()) <= limit
        assert sum(stored.values()) * 100 <= limit_bytes


@pytest.mark.parametrize("octave", range(2, 10))
def test_a_coarser_grid_is_part_of_a_finer_one(octave: int) -> None:
    numbers = range(2**octave, 2 ** (octave + 1))
    for level in range(octave + 1):
        grid = [number for number in numbers if sparsity(number) <= level]
        assert len(grid) == 2**level
        assert {later - earlier for earlier, later in pairwise(grid)} <= {2 ** (octave - level)}
