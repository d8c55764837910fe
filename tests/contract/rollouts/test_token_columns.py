"""Columns of tokens: types, joining where a part lacks a column, and their way through trajectories and batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.batches import Row, Rows
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan, joined
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns, check_columns, joined_columns
from astraflow.contract.rollouts.trajectories import Trajectories, Trajectory
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder
from tests import make
from tests.errors import raises_code


def top(ids: list[list[int]], logprob: float = -1.0) -> TokenColumns:
    tokens = np.array(ids, "<i4")
    return {TokenColumn.TOP_TOKENS: tokens, TokenColumn.TOP_LOGPROBS: np.full(tokens.shape, logprob, "<f2")}


def written(columns: TokenColumns, tokens: int) -> Trajectory:
    return replace(make.trajectory(prompt_tokens=2, model_tokens=tokens), token_columns=columns)


def kept(ids: list[list[int]]) -> TokenColumns:
    return {TokenColumn.SUPPORT: np.array(ids, "<i4")}


BAD = [
    ({TokenColumn.TOP_TOKENS: np.zeros((2, 1), "<i4")}, "wrong_shape"),
    ({**top([[1], [2]]), TokenColumn.TOP_LOGPROBS: np.zeros((2, 2), "<f2")}, "wrong_shape"),
    (top([[1]]), "wrong_shape"),
    ({**top([[1], [2]]), TokenColumn.TOP_TOKENS: np.ones((2, 1), "<i8")}, "wrong_shape"),
    ({**top([[1], [2]]), TokenColumn.TOP_TOKENS: np.ones(2, "<i4")}, "wrong_shape"),
    (top([[1], [-2]]), "invalid_id"),
    (kept([[8, -1], [-2, 9]]), "invalid_id"),
    (kept([[8, -1], [-1, 9]]), "invalid_id"),
    (top([[1], [2]], logprob=0.5), "invalid_logprob"),
    (top([[1, 2, 3], [4, 5, 6]]), "invalid_logprob"),
    (top([[1], [2]], logprob=float("nan")), "invalid_logprob"),
    (kept([[8, 1], [8, 1]]), "lacks_sampled"),
    *(
        ({TokenColumn.TEMPERATURE: np.array([[1], [value]], "<f4")}, "invalid_temperature")
        for value in (-1, np.nan, 1e4)
    ),
]
"""Columns of the sampled tokens 8 and 9, and the codes of their refusals."""


@pytest.mark.parametrize(("columns", "code"), BAD)
def test_columns_with_values_that_no_sampler_has_are_refused(columns: Any, code: str) -> None:
    with raises_code(InvalidInput, f"token_column.{code}"):
        check_columns(columns, sampled=np.array([8, 9], np.int32))


def test_kept_sets_name_the_sampled_token_or_nothing_where_all_tokens_could_be_sampled() -> None:
    check_columns(kept([[3, 8, 5], [-1, -1, -1]]), sampled=np.array([8, 9], np.int32))
    check_columns(kept([[8, -1], [1, 9]]), sampled=np.array([8, 9], np.int32))


def test_joined_parts_have_absent_entries_where_a_part_lacks_a_column_or_is_narrower() -> None:
    joined_parts = joined_columns([(top([[7, 8]]), 1), ({}, 2), (top([[9]]), 1)])
    assert joined_parts[TokenColumn.TOP_TOKENS].tolist() == [[7, 8], [-1, -1], [-1, -1], [9, -1]]
    assert joined_parts[TokenColumn.TOP_LOGPROBS].tolist() == [
        [-1.0, -1.0],
        [-np.inf, -np.inf],
        [-np.inf, -np.inf],
        [-1.0, -np.inf],
    ]
    assert joined_columns([({}, 3), ({}, 1)]) == {}


def test_an_aborted_generation_and_its_continuation_keep_their_columns() -> None:
    begun, rest = (
        Generation(
            tokens=np.array([token], np.int32),
            logprobs=np.zeros(1, np.float32),
            spans=(VersionSpan(version=Version(0), length=1),),
            finish=finish,
            columns=top([[token]]),
        )
        for token, finish in ((5, Finish.ABORT), (6, Finish.STOP))
    )
    builder = TrajectoryBuilder(PolicyId("solver"))
    builder.add_context(np.array([1], np.int32))
    builder.add_generation(joined(begun, rest))
    assert builder.build(1.0).token_columns[TokenColumn.TOP_TOKENS].tolist() == [[5], [6]]


def test_rows_of_a_batch_have_the_entries_of_their_own_tokens() -> None:
    trajectories = Trajectories.of([written(top([[1], [2]]), 2), written({}, 1), written(top([[3]]), 1)])
    parts = [trajectories[2:3], trajectories[0:2]]
    names = [GroupId("group")] * 3, [TaskId(str(number)) for number in range(3)], [NodeId("node")] * 3
    rows = Rows(groups=names[0], tasks=names[1], nodes=names[2], parts=parts)
    assert rows.columns.token_columns[TokenColumn.TOP_TOKENS].tolist() == [[3], [1], [2], [-1]]
    rebuilt = Rows.of(
        [Row(group=GroupId("group"), task=row.task, node=row.node, trajectory=row.trajectory) for row in rows]
    )
    assert rebuilt.columns.token_columns[TokenColumn.TOP_TOKENS].tolist() == [[3], [1], [2], [-1]]
    assert trajectories.size_bytes == 4 * (sum(len(part.tokens) for part in trajectories) + 4) + 4 * 6


@pytest.mark.parametrize("position", [0, 4095, 4096, 8191, 9999])
@pytest.mark.parametrize("value", [0.5, np.nan, -np.nan, np.inf, 6e-8])
def test_a_value_that_is_no_logprob_is_refused_in_every_block_of_a_long_column(position: int, value: float) -> None:
    sampled = np.zeros(10_000, np.int32)
    columns = {
        TokenColumn.TOP_TOKENS: np.zeros((10_000, 4), "<i4"),
        TokenColumn.TOP_LOGPROBS: np.full((10_000, 4), -2, "<f2"),
    }
    check_columns(columns, sampled=sampled)
    columns[TokenColumn.TOP_LOGPROBS][position, 3] = value
    with pytest.raises(InvalidInput) as caught:
        check_columns(columns, sampled=sampled)
    assert caught.value.code == "token_column.invalid_logprob"
