"""Notifications of a selector, and the dataset that a cursor belongs to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, NodeId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.values import Json
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.evaluation.rounds import EvaluationRequest, EvaluationRounds, Round
from astraflow.dataflow.issuing.issuer import MAX_UNUSABLE, Issuer
from astraflow.dataflow.issuing.selectors import Rewards, Selector
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.datasets import datasets
from tests import make
from tests.dataflow.running import config, facts, opened, running
from tests.datasets import tables
from tests.errors import raises_code


class Listening:
    """Selector that records its notifications."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def select(self) -> int:
        return 3

    def observe(self, index: int, rewards: Rewards) -> None:
        self.heard.append((index, dict(rewards)))

    def advance(self, version: Version) -> None:
        self.heard.append(version)

    def state_dict(self) -> dict[str, Json]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


def issuer(selector: Listening, *, seed: int = 0) -> Issuer:
    dataset = datasets.build({"kind": "letters"}, seed)
    slot_plugins: SlotPlugins[Selector] = SlotPlugins(
        PluginSlot.SELECTOR, [{"kind": "listening"}], lambda spec: selector
    )
    return Issuer(FlowId("train"), dataset, slot_plugins, group_size=3)


def test_a_selector_observes_each_version_once_across_restarts() -> None:
    first, second = Listening(), Listening()
    before, after = issuer(first), issuer(second)
    for version in (0, 1, 1, 3, 2):
        before.advance(Version(version))
    after.load_state_dict(before.state_dict())
    for version in (3, 4):
        after.advance(Version(version))
    assert (first.heard, second.heard) == ([1, 3], [4])


def test_a_selector_observes_rewards_by_policy_without_failed_members() -> None:
    selector = Listening()
    source = issuer(selector)
    group = source.next_group()
    both = (make.trajectory(reward=1.0), make.trajectory(policy="verifier", reward=0.5))
    failure = Failure(boundary=Boundary.REWARD, message="timed out")
    group.episodes = {
        0: Episode(task=TaskId(f"{group.id}/0"), node=NodeId("node"), trajectories=both),
        1: Episode(task=TaskId(f"{group.id}/1"), node=NodeId("node"), trajectories=both[:1], failure=failure),
        2: Episode(task=TaskId(f"{group.id}/2"), node=NodeId("node"), trajectories=both),
    }
    source.observe(group)
    assert selector.heard == [(3, {PolicyId("solver"): (1.0, 1.0), PolicyId("verifier"): (0.5, 0.5)})]


def test_a_selector_observes_the_rewards_of_each_role() -> None:
    selector = Listening()
    source = issuer(selector)
    group = source.next_group()
    role_rewards = [("solver", 0.0), ("verifier", 1.0), ("solver.retry", 1.0)]
    trajectories = tuple(replace(make.trajectory(reward=reward), role=role) for role, reward in role_rewards)
    group.episodes = {0: Episode(task=TaskId(f"{group.id}/0"), node=NodeId("node"), trajectories=trajectories)}
    source.observe(group)
    assert selector.heard == [(3, {"solver/solver": (0.0, 1.0), "solver/verifier": (1.0,)})]


@pytest.mark.parametrize(
    ("rewards", "observed"), [((1.0, 1.0, 1.0), (1.0,)), ((1.0, 1.0, 0.0), (1.0, 1.0, 0.0))], ids=["shared", "own"]
)
def test_a_selector_observes_a_reward_that_branches_share_once(
    rewards: tuple[float, ...], observed: tuple[float, ...]
) -> None:
    selector = Listening()
    source = issuer(selector)
    group = source.next_group()
    trajectories = tuple(replace(make.trajectory(reward=reward), role="solver") for reward in rewards)
    group.episodes = {0: Episode(task=TaskId(f"{group.id}/0"), node=NodeId("node"), trajectories=trajectories)}
    source.observe(group)
    assert selector.heard == [(3, {"solver/solver": observed})]


class WithRows(Listening):
    """Selector with a state of two parts: a number and rows."""

    loaded: Any = None

    def state_dict(self) -> dict[str, Json]:
        return {"count": 7}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loaded = state

    def changed_rows(self) -> dict[int, Json]:
        return {}

    def all_rows(self) -> Mapping[int, Json]:
        return {}

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        pass


def test_the_state_and_the_rows_of_a_selector_are_its_own() -> None:
    first, second = WithRows(), WithRows()
    before, after = issuer(first), issuer(second)
    after.load_state_dict(before.state_dict())
    assert second.loaded == {"count": 7}
    assert after.rows == ("listening", second)
    assert issuer(Listening()).rows is None


def test_a_cursor_is_refused_for_other_data() -> None:
    before = issuer(Listening())
    before.next_group()
    same, other = issuer(Listening()), issuer(Listening(), seed=1)
    same.load_state_dict(before.state_dict())
    assert same.issued == 1
    with pytest.raises(InvalidInput) as caught:
        other.load_state_dict(before.state_dict())
    assert caught.value.code == "dataset.changed"


def reading(path: Path, *, flow: str = "train") -> DataflowConfig:
    """Returns a run with one flow over the prompts in a file."""
    plain = config()
    (only,) = plain.flows.values()
    return plain.model_copy(
        update={"flows": {flow: only.model_copy(update={"dataset": {"kind": "jsonl", "path": str(path)}})}}
    )


