"""Bad rows are dropped before the forward pass, with all rows of their task, and counted by cause."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.algorithms.config import TeacherConfig
from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.trainer.step.row_check import without_bad_rows
from tests import make

LIMITS = RowLimits(vocabulary=32, tokens=8, mixture=Mixture(layers=2, chosen=1, experts=4))


def batch_of(*trajectories: Trajectory, per_task: int = 1, version: int = 3) -> Batch:
    """Returns a batch of one group; `per_task` adjacent rows are of one task. Node `n-INDEX` has the row INDEX."""
    rows = tuple(
        Row(
            group=GroupId("train:0"),
            task=TaskId(f"train:0/{index // per_task}"),
            node=NodeId(f"n-{index}.1"),
            trajectory=trajectory,
        )
        for index, trajectory in enumerate(trajectories)
    )
    return Batch(
        id=BatchId("solver:3"), policy=PolicyId("solver"), version=Version(version), is_redelivered=False, rows=rows
    )


def trajectory(**changes: Any) -> Trajectory:
    return replace(make.trajectory(), **changes)


WRITTEN = Span(author=Author.MODEL, length=5, version=Version(0))
BAD = {
    "token_id": trajectory(tokens=np.array([1, 2, 3, 4, 5, 6, 7, 32], np.int32)),
    "tokens": make.trajectory(prompt_tokens=4),
    "no_context": trajectory(spans=(WRITTEN, Span(author=Author.CONTEXT, length=3))),
    "logprob": trajectory(logprobs=np.array([-1, -1, np.nan, -1, -1], np.float32)),
    "version": make.trajectory(version=4),
    "experts": trajectory(token_columns={TokenColumn.EXPERTS: np.array([[0, 1]] * 4 + [[0, 4]], np.uint8)}),
}


@pytest.mark.parametrize("cause", BAD)
def test_a_bad_row_is_dropped_and_counted_with_its_cause(cause: str) -> None:
    batch = batch_of(trajectory(), BAD[cause], trajectory())
    kept, metrics = without_bad_rows(batch, LIMITS)
    assert [row.node for row in kept.rows] == ["n-0.1", "n-2.1"]
    assert metrics == {"dropped_rows": 1.0, f"dropped_{cause}": 1.0}


def test_a_candidate_outside_of_the_vocabulary_drops_its_row_too() -> None:
    candidates = np.array([[1], [2], [3], [4], [32]], "<i4")
    columns = {TokenColumn.TOP_TOKENS: candidates, TokenColumn.TOP_LOGPROBS: np.full((5, 1), -1, "<f2")}
    kept, metrics = without_bad_rows(batch_of(trajectory(), trajectory(token_columns=columns)), LIMITS)
    assert [row.node for row in kept.rows] == ["n-0.1"]
    assert metrics == {"dropped_rows": 1.0, "dropped_token_id": 1.0}


@pytest.mark.parametrize("last", [-1, -(2**31), 2**31 - 1])
def test_ids_outside_of_the_vocabulary_are_dropped_without_statements_too(last: int) -> None:
    tokens = np.array([1, 2, 3, 4, 5, 6, 7, last], np.int32)
    kept, metrics = without_bad_rows(batch_of(trajectory(), trajectory(tokens=tokens)), RowLimits())
    assert len(kept.rows) == (1 if last < 0 else 2)
    assert metrics.get("dropped_token_id", 0) == (last < 0)


def test_a_good_batch_stays_the_same_object() -> None:
    batch = batch_of(trajectory(), make.trajectory(version=3))
    assert without_bad_rows(batch, LIMITS) == (batch, {})


def test_all_rows_of_a_task_with_a_bad_row_are_dropped() -> None:
    """Rows are compared by their position in the task: with one row less, the others would change theirs."""
    batch = batch_of(trajectory(), BAD["token_id"], trajectory(), trajectory(), per_task=2)
    kept, metrics = without_bad_rows(batch, LIMITS)
    assert [row.node for row in kept.rows] == ["n-2.1", "n-3.1"]
    assert metrics == {"dropped_rows": 2.0, "dropped_token_id": 1.0}


def test_a_row_counts_once_and_all_bad_rows_leave_an_empty_batch() -> None:
    twice = replace(BAD["token_id"], logprobs=np.full(5, -1e38, np.float32))
    kept, metrics = without_bad_rows(batch_of(twice, BAD["tokens"]), LIMITS)
    assert not kept.rows
    assert metrics == {"dropped_rows": 2.0, "dropped_token_id": 1.0, "dropped_tokens": 1.0}


def test_rows_of_excluded_nodes_are_dropped() -> None:
    kept, metrics = without_bad_rows(batch_of(*[trajectory()] * 3), LIMITS, excluded_nodes=frozenset({"n-1"}))
    assert [row.node for row in kept.rows] == ["n-0.1", "n-2.1"]
    assert metrics == {"dropped_rows": 1.0, "dropped_mismatch": 1.0}


SELF = {"self": TeacherConfig(policy="current")}
TWO = {name: TeacherConfig(model={"kind": "tiny"}) for name in ("math", "code")}


@pytest.mark.parametrize(
    ("cause", "teachers", "changes"),
    [
        ("teacher", TWO, {}),
        ("teacher", TWO, {"teacher": "biology"}),
        ("teacher_prompt", SELF, {}),
        ("teacher_prompt", SELF, {"teacher_prompt": (1, 32)}),
        ("teacher_prompt", SELF, {"teacher_prompt": (1, 2, 3, 4)}),
    ],
    ids=str,
)
def test_a_row_that_no_teacher_can_score_is_dropped(
    cause: str, teachers: dict[str, TeacherConfig], changes: dict[str, Any]
) -> None:
    good = trajectory(teacher="math", teacher_prompt=(1, 2, 3))
    batch = batch_of(good, trajectory(**changes), good)
    kept, metrics = without_bad_rows(batch, LIMITS, teachers)
    assert [row.node for row in kept.rows] == ["n-0.1", "n-2.1"]
    assert metrics == {"dropped_rows": 1.0, f"dropped_{cause}": 1.0}
