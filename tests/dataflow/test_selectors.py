"""Selectors choose the next prompt, and a restart changes nothing about the choice."""

import json
import random
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId, Version
from astraflow.dataflow.issuing.mixture import build_selector
from astraflow.dataflow.issuing.selectors import Rewards, Selector, selectors
from astraflow.dataflow.storage.prompt_rows import RowProvider
from astraflow.datasets import datasets
from astraflow.datasets.shuffle import EpochOrder

SOLVER = PolicyId("solver")
KINDS = ("uniform", "sequential", "greso", "curriculum", "mixture")
EASY, HARD, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)
PARTS = {
    "short": {"dataset": {"kind": "letters", "length": 1}, "weight": 3},
    "long": {"dataset": {"kind": "letters", "length": 2}},
}


def build(kind: str, size: int = 12, **options: Any) -> Selector:
    if kind == "mixture":
        return build_selector({"kind": "greso"}, datasets.build({"kind": "mixture", "parts": PARTS}, 5), 5)
    return selectors.build({"kind": kind, **options}, size, 5)


def saved(selector: Selector, rows: dict[int, Any]) -> tuple[str, dict[int, str]]:
    """Returns state and rows as the journal holds them after another commit."""
    if isinstance(selector, RowProvider):
        rows |= selector.changed_rows()
    return json.dumps(selector.state_dict()), {key: json.dumps(row) for key, row in rows.items() if row is not None}


def restored(kind: str, state: str, rows: Mapping[int, str]) -> Selector:
    selector = build(kind)
    selector.load_state_dict(json.loads(state))
    if isinstance(selector, RowProvider):
        selector.load_rows({key: json.loads(row) for key, row in rows.items()})
    return selector