async def issue_first(run_config: DataflowConfig, folder: Path) -> None:
    """Issues the first prompt of a run and commits it."""
    async with opened(folder, run_config) as (run, journal):
        run.records.record_issued(run.flows[FlowId("train")].issue())
        await journal.wait_durable()


@pytest.mark.anyio
async def test_a_restart_with_changed_data_is_refused(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "rows.jsonl")
    await issue_first(reading(path), tmp_path)

    tables.write_jsonl(path, tables.ROWS[1:])
    with pytest.raises(InvalidInput) as caught:
        async with opened(tmp_path, reading(path)):
            pass
    assert caught.value.code == "dataset.changed"

    tables.write_jsonl(path)
    async with opened(tmp_path, reading(path)) as (run, _):
        assert run.flows[FlowId("train")].issue().id == "train:1"


@pytest.mark.anyio
async def test_a_renamed_flow_starts_with_the_new_data(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "rows.jsonl")
    await issue_first(reading(path), tmp_path)

    tables.write_jsonl(path, tables.ROWS[1:])
    async with opened(tmp_path, reading(path, flow="train-2")) as (renamed, _):
        assert renamed.flows[FlowId("train-2")].issue().id == "train-2:0"


class Holes:
    """Dataset whose even rows are unusable."""

    size, fingerprint = 10, "holes"

    def prompt(self, index: int) -> Prompt:
        if index % 2 == 0:
            raise InvalidInput(f"cannot use row {index}: no answer; correct it", code="dataset.wrong_field")
        return Prompt(id=PromptId(f"row:{index}"), fields={"question": "q", "answer": "a"})


class Counting(Listening):
    """Selects all rows in turn."""

    def __init__(self, start: int = 0, step: int = 1) -> None:
        super().__init__()
        self.next, self.step = start, step

    def select(self) -> int:
        self.next += self.step
        return (self.next - self.step) % 10


def holes(selector: Selector) -> Issuer:
    slot_plugins: SlotPlugins[Selector] = SlotPlugins(
        PluginSlot.SELECTOR, [{"kind": "counting"}], lambda spec: selector
    )
    return Issuer(FlowId("train"), Holes(), slot_plugins, group_size=2)


def test_rows_that_cannot_be_used_are_left_out_and_counted() -> None:
    source = holes(Counting())

    groups = [source.next_group() for _ in range(3)]

    assert [(group.id, group.prompt.id, group.prompt_index) for group in groups] == [
        ("train:0", "row:1", 1), ("train:1", "row:3", 3), ("train:2", "row:5", 5),
    ]  # fmt: skip
    assert source.unusable == [f"cannot use row {index}: no answer; correct it" for index in (0, 2, 4)]


def test_a_dataset_without_usable_rows_is_refused() -> None:
    source = holes(Counting(step=2))

    with raises_code(InvalidInput, "dataset.wrong_field"):
        source.next_group()
    assert len(source.unusable) == MAX_UNUSABLE


@pytest.mark.parametrize("prompts", [3, 5, 10])
def test_an_evaluation_takes_other_rows_in_place_of_unusable_ones(prompts: int) -> None:
    rounds = EvaluationRounds(FlowId("test"), Holes(), prompts=prompts, samples=1, seed=0)
    rounds.begin(
        Round(number=1, request=EvaluationRequest(versions={}, actor="me", reason="", requested_at=0.0), started_at=0.0)
    )

    issued = [rounds.next_group() for _ in range(prompts)]

    assert not rounds.has_more
    assert [group.prompt_index for group in issued] == list(range(prompts))
    assert all(group.prompt.id in ("row:1", "row:3", "row:5", "row:7", "row:9") for group in issued)


@pytest.mark.anyio
async def test_a_run_goes_on_past_unusable_rows_and_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.datasets.tables.shards.CHECKED_BYTES", 0)
    path = tmp_path / "rows.parquet"
    answers = [float("nan") if index % 4 == 1 else index / 2 for index in range(40)]
    pyarrow.parquet.write_table(pyarrow.table({"question": ["q"] * 40, "answer": answers}), path)
    run = with_dataset(config(), {"kind": "parquet", "path": str(path)})

    async with running(tmp_path / "run", run) as service:
        node = (await service.nodes.join(facts())).node
        tasks = (await service.nodes.lease(node, 8, wait_s=5)).tasks
        query = EventQuery(kinds=(RecordKind.PROMPT_UNUSABLE,), limit=10)
        while not (events := (await service.control.events(query)).events):
            await anext(service.control.watch_report())

    assert len(tasks) == 8
    assert all(int(str(task.prompt.id).removeprefix("row:")) % 4 != 1 for task in tasks)
    assert all(event.subject == "train-solver" and "rows.parquet, row " in render(event) for event in events)


def with_dataset(run: DataflowConfig, dataset: dict[str, Any]) -> DataflowConfig:
    """Returns the run with another dataset for each flow."""
    flows = {name: flow.model_copy(update={"dataset": dataset}) for name, flow in run.flows.items()}
    return run.model_copy(update={"flows": flows})
