"""Packing changes no result: every trajectory gets the values that it gets alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.step.bins import bins_of_units, even_bins
from astraflow.trainer.step.packing import (
    PackUnit,
    build_pack,
    distinct_tokens,
    pack_sequences,
    pack_units,
    prefix_trees,
    split_unit,
)
from astraflow.trainer.step.rows import StepRows
from tests import make_torch
from tests.errors import raises_code

Tokens = dict[str, torch.Tensor]

ROOMY = 100_000
"""Tokens: more than any batch of these tests has."""


def trajectory(pieces: Sequence[tuple[Author, Sequence[int]]], *, version: int = 0, reward: float = 1.0) -> Trajectory:
    tokens = np.array([token for _, part in pieces for token in part], dtype=np.int32)
    written = sum(len(part) for author, part in pieces if author is Author.MODEL)
    return Trajectory(
        policy=PolicyId("solver"),
        tokens=tokens,
        logprobs=-np.arange(1, written + 1, dtype=np.float32),
        spans=tuple(
            Span(author=author, length=len(part), version=Version(version) if author is Author.MODEL else None)
            for author, part in pieces
        ),
        reward=reward,
    )


def single_turn(prompt: Sequence[int], answer: Sequence[int]) -> Trajectory:
    return trajectory([(Author.CONTEXT, prompt), (Author.MODEL, answer)])


def batch(groups: Sequence[Sequence[Trajectory]]) -> Batch:
    rows = tuple(
        Row(
            group=GroupId(f"train:{number}"),
            task=TaskId(f"train:{number}/{member}"),
            node=NodeId("node-1"),
            trajectory=member_trajectory,
        )
        for number, members in enumerate(groups)
        for member, member_trajectory in enumerate(members)
    )
    return Batch(id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=rows)


token = st.integers(4, 9)
texts = st.lists(token, min_size=1, max_size=5)


@st.composite
def some_trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Returns members of a group: their prompts share some first tokens, there may be several turns, and some continue
    another member after any of its tokens, whoever wrote them there."""
    prompt = draw(texts)
    members: list[list[tuple[Author, int]]] = []
    for _ in range(draw(st.integers(1, 6))):
        own = draw(st.sampled_from([prompt, [*prompt, 5], prompt[:-1] or prompt]))
        begin = [(Author.CONTEXT, token) for token in own]
        if draw(st.booleans()) and members:
            other = draw(st.sampled_from(members))
            begin = other[: draw(st.integers(1, len(other)))]
            if draw(st.booleans()):  # an agent that reads what it wrote before
                begin = [(Author.CONTEXT, token) for _, token in begin]
        turns = draw(st.lists(st.tuples(texts, texts), max_size=2))
        pieces = [(Author.MODEL, draw(texts))]
        pieces += [piece for turn in turns for piece in zip((Author.CONTEXT, Author.MODEL), turn, strict=True)]
        members.append([*begin, *((author, token) for author, part in pieces for token in part)])
    return [
        trajectory([(author, [token for _, token in run]) for author, run in groupby(member, key=lambda item: item[0])])
        for member in members
    ]


@cache
def shared_scorer() -> Scorer:
    return Scorer(make_torch.model(), torch.device("cpu"))


def units_of(rows: StepRows, included: Iterable[int], *, max_tokens: int = ROOMY) -> list[PackUnit]:
    return pack_units(rows, prefix_trees(rows, included), max_tokens=max_tokens)


def packs_of(whole: Batch, max_tokens: int) -> list[tuple[Pack, Tokens]]:
    """Returns the packs of all rows with model-written tokens."""
    rows = StepRows.of(whole)
    included = [index for index in range(len(whole.rows)) if rows.trained_tokens(index)]
    bins = bins_of_units(units_of(rows, included, max_tokens=max_tokens), max_tokens=max_tokens)
    return [(build_pack(rows, units), tokens_of(rows, [row for unit in units for row in unit.rows])) for units in bins]


def tokens_of(rows: StepRows, included: Sequence[int]) -> Tokens:
    """Returns the trained tokens of these rows, with the facts of their turns."""
    turns = rows.turns(included)
    logprobs, lengths = turns.pop("behaviour_logprobs"), turns["turn_lengths"]
    return {"logprobs": logprobs, **{name: value.repeat_interleave(lengths) for name, value in turns.items()}}