def observe(selector: Selector, index: int, rewards: tuple[float, ...]) -> None:
    selector.observe(index, {SOLVER: rewards} if rewards else {})


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_restarted_selector_continues_unchanged(kind: str, data: st.DataObject) -> None:
    straight, restarting, rows = build(kind), build(kind), dict[int, Any]()
    scores = st.sampled_from([EASY, HARD, MIXED, ()])
    for step, (rewards, is_restarted) in enumerate(data.draw(st.lists(st.tuples(scores, st.booleans()), max_size=60))):
        index = straight.select()
        assert restarting.select() == index
        for selector in (straight, restarting):
            observe(selector, index, rewards)
            if step % 7 == 6:
                selector.advance(Version(step))
        if is_restarted:
            restarting = restored(kind, *saved(restarting, rows))
    assert restarting.metrics() == straight.metrics()


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_sequential_selects_every_prompt_once_per_epoch(is_shuffled: bool) -> None:
    sequential = build("sequential", 50, is_shuffled=is_shuffled)
    first, second = ([sequential.select() for _ in range(50)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert (first != second) is is_shuffled
    assert sequential.metrics() == {"epochs": 2.0}


def test_sequential_stores_only_a_counter_for_any_dataset_size() -> None:
    sequential = build("sequential", 10**12)
    assert len({sequential.select() for _ in range(100)}) == 100
    assert sequential.state_dict() == {"chosen": 100}


def chosen_in(selector: Selector, epochs: int, *, size: int, rewards: Mapping[int, tuple[float, ...]]) -> Counter[int]:
    """Counts the selections of each prompt in `epochs` passes, where all groups of a prompt have the same rewards."""
    counts: Counter[int] = Counter()
    while selector.state_dict()["place"] < epochs * size:  # type: ignore[operator]  # position of greso in its epochs
        index = selector.select()
        counts[index] += 1
        observe(selector, index, rewards.get(index, MIXED))
    return counts


@pytest.mark.long
def test_greso_always_issues_mixed_prompts_and_others_at_their_floor() -> None:
    size, epochs = 300, 80
    rewards = dict.fromkeys(range(100), EASY) | dict.fromkeys(range(100, 200), HARD)
    greso = build("greso", size, floor_easy=0.05, floor_hard=0.3)
    counts = chosen_in(greso, epochs, size=size, rewards=rewards)
    shares = [sum(counts[index] for index in range(first, first + 100)) / (100 * epochs) for first in (0, 100, 200)]
    assert shares[0] == pytest.approx(0.08, abs=0.02)  # the first ones come before the streak is long
    assert shares[1] == pytest.approx(0.30, abs=0.02)
    assert shares[2] == pytest.approx(1.0, abs=0.01)


def test_greso_resets_a_streak_at_mixed_rewards_and_restarts_it_when_easy_turns_hard() -> None:
    greso = build("greso")
    assert isinstance(greso, RowProvider)
    streaks: list[Any] = []
    for rewards in (EASY, EASY, HARD, HARD, HARD, EASY, MIXED):
        observe(greso, 3, rewards)
        streaks.append(greso.changed_rows()[3])
    assert streaks == [1, 2, -1, -2, -3, 1, None]


def test_greso_ignores_failed_groups() -> None:
    greso = build("greso")
    assert isinstance(greso, RowProvider)
    greso.observe(3, {})
    assert greso.changed_rows() == {}


def test_greso_changes_its_probabilities_by_one_step_per_version_after_the_first_pass() -> None:
    greso = build("greso", 4)
    observe(greso, greso.select(), EASY)
    greso.advance(Version(1))
    assert greso.metrics()["chance_easy"] == 0.5  # less than one pass
    for _ in range(40):
        observe(greso, greso.select(), EASY)
    greso.advance(Version(2))
    assert greso.metrics()["chance_easy"] == pytest.approx(0.49)
    assert greso.metrics()["chance_hard"] == pytest.approx(0.51)
    greso.advance(Version(3))
    assert greso.metrics()["chance_easy"] == pytest.approx(0.49)  # no results since


VERIFIER = PolicyId("verifier")
scores = st.lists(st.sampled_from([0.0, 0.4, 0.6, 1.0]), max_size=3).map(tuple)
results = st.fixed_dictionaries({}, optional={SOLVER: scores, VERIFIER: scores}).map(
    lambda rewards_by_policy: {policy: rewards for policy, rewards in rewards_by_policy.items() if rewards}
)
happenings = st.lists(
    st.one_of(st.just("select"), st.just("version"), st.tuples(st.integers(0, 3), results)), min_size=1, max_size=80
)


class SlowGreso:
    """Reference for greso: the published rule, computed from the whole history for every choice."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.results: list[tuple[int, Rewards, int]] = []
        """Prompt, rewards, and the version at which they arrived."""
        self.versions: list[int] = []
        """Number of prompts passed at each version."""
        self.place = 0

    def select(self) -> int:
        while True:
            index = EpochOrder(self.size, seed=5).item(self.place)
            draw = random.Random(f"greso/5/{self.place}").random()
            self.place += 1
            if draw < self.chance(index):
                return index

    def chance(self, index: int) -> float:
        kinds = [kind for of, rewards, _ in self.results if of == index and (kind := self.kind(rewards)) is not None]
        if not kinds or kinds[-1] == "spread":
            return 1.0
        streak = len(list(takewhile(lambda kind: kind == kinds[-1], reversed(kinds))))
        return max(self.base(kinds[-1]) ** streak, {"easy": 0.1, "hard": 0.4}[kinds[-1]])

    def base(self, kind: str) -> float:
        base = 0.5
        for version, position in enumerate(self.versions):
            kinds = [
                kind_of_group
                for _, rewards, at in self.results
                if at == version and (kind_of_group := self.kind(rewards))
            ]
            if kinds and position >= self.size:
                share = kinds.count(kind) / len(kinds)
                base = min(0.99, max(0.01, base + (-0.01 if share >= {"easy": 0.083, "hard": 0.167}[kind] else 0.01)))
        return base

    def kind(self, rewards: Rewards) -> str | None:
        """Classifies a group: None when no policy has two rewards to compare."""
        known = [policy_rewards for policy_rewards in rewards.values() if len(policy_rewards) >= 2]
        if not known:
            return None
        if any(len(set(policy_rewards)) > 1 for policy_rewards in known):
            return "spread"
        return "easy" if all(policy_rewards[0] > 0.5 for policy_rewards in known) else "hard"


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(happened=happenings)
def test_greso_matches_a_reference_implementation(happened: list[Any]) -> None:
    size = 4
    greso, slow = build("greso", size), SlowGreso(size)
    for happening in happened:
        match happening:
            case "select":
                assert greso.select() == slow.select()
            case "version":
                slow.versions.append(slow.place)
                greso.advance(Version(len(slow.versions)))
            case (index, rewards):
                slow.results.append((index, rewards, len(slow.versions)))
                greso.observe(index, rewards)
        assert [greso.metrics()[f"chance_{kind}"] for kind in ("easy", "hard")] == pytest.approx(
            [slow.base(kind) for kind in ("easy", "hard")]
        )


def test_greso_counts_a_prompt_as_hard_if_any_policy_fails() -> None:
    greso = build("greso")
    assert isinstance(greso, RowProvider)
    greso.observe(3, {SOLVER: HARD, VERIFIER: (1.0,) * 6})
    greso.observe(4, {SOLVER: EASY, VERIFIER: EASY})
    greso.observe(5, {SOLVER: HARD, VERIFIER: MIXED})
    assert greso.changed_rows() == {3: -1, 4: 1}


def test_greso_ignores_groups_with_one_remaining_member() -> None:
    greso = build("greso")
    assert isinstance(greso, RowProvider)
    observe(greso, 3, (0.0,))
    assert greso.changed_rows() == {}


def test_greso_uses_the_configured_minimum_spread() -> None:
    greso = build("greso", min_spread=0.2)
    assert isinstance(greso, RowProvider)
    observe(greso, 3, (0.7, 0.8))
    observe(greso, 4, (0.5, 0.8))
    assert greso.changed_rows() == {3: 1}


class SlowCurriculum:
    """Reference for the curriculum: every mean is computed from the whole history."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.results: list[tuple[int, float]] = []
        self.chosen = self.explored = 0

    def select(self) -> int:
        chance = random.Random(f"curriculum/5/{self.chosen}")
        self.chosen += 1
        if chance.random() < 0.2:
            self.explored += 1
            return EpochOrder(self.size, seed=5).item(self.explored - 1)
        drawn = [chance.randrange(self.size) for _ in range(8)]
        distances = [abs(self.mean(index) - 0.5) for index in drawn]
        return drawn[distances.index(min(distances))]

    def observe(self, index: int, rewards: Rewards) -> None:
        mean_scores = [sum(scores) / len(scores) for scores in rewards.values()]
        if mean_scores:
            distances = [abs(mean - 0.5) for mean in mean_scores]
            self.results.append((index, mean_scores[distances.index(min(distances))]))

    def mean(self, index: int) -> float:
        own = [mean for of, mean in self.results if of == index]
        if own:
            return reduce(lambda before, mean: 0.5 * before + 0.5 * mean, own)
        return reduce(lambda before, mean: before + 0.01 * (mean - before), [mean for _, mean in self.results], 0.5)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(happened=happenings)
def test_curriculum_matches_a_reference_implementation(happened: list[Any]) -> None:
    curriculum, slow = build("curriculum", 4), SlowCurriculum(4)
    for happening in happened:
        if happening == "select":
            assert curriculum.select() == slow.select()
        elif happening != "version":
            curriculum.observe(*happening)
            slow.observe(*happening)


def test_curriculum_uses_the_policy_closest_to_the_target_instead_of_the_mean() -> None:
    curriculum = build("curriculum")
    assert isinstance(curriculum, RowProvider)
    curriculum.observe(3, {SOLVER: HARD, VERIFIER: EASY})
    curriculum.observe(4, {SOLVER: HARD, VERIFIER: MIXED})
    rows = curriculum.changed_rows()
    assert rows[3] in (0.0, 1.0)
    assert rows[4] == 0.5


@pytest.mark.long
def test_curriculum_prefers_prompts_near_its_target() -> None:
    size = 200
    curriculum = build("curriculum", size, exploration=0.1)
    mean_rewards = {index: index / (size - 1) for index in range(size)}
    for index, mean in mean_rewards.items():
        observe(curriculum, index, (mean,))
    chosen = [curriculum.select() for _ in range(1000)]
    near = sum(abs(mean_rewards[index] - 0.5) < 0.2 for index in chosen) / len(chosen)
    assert near > 0.85
    assert {curriculum.select() for _ in range(5000)} == set(range(size))  # exploration reaches every prompt


def mixed(weights: list[float]) -> Selector:
    parts = {
        f"part-{number}": {"dataset": {"kind": "letters", "length": 1}, "weight": weight}
        for number, weight in enumerate(weights)
    }
    return build_selector({"kind": "uniform"}, datasets.build({"kind": "mixture", "parts": parts}, 5), 5)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=8))
