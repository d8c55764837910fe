"""Batches whose size is a number of distinct tokens."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.batches import Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, TaskId, Version
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.config import StreamConfig
from astraflow.dataflow.serving.stream import Stream
from astraflow.trainer.step.prefix_trees import PrefixTree
from tests import make
from tests.dataflow.running import config, facts, running
from tests.dataflow.simulated_stream import trained
from tests.dataflow.test_samplers import SOLVER, slot_plugins

PROMPT = (7, 8, 9)


def group(ordinal: int, rows: list[list[int]], *, version: int = 0) -> RoutedGroup:
    """Returns a group whose rows have these tokens; the first three are the prompt."""
    name = GroupId(f"train:{ordinal}")
    members = [
        Row(
            group=name,
            task=TaskId(f"{name}/{member}"),
            node=NodeId("node"),
            trajectory=replace(
                make.trajectory(prompt_tokens=3, model_tokens=len(tokens) - 3, version=version),
                tokens=np.array(tokens, np.int32),
            ),
        )
        for member, tokens in enumerate(rows)
    ]
    return RoutedGroup(id=name, flow=FlowId("train"), policy=SOLVER, rows=members)


def stream(tokens: int, *, max_staleness: int = 2, kind: str = "fresh", is_paced: bool = False) -> Stream:
    return Stream(
        SOLVER,
        batch_tokens=tokens,
        max_staleness=max_staleness,
        sampler=slot_plugins({"kind": kind}),
        is_paced=is_paced,
    )


def issue(it: Stream, answers: list[int]) -> None:
    """Issues and completes a group with answers of these lengths, which begin with different tokens."""
    it.counts.issued += 1
    rows = [[*PROMPT, *[10 + member] * length] for member, length in enumerate(answers)]
    it.admit(group(it.counts.issued, rows, version=it.version))


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=9), min_size=1, max_size=6))
def test_distinct_tokens_are_those_of_the_trainer_s_tree(answers: list[list[int]]) -> None:
    rows = [[*PROMPT, *answer] for answer in answers]
    tree = PrefixTree.of({row: np.array(tokens, np.int32) for row, tokens in enumerate(rows)})
    distinct = sum(tree.lengths[row] - shared for row, shared in tree.order(lambda *_: True))
    assert group(0, rows).distinct_tokens == distinct


def test_a_batch_ends_with_the_group_that_reaches_the_tokens() -> None:
    it = stream(30)
    for answers in ([4, 4], [9, 9], [2, 2], [1, 1]):  # 11, 21, 7 and 5 distinct tokens
        issue(it, answers)
    served = it.next_batch()
    assert served is not None
    assert [part.distinct_tokens for part in served.fresh_groups] == [11, 21]
    assert it.buffer.size == 12
    trained(it)
    assert it.next_batch() is None


@pytest.mark.parametrize("kind", ["fresh", "priority", "replay"])
def test_the_gate_never_stops_while_tokens_are_missing(kind: str) -> None:
    """Trains 40 batches of groups whose sizes grow; no batch is larger than its last group explains."""
    it = stream(100, kind=kind, max_staleness=1, is_paced=True)
    for step in range(40):
        while it.issue_headroom() > 0:
            issue(it, [1 + (it.counts.issued + step) % 9] * 2)
        served = it.next_batch()
        assert served is not None
        sizes = [part.distinct_tokens for part in (*served.fresh_groups, *served.replayed)]
        assert sum(sizes) - sizes[-1] < 100 <= sum(sizes)
        assert all(it.version - part.oldest_version <= 1 for part in served.fresh_groups)
        trained(it)
    assert it.counts.dropped["stale"] < 0.2 * it.counts.issued


def test_one_group_is_issued_for_each_batch_until_a_group_is_measured() -> None:
    it = stream(100, max_staleness=0)
    assert (it.issue_headroom(), it.next_batch_groups) == (1, 1)
    issue(it, [11, 11])  # 25 distinct tokens
    assert (it.issue_headroom(), it.next_batch_groups, it.batch_groups) == (3, 4, 4)


def test_the_mean_size_survives_a_restart_but_not_another_size_of_batches() -> None:
    before, after, other = stream(100), stream(100), stream(200)
    issue(before, [11, 11])
    state = json.loads(json.dumps(before.state_dict()))
    after.load_state_dict(state)
    other.load_state_dict(state)
    assert (after.batch_groups, other.batch_groups) == (before.batch_groups, 1) == (4, 1)


def test_groups_or_tokens_size_a_batch() -> None:
    assert StreamConfig.parse({}, where="x").batch_groups == 32
    assert StreamConfig.parse({"batch_tokens": 4096}, where="x").batch_groups == 0
    for wrong in ({"batch_tokens": 4096, "batch_groups": 4}, {"batch_groups": 0}):
        with pytest.raises(InvalidInput):
            StreamConfig.parse(wrong, where="x")


@pytest.mark.anyio
async def test_a_kill_changes_no_batch(tmp_path: Path) -> None:
    """Copies the folder of a service as a kill would leave it while a batch is out and further groups wait."""
    sized = StreamConfig(batch_tokens=20, max_staleness=4)
    settings = config(group_size=2).model_copy(update={"streams": {"solver": sized}})
    async with running(tmp_path / "run", settings) as service:
        for _ in range(3):
            node = (await service.nodes.join(facts("producer"))).node
            tasks = (await service.nodes.lease(node, 8, wait_s=2)).tasks
            await service.nodes.push(node, [result(task) for task in tasks])
        batch = await service.trainer().pull_batch(version=Version(0), wait_s=1)
        assert batch is not None
        report = (await service.control.report()).streams[0]
        assert (report.batch_groups, report.groups.in_batch) == (2, 2)
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    async with running(tmp_path / "killed", settings) as service:
        again = await service.trainer().pull_batch(version=Version(0), wait_s=1)
        restored = (await service.control.report()).streams[0]
    assert again is not None
    assert [row.task for row in again.rows] == [row.task for row in batch.rows]
    assert (restored.batch_groups, restored.groups) == (report.batch_groups, report.groups)


def result(task: Task) -> Episode:
    """Returns an answer of seven distinct tokens after a prompt of three."""
    return Episode(task=task.id, node=NodeId("any"), trajectories=(make.trajectory(model_tokens=7 + task.member),))