@pytest.mark.long
@settings(max_examples=40)
@given(
    groups=st.lists(some_trajectories(), min_size=1, max_size=4),
    max_tokens=st.sampled_from([1, 12, 30, ROOMY]),
)
def test_every_packed_trajectory_has_the_logprobs_of_a_single_one(
    groups: list[list[Trajectory]], max_tokens: int
) -> None:
    whole = batch(groups)
    scorer = shared_scorer()
    by_row: list[list[tuple[int, float, float]]] = [[] for _ in whole.rows]
    for pack, tokens in packs_of(whole, max_tokens):
        with torch.no_grad():
            logprobs = scorer(scorer.inputs(pack)).logprobs.tolist()
        for owner, *values in zip(
            tokens["turn_rows"].tolist(),
            pack.targets.tolist(),
            tokens["logprobs"].tolist(),
            logprobs,
            strict=True,
        ):
            by_row[owner].append((values[0], values[1], values[2]))

    model = make_torch.model()
    for row, tokens_of_row in zip(whole.rows, by_row, strict=True):
        mask = row.trajectory.loss_mask()
        assert [token for token, _, _ in tokens_of_row] == row.trajectory.tokens[mask].tolist()
        assert [recorded for _, recorded, _ in tokens_of_row] == row.trajectory.logprobs.tolist()
        expected = make_torch.logprobs(model, row.trajectory.tokens, 1)[mask[1:]]
        np.testing.assert_allclose([own for _, _, own in tokens_of_row], expected, atol=1e-5)


def test_tokens_that_rows_share_are_in_a_pack_once() -> None:
    prompt = list(range(10, 30))
    members = [single_turn(prompt, [member, 5, 6]) for member in range(8)]

    ((pack, _),) = packs_of(batch([members]), ROOMY)

    assert len(pack.input_ids) == 20 + 8 * 2
    assert pack.segments[0] == Segment(begin=0, end=22)
    assert pack.segments[1] == Segment(begin=22, end=24, prefix_begin=0, prefix_end=20)


def test_what_the_model_wrote_is_shared_with_a_branch_that_continues_it_and_trained_in_both() -> None:
    first = [(Author.CONTEXT, range(10, 30)), (Author.MODEL, range(30, 50))]
    branches = [trajectory([*first, (Author.CONTEXT, [part]), (Author.MODEL, range(60, 80))]) for part in (1, 2)]
    summary = single_turn([*range(10, 50), 3], [70] * 8)  # does not train what it reads

    ((pack, tokens),) = packs_of(batch([[*branches, summary]]), ROOMY)

    assert len(pack.input_ids) == 40 + 20 + 20 + 8
    assert pack.segments[1:] == (
        Segment(begin=60, end=80, prefix_begin=0, prefix_end=40),
        Segment(begin=80, end=88, prefix_begin=0, prefix_end=40),
    )
    assert tokens["turn_rows"].tolist() == [0] * 40 + [1] * 40 + [2] * 8
    assert pack.predictors[40:60].tolist() == pack.predictors[:20].tolist() == list(range(19, 39))


def test_few_shared_tokens_are_not_worth_a_call_of_attention() -> None:
    members = [single_turn([4, *range(member, 60 + member)], [5, 6]) for member in range(8, 12)]

    ((pack, _),) = packs_of(batch([members]), ROOMY)

    assert all(segment.prefix_end == 0 for segment in pack.segments)
    rows = StepRows.of(batch([members]))
    assert distinct_tokens(prefix_trees(rows, range(4))) == len(pack.input_ids) - 3


def test_a_tree_is_cut_where_the_fewest_tokens_are_computed_twice() -> None:
    system, questions = list(range(20)), [list(range(30, 70)), list(range(70, 110))]
    members = [single_turn([*system, *questions[number % 2]], [number] * 21) for number in range(6)]
    rows = StepRows.of(batch([members]))

    units = units_of(rows, range(6), max_tokens=130)
    (whole,) = units_of(rows, range(6))

    assert sorted(unit.rows for unit in units) == [(0, 2, 4), (1, 3, 5)]
    assert [unit.shared for unit in units] == [(0, 60, 60), (0, 60, 60)]
    assert sorted(unit.rows for unit in split_unit(rows, whole)) == [(0, 2, 4), (1, 3, 5)]
    assert (whole.width, sum(unit.width for unit in units)) == (20 + 2 * (40 + 3 * 20), 20 + 20 + 2 * (40 + 3 * 20))


def test_packs_have_no_padding_and_keep_to_their_budget() -> None:
    groups = [[single_turn([4, 5], range(4, 4 + length))] for length in (29, 3, 28, 4, 5)]

    packs = packs_of(batch(groups), 36)

    assert sorted(len(pack.input_ids) for pack, _ in packs) == [4, 34, 36]
    assert sum(len(pack.input_ids) for pack, _ in packs) == 30 + 4 + 29 + 5 + 6


@pytest.mark.parametrize(("answer", "input_tokens"), [(29, 30), (30, 32), (31, 32)])
def test_the_last_token_is_input_only_where_it_makes_the_length_a_multiple_of_16(
    answer: int, input_tokens: int
) -> None:
    ((pack, tokens),) = packs_of(batch([[single_turn([4, 5], range(4, 4 + answer))]]), ROOMY)

    assert len(pack.input_ids) == input_tokens
    assert len(pack.targets) == len(tokens["turn_rows"]) == answer
    assert pack.predictors.tolist() == list(range(1, answer + 1))