def test_a_mixture_keeps_the_shares_of_any_weights_within_one_prompt(weights: list[float]) -> None:
    mixture, counts = mixed(weights), [0] * len(weights)
    for number in range(1, 200):
        counts[mixture.select() // 8] += 1
        shares = [weight / sum(weights) * number for weight in weights]
        assert all(abs(count - share) < 1 + 1e-6 for count, share in zip(counts, shares, strict=True))


def test_a_mixture_with_new_weights_ignores_earlier_shares() -> None:
    before, after, same = mixed([9, 1]), mixed([1, 1]), mixed([9, 1])
    for _ in range(100):
        before.select()
    for selector in (after, same):
        selector.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert [after.select() // 8 for _ in range(6)].count(0) == 3
    assert same.metrics()["part-0.chosen"] == 90


def test_a_mixture_keeps_its_shares_and_passes_rewards_to_the_right_part() -> None:
    mixture = build("mixture")
    assert isinstance(mixture, RowProvider)
    counts = Counter[bool]()
    for number in range(1, 200):
        index = mixture.select()
        assert 0 <= index < 8 + 64
        counts[index < 8] += 1
        assert abs(counts[True] - 0.75 * number) <= 1
    observe(mixture, 3, EASY)
    observe(mixture, 8 + 5, HARD)
    assert mixture.changed_rows() == {3: 1, 13: -1}
    assert mixture.metrics()["short.streaks"] == mixture.metrics()["long.streaks"] == 1