def test_a_row_longer_than_the_budget_gets_its_own_pack() -> None:
    packs = packs_of(batch([[single_turn([4], range(4, 60)), single_turn([4], [5])]]), 20)

    assert [len(pack.input_ids) for pack, _ in packs] == [56, 1]


def test_rows_of_different_roles_share_what_they_begin_with() -> None:
    whole = batch([[single_turn(range(4, 30), [7]), single_turn(range(4, 30), [8])]])
    one_task = [replace(row, task=TaskId("train:0/0")) for row in whole.rows]
    together = StepRows.of(replace(whole, rows=one_task))

    assert together.slots == [0, 1]
    roles = ["solver", "verifier", "solver"]
    with_roles = [
        replace(row, trajectory=replace(row.trajectory, role=role))
        for row, role in zip([*one_task, whole.rows[0]], roles, strict=True)
    ]
    assert StepRows.of(replace(whole, rows=with_roles)).slots == [0, 1, 0]
    assert [unit.rows for unit in units_of(together, [0, 1])] == [(0, 1)]


def test_turn_rewards_and_discounts_reach_every_token_of_their_turn() -> None:
    pieces = [(Author.CONTEXT, [4]), (Author.MODEL, [5, 6]), (Author.CONTEXT, [4]), (Author.MODEL, [5])]
    scored = replace(trajectory(pieces), turn_rewards=(0.25, 0.5), turn_discounts=(0.9, 1.0))

    ((_, tokens),) = packs_of(batch([[scored, trajectory(pieces)]]), ROOMY)

    assert tokens["turn_rewards"].tolist() == [0.25, 0.25, 0.5, 0, 0, 0]
    np.testing.assert_allclose(tokens["turn_discounts"], [0.9, 0.9, 1, 1, 1, 1], rtol=1e-6)


def test_costs_count_each_visible_pair_of_tokens() -> None:
    members = [single_turn(range(4, 24), [7, 8, last]) for last in (9, 10)]
    rows = StepRows.of(batch([members]))

    (unit,) = units_of(rows, [0, 1])
    pack = build_pack(rows, [unit])

    assert (unit.width, unit.pairs) == (len(pack.input_ids), int((pack.positions + 1).sum()))
    assert (unit.targets, len(pack.targets)) == (4, 6)


def test_turns_are_numbered_and_not_split_by_a_version_change() -> None:
    crossing = Trajectory(
        policy=PolicyId("solver"),
        tokens=np.arange(4, 11, dtype=np.int32),
        logprobs=np.zeros(5, dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=1),
            Span(author=Author.MODEL, length=3, version=Version(2)),
            Span(author=Author.MODEL, length=1, version=Version(5)),
            Span(author=Author.CONTEXT, length=1),
            Span(author=Author.MODEL, length=1, version=Version(5)),
        ),
        reward=0.0,
    )

    ((_, tokens),) = packs_of(batch([[crossing]]), ROOMY)

    assert tokens["turn_indices"].tolist() == [0, 0, 0, 0, 1]


def test_an_empty_pack_has_one_token_and_no_target() -> None:
    rows = StepRows.of(batch([]))

    pack, tokens = build_pack(rows, []), tokens_of(rows, [])

    assert (len(pack.input_ids), len(pack.targets), len(tokens["turn_rows"])) == (1, 0, 0)


@pytest.mark.long
@given(widths=st.lists(st.integers(1, 50), min_size=1, max_size=20), extra=st.integers(0, 3))
def test_even_bins_hold_every_unit_within_the_budget(widths: list[int], extra: int) -> None:
    rows = StepRows.of(batch([[single_turn([4], range(4, 4 + width))] for width in widths]))
    units = units_of(rows, range(len(widths)), max_tokens=50)
    count = len(bins_of_units(units, max_tokens=50)) + extra

    bins = even_bins(units, count=count, max_tokens=50)

    assert len(bins) == count
    assert sorted(unit.rows for part in bins for unit in part) == sorted(unit.rows for unit in units)
    assert all(sum(unit.width for unit in part) <= 50 for part in bins)


def test_sequences_are_packed_as_independent_segments() -> None:
    pack = pack_sequences([np.array([4, 5, 6]), np.array([7, 8])], [2, 1])

    assert pack.positions.tolist() == [0, 1, 2, 0, 1]
    assert pack.segments == (Segment(begin=0, end=3), Segment(begin=3, end=5))
    assert (pack.predictors.tolist(), pack.targets.tolist()) == ([1, 3], [6, 8])


def test_a_first_token_without_context_is_refused() -> None:
    rows = StepRows.of(batch([[trajectory([(Author.MODEL, [4, 5])])]]))
    with raises_code(InvalidInput, "trainer.no_context"):
        prefix_trees(rows, [0])
